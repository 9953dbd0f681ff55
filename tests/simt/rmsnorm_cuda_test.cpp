// RMSNorm on the emulated GPU: the project's rule for errors, the same bits in every order, and nothing beyond its arrays.

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/rmsnorm.h"
#include "tests/simt/device_array.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;

constexpr double eps = 1e-5;

/// A tensor's copy in device memory, exactly as large.
class OnDevice {
 public:
  explicit OnDevice(const View& host) : host_(host), bytes_(static_cast<std::size_t>(host.bytes())) {
    std::vector<std::byte> content(bytes_.size());
    std::memcpy(content.data(), host.data(), content.size());
    bytes_.upload(content);
  }
  /// What it is now, where the host's copy lay. The view's device is only a name here: kernels look at type and shape.
  View view() const { return View(bytes_.data(), host_.type(), host_.device(), host_.shape()); }
  void download() const {
    const std::vector<std::byte> content = bytes_.values();
    std::memcpy(host_.data(), content.data(), content.size());
  }

 private:
  View host_;
  DeviceArray<std::byte> bytes_;
};

struct Results {
  Tensor y, dx, dw;
};

struct Shapes {
  std::int64_t T, C;
};

/// One run's inputs: numbers of `grid`, stored as `type`, dy wide if asked for. Results hold numbers before, too.
struct Problem {
  Tensor x, w, dy;
  Results out;
  Problem(DType type, Device device, Shapes shape, DType grid, bool wide_dy = false) {
    const auto [T, C] = shape;
    const auto make = [&](Shape extents, DType as, std::uint64_t seed) {
      return random_tensor(extents, as, device, seed, 1, grid);
    };
    x = make({T, C}, type, 1);
    w = make({C}, type, 2);
    dy = make({T, C}, wide_dy ? wide(type) : type, 3);
    out = {zeros_like(x), make({T, C}, type, 4), make({C}, wide(type), 5)};
  }
};

Results on_gpu(DType type, Shapes shape, Into into, bool wide_dy = false) {
  Problem p(type, Device::cpu, shape, type, wide_dy);
  const OnDevice x(p.x), w(p.w), dy(p.dy), y(p.out.y), dx(p.out.dx), dw(p.out.dw);
  cuda::rmsnorm_forward(y.view(), x.view(), w.view(), eps);
  cuda::rmsnorm_backward(dx.view(), dw.view(), dy.view(), x.view(), w.view(), eps, into);
  y.download();
  dx.download();
  dw.download();
  return std::move(p.out);
}

Results exactly(DType grid, Shapes shape, Into into) {
  Problem p(DType::f64, Device::ref, shape, grid);
  rmsnorm_forward(p.out.y, p.x, p.w, eps);
  rmsnorm_backward(p.out.dx, p.out.dw, p.dy, p.x, p.w, eps, into);
  return std::move(p.out);
}

/// The formulas in f32, one term after the other: the naive implementation of the rule.
Results naively(DType grid, Shapes shape, Into into) {
  Problem p(DType::f32, Device::ref, shape, grid);
  const auto [T, C] = shape;
  const float* const w = p.w.as<float>();
  float* const dw = p.out.dw.as<float>();
  for (std::int64_t t = 0; t < T; ++t) {
    const float *const x = p.x.as<float>() + t * C, *const dy = p.dy.as<float>() + t * C;
    float *const y = p.out.y.as<float>() + t * C, *const dx = p.out.dx.as<float>() + t * C;
    float squares = 0, mean = 0;
    for (std::int64_t c = 0; c < C; ++c) squares += x[c] * x[c];
    const float r = 1 / std::sqrt(squares / static_cast<float>(C) + static_cast<float>(eps));
    for (std::int64_t c = 0; c < C; ++c) mean += w[c] * dy[c] * (x[c] * r);
    mean /= static_cast<float>(C);
    for (std::int64_t c = 0; c < C; ++c) {
      y[c] = w[c] * (x[c] * r);
      dx[c] = (into == Into::add ? dx[c] : 0) + r * (w[c] * dy[c] - (x[c] * r) * mean);
      dw[c] += dy[c] * (x[c] * r);
    }
  }
  return std::move(p.out);
}

std::vector<Shapes> shapes() {
  std::vector<Shapes> all;
  for (const std::int64_t C : {1, 8, 40, 43, 64, 1000, 4096})
    for (const std::int64_t T : {1, 3, 70}) all.push_back({T, C});
  return all;
}

TEST(SimtRmsNorm, Accuracy) {
  const simt::Session session;
  for (const DType type : {DType::f32, DType::bf16})
    for (const Shapes shape : shapes())
      for (const Into into : {Into::overwrite, Into::add}) {
        const Results exact = exactly(type, shape, into), naive = naively(type, shape, into);
        for (const bool wide_dy : {false, true}) {
          if (wide_dy && type == DType::f32) continue;
          const Results gpu = on_gpu(type, shape, into, wide_dy);
          for (const auto tensor : {&Results::y, &Results::dx, &Results::dw})
            EXPECT_LE(relative_error(gpu.*tensor, exact.*tensor),
                      stored_bound((gpu.*tensor).view().type(), naive.*tensor, exact.*tensor))
                << name_of(type) << " " << shape.T << " " << shape.C << " " << (tensor == &Results::dw);
        }
      }
}

TEST(SimtRmsNorm, SameBitsInEveryOrder) {
  const simt::Session session;
  for (const DType type : {DType::f32, DType::bf16})
    for (const Shapes shape : {Shapes{70, 40}, {3, 1000}}) {
      const Results first = on_gpu(type, shape, Into::add);
      for (std::uint64_t repeat = 0; repeat < 20; ++repeat)
        for (const auto kind : {simt::Order::Kind::forward, simt::Order::Kind::reverse, simt::Order::Kind::random}) {
          simt::set_order({kind, repeat});
          const Results again = on_gpu(type, shape, Into::add);
          for (const auto tensor : {&Results::y, &Results::dx, &Results::dw})
            ASSERT_TRUE(same_bits(again.*tensor, first.*tensor)) << repeat;
        }
    }
}

// A row's results do not depend on how many rows there are, and an absent dw leaves dx as it is.
TEST(SimtRmsNorm, RowsByThemselves) {
  const simt::Session session;
  const Problem p(DType::bf16, Device::cpu, {5, 1000}, DType::bf16);
  const OnDevice x(p.x), w(p.w), dy(p.dy), y(p.out.y), dx(p.out.dx), dw(p.out.dw), y_alone(p.out.y), dx_alone(p.out.dx);
  cuda::rmsnorm_forward(y.view(), x.view(), w.view(), eps);
  cuda::rmsnorm_backward(dx.view(), dw.view(), dy.view(), x.view(), w.view(), eps, Into::overwrite);
  for (std::int64_t t = 0; t < 5; ++t) {
    const auto row = [t](const OnDevice& all) { return all.view().rows(t, t + 1); };
    cuda::rmsnorm_forward(row(y_alone), row(x), w.view(), eps);
    cuda::rmsnorm_backward(row(dx_alone), View(), row(dy), row(x), w.view(), eps, Into::overwrite);
  }
  y.download();
  const Tensor together = p.out.y.clone();
  y_alone.download();
  EXPECT_TRUE(same_bits(p.out.y, together));
  dx.download();
  const Tensor dx_together = p.out.dx.clone();
  dx_alone.download();
  EXPECT_TRUE(same_bits(p.out.dx, dx_together));
}

TEST(SimtRmsNorm, NoRows) {
  const simt::Session session;
  const Problem p(DType::f32, Device::cpu, {0, 8}, DType::f32);
  const OnDevice w(p.w), dw(p.out.dw);
  const View none(nullptr, DType::f32, Device::cpu, Shape{0, 8});
  const Tensor before = p.out.dw.clone();
  cuda::rmsnorm_forward(none, none, w.view(), eps);
  cuda::rmsnorm_backward(none, dw.view(), none, none, w.view(), eps, Into::overwrite);
  dw.download();
  EXPECT_TRUE(same_bits(p.out.dw, before));
}

}  // namespace
}  // namespace capstan::tests
