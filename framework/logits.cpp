#include "framework/logits.h"

#include <algorithm>

#include "framework/evaluation_batch.h"
#include "kernels/elementwise.h"
#include "kernels/host_view.h"

namespace capstan::framework {

Tensor all_logits(Model& model, parallel::Communicator& ring, const std::vector<std::int32_t>& ids, std::int64_t tile) {
  const std::int64_t length = std::ssize(ids), vocabulary = model.config().vocabulary;
  for (const std::int32_t id : ids)
    if (id < 0 || id >= vocabulary)
      fail(ExitCode::bad_data, "a token has id {}; the model knows ids 0 to {}; give the model its own tokenizer", id,
           vocabulary - 1);
  const parallel::Ring shared = model.make_ring(ring, length, tile);
  const std::vector<std::int64_t> index = shared.layout.local_index(ring.rank());
  const std::vector<std::int32_t> no_targets(ids.size(), -1);
  const Batch batch = evaluation_batch(ids, no_targets, index, model.position().length, model.device());
  const Pass pass = model.forward(shared, batch, tile, Keep::nothing);

  // Every rank knows its rows; others add zeros.
  Tensor all({length, vocabulary}, DType::f32, Device::ref);
  constexpr std::int64_t at_once = 256;  // rows
  for (std::int64_t begin = 0; begin < std::ssize(index); begin += at_once) {
    const std::int64_t end = std::min(begin + at_once, std::ssize(index));
    const Tensor logits = model.logits(pass.xn.view().rows(begin, end));
    const Tensor narrow(logits.shape(), DType::f32, model.device(), kernels::Fill::none);
    kernels::convert(narrow, logits);
    const std::vector<float> rows = kernels::host_values<float>(narrow);
    for (std::int64_t i = begin; i < end; ++i)
      std::copy_n(rows.data() + (i - begin) * vocabulary, vocabulary,
                  all.as<float>() + index[std::size_t(i)] * vocabulary);
  }
  ring.all_reduce(all);
  return all;
}

}  // namespace capstan::framework
