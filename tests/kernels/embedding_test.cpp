#include "kernels/embedding.h"

#include <gtest/gtest.h>

#include "tests/support/gradient_check.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;

TEST(Embedding, HandSized) {
  for (const Device device : {Device::ref, Device::cpu}) {
    const Tensor w = tensor_of({3, 2}, DType::f32, device, {1, 2, 3, 4, 5, 6}),
                 ids = tensor_of({3}, DType::i32, device, {2, 0, 2});
    const Tensor y({3, 2}, DType::f32, device);
    embedding_forward(y, ids, w);
    EXPECT_EQ(values_of(y), (std::vector<double>{5, 6, 1, 2, 5, 6}));
    const Tensor dw = tensor_of({3, 2}, DType::f32, device, {1, 1, 1, 1, 1, 1});
    embedding_backward(dw, ids, y);
    EXPECT_EQ(values_of(dw), (std::vector<double>{2, 3, 1, 1, 11, 13}));
  }
}

TEST(Embedding, GradientMatchesDifferences) {
  const Tensor w = random_tensor({5, 3}, DType::f64, Device::ref, 1),
               dy = random_tensor({7, 3}, DType::f64, Device::ref, 2);
  const Tensor ids = random_ids({7}, Device::ref, 3, 0, 5), y = zeros_like(dy), dw = zeros_like(w);
  embedding_backward(dw, ids, dy);
  check_gradient({{"w", w, dw}}, [&] {
    embedding_forward(y, ids, w);
    return weighted_sum(y, dy);
  });
}

TEST(Embedding, CpuEqualsRef) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const Tensor w = random_tensor({31, 43}, type, Device::cpu, 1), dy = random_tensor({130, 43}, type, Device::cpu, 2);
    const Tensor ids = random_ids({130}, Device::cpu, 3, 0, 31), y = zeros_like(dy),
                 dw({31, 43}, DType::f32, Device::cpu);
    const Tensor W = converted(w, DType::f32, Device::ref), dY = converted(dy, DType::f32, Device::ref);
    const Tensor Ids = converted(ids, DType::i32, Device::ref), Y = zeros_like(dY), dW = zeros_like(W);
    embedding_forward(y, ids, w);
    embedding_forward(Y, Ids, W);
    EXPECT_EQ(values_of(y), values_of(Y));
    embedding_backward(dw, ids, dy);  // both add in the order of t
    embedding_backward(dW, Ids, dY);
    EXPECT_TRUE(same_bits(dw, dW));
    EXPECT_THROW(embedding_backward(Tensor({31, 43}, DType::bf16, Device::cpu), ids, dy), Error);
  }
}

TEST(Embedding, NamesAnIdOutOfRange) {
  for (const Device device : {Device::ref, Device::cpu}) {
    for (const double id : {-1.0, 3.0}) {
      const Tensor w({3, 2}, DType::f32, device), ids = tensor_of({1}, DType::i32, device, {id}),
                                                  y({1, 2}, DType::f32, device);
      try {
        embedding_forward(y, ids, w);
        FAIL() << "accepted " << id;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(fmt::format("token id {} at 0, of 3 words", id)), std::string::npos)
            << error.what();
      }
      EXPECT_THROW(embedding_backward(w, ids, y), Error);
    }
  }
}

}  // namespace
}  // namespace capstan::tests
