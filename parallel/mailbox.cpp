#include "parallel/mailbox.h"

#include <algorithm>

#include "parallel/failure.h"

namespace capstan::parallel {

using kernels::Device;
using kernels::DeviceMark;

Post* Mailbox::meet(Post& post) {
  std::vector<Post*>& others = post.is_send ? receives_ : sends_;
  const auto found = std::find_if(others.begin(), others.end(), [&](const Post* other) {
    return other->channel == post.channel && other->source == post.source && other->tag == post.tag;
  });
  if (found == others.end()) {
    (post.is_send ? sends_ : receives_).push_back(&post);
    return nullptr;
  }
  Post* partner = *found;
  others.erase(found);
  return partner;
}

void Mailbox::withdraw(const Post& post) { std::erase(post.is_send ? sends_ : receives_, &post); }

const kernels::DeviceQueue& CopyQueue::get() {
  if (!queue_) queue_.emplace();
  return *queue_;
}

namespace {

bool is_on_gpu(const Post& post) { return post.data.device() == Device::cuda; }

void check_sides(const Post& send, const Post& receive) {
  if (send.data.type() != receive.data.type() || send.data.elements() != receive.data.elements())
    fail(ExitCode::internal, "rank {} sent {} {} ({}) where rank {} expected {} {}", send.source, send.data.elements(),
         kernels::name_of(send.data.type()), text_of_tag(send.tag), receive.destination, receive.data.elements(),
         kernels::name_of(receive.data.type()));
  if (is_on_gpu(send) != is_on_gpu(receive))
    fail(ExitCode::internal,
         "rank {} sent {} {} ({}) on {} where rank {} expected them on {}: both sides must lie there", send.source,
         send.data.elements(), kernels::name_of(send.data.type()), text_of_tag(send.tag),
         kernels::name_of(send.data.device()), receive.destination, kernels::name_of(receive.data.device()));
}

void queue_copy(Post& send, Post& receive, const kernels::DeviceQueue& queue) {
  const kernels::OnQueue here(queue);
  send.ready->hold_back();
  receive.ready->hold_back();
  receive.data.copy_from(send.data);
  const auto copied = std::make_shared<DeviceMark>();
  copied->record();
  send.copied = receive.copied = copied;
}

}  // namespace

void deliver(Post& send, Post& receive, CopyQueue& queue) {
  try {
    check_sides(send, receive);
    if (is_on_gpu(send)) queue_copy(send, receive, queue.get());
    else receive.data.copy_from(send.data);
  } catch (const std::exception& error) {  // the other side waits, and must be told as well
    send.error = receive.error = error.what();
  }
}

void come_after(const std::vector<Post>& posts) {
  for (const Post& post : posts)
    if (post.copied) post.copied->hold_back();
}

bool have_arrived(const std::vector<Post>& posts) {
  try {
    return std::all_of(posts.begin(), posts.end(),
                       [](const Post& post) { return !post.copied || post.copied->passed(); });
  } catch (const std::exception&) { return true; }  // the GPU has failed, and whoever waits for it is told so
}

void wait_for_copies(const std::vector<Post>& posts) noexcept {
  for (const Post& post : posts) try {
      if (post.copied) post.copied->wait();
    } catch (const std::exception&) {  // a GPU that has failed touches nothing
    }
}

}  // namespace capstan::parallel
