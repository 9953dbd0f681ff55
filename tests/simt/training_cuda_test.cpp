// Optimiser, norms, TAPE's position MLP, and the state around attention, on the emulated GPU.

#include <cmath>
#include <limits>

#include "kernels/adamw.h"
#include "kernels/attention_tile.h"
#include "kernels/global_norm.h"
#include "kernels/position_mlp.h"
#include "tests/simt/device_calls.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using namespace kernels;
using Views = std::vector<View>;

class SimtTraining : public OnGpu {};

/// v[0] = w, v[1] = m, v[2] = v, v[3] = g, v[4] = another w. Second moments are squares.
Call adamw(std::int64_t n, std::int64_t step) {
  const AdamW settings{1e-2, 0.9, 0.95, 1e-8, 0.1, step};
  Argument moment = out({n});
  for (std::int64_t i = 0; i < n; ++i) moment.values.push_back(std::pow(normal(9, std::uint64_t(i)), 2));
  Call call{{out({n}), out({n}), moment, in({n}), out({n})}, [=](const Views& v) {
              adamw_step(v[0], v[1], v[2], v[3], settings);
              sgd_step(v[4], v[3], 0.3);
            }};
  call.naive = [=](const Views& v) {
    const float b1 = 0.9f, b2 = 0.95f, c1 = 1 - std::pow(b1, float(step)), c2 = 1 - std::pow(b2, float(step));
    for (std::int64_t i = 0; i < n; ++i) {
      float &w = v[0].as<float>()[i], &m = v[1].as<float>()[i], &s = v[2].as<float>()[i], g = v[3].as<float>()[i];
      m = b1 * m + (1 - b1) * g;
      s = b2 * s + (1 - b2) * g * g;
      w -= 1e-2f * (m / c1 / (std::sqrt(s / c2) + 1e-8f) + 0.1f * w);
      v[4].as<float>()[i] -= 0.3f * g;
    }
  };
  return call;
}

TEST_F(SimtTraining, AdamW) {
  for (const std::int64_t n : {0, 1, 3, 8, 43, 1000})
    for (const std::int64_t step : {1, 100}) expect_accurate(adamw(n, step), "adamw", false);
  expect_same_bits(adamw(1000, 7), false);
}

TEST_F(SimtTraining, SumOfSquares) {
  for (const std::int64_t n : {0, 1, 3, 43, 1000, (1 << 16) + 77}) {
    const Tensor x = random_tensor({n}, DType::f32, Device::cpu, 1), gpu = on_device(x, Device::cuda);
    const double expected = sum_of_squares(x), got = sum_of_squares(gpu);
    EXPECT_NEAR(got, expected, 1e-13 * expected);
    for (const auto kind : {simt::Order::Kind::reverse, simt::Order::Kind::random}) {
      simt::set_order({kind, 3});
      EXPECT_EQ(sum_of_squares(gpu), got);
    }
    simt::set_order({});
  }
}

struct Heads {
  std::int64_t T, G, D, I;
};

/// v[0] z', v[1] dz, v[2] dp, v[3] dgate, v[4] dalpha, v[5] dw_up, v[6] dw_down; v[7] dz', z, p, gate, alpha, w_up, w_down.
Call position_mlp(const Heads& e, bool frozen = false) {
  const auto [T, G, D, I] = e;
  const Shape zs{T, G, D}, up{I, G}, down{G, I}, mix{G, G};
  Call call;
  call.arguments = {out(zs), out(zs), out(zs), out({T, I}), out(mix), out(up), out(down),
                    in(zs),  in(zs),  in(zs),  in({T, I}),  in(mix),  in(up),  in(down)};
  call.run = [=](const Views& v) {
    position_mlp_forward(v[0], v[8], v[9], v[10], v[11], v[12], v[13]);
    const View none;
    position_mlp_backward({v[1], v[2], v[3], frozen ? none : v[4], v[5], frozen ? none : v[6]}, v[7], v[8], v[9], v[10],
                          v[11], v[12], v[13]);
  };
  if (frozen) return call;
  call.naive = [=](const Views& v) {
    const auto f = [&](std::size_t i) { return v[i].as<float>(); };
    for (std::int64_t t = 0; t < T; ++t) {
      const float *const dn = f(7) + t * G * D, *const z = f(8) + t * G * D, *const p = f(9) + t * G * D,
                         *const gate = f(10) + t * I;
      for (std::int64_t i = 0; i < I; ++i) f(3)[t * I + i] = 0;
      for (std::int64_t d = 0; d < D; ++d) {
        std::vector<float> zc, a, db, dzc;
        for (std::int64_t g = 0; g < G; ++g) {
          zc.push_back(z[g * D + d]);
          for (std::int64_t h = 0; h < G; ++h) zc.back() += f(11)[g * G + h] * p[h * D + d];
        }
        for (std::int64_t i = 0; i < I; ++i) {
          a.push_back(0);
          db.push_back(0);
          for (std::int64_t g = 0; g < G; ++g) {
            a.back() += f(12)[i * G + g] * zc[std::size_t(g)];
            db.back() += f(13)[g * I + i] * dn[g * D + d];
          }
          f(3)[t * I + i] += a.back() * db.back();
        }
        for (std::int64_t g = 0; g < G; ++g) {
          float next = zc[std::size_t(g)], back = dn[g * D + d];
          for (std::int64_t i = 0; i < I; ++i) {
            const float b = gate[i] * a[std::size_t(i)], da = gate[i] * db[std::size_t(i)];
            next += f(13)[g * I + i] * b;
            back += f(12)[i * G + g] * da;
            f(6)[g * I + i] += dn[g * D + d] * b;
            f(5)[i * G + g] += da * zc[std::size_t(g)];
          }
          f(0)[(t * G + g) * D + d] = next;
          f(1)[(t * G + g) * D + d] += back;
          dzc.push_back(back);
        }
        for (std::int64_t g = 0; g < G; ++g) {
          float dp = 0;
          for (std::int64_t h = 0; h < G; ++h) {
            dp += f(11)[h * G + g] * dzc[std::size_t(h)];
            f(4)[g * G + h] += dzc[std::size_t(g)] * p[h * D + d];
          }
          f(2)[(t * G + g) * D + d] = dp;
        }
      }
    }
  };
  return call;
}

TEST_F(SimtTraining, PositionMlp) {
  for (const Heads& e : {Heads{0, 2, 8, 8}, {1, 1, 1, 1}, {3, 2, 8, 8}, {5, 3, 40, 12}, {2, 2, 43, 5}, {40, 2, 64, 8}})
    expect_accurate(position_mlp(e), "position_mlp " + std::to_string(e.D), false);
  expect_accurate(position_mlp({2, 32, 40, 128}), "the widest position_mlp", false);
  expect_accurate(position_mlp({3, 2, 8, 8}, true), "frozen position_mlp", false);
  expect_same_bits(position_mlp({20, 2, 40, 8}), false);
}

TEST_F(SimtTraining, ComplexMagnitude) {
  for (const Shape& shape : {Shape{0, 2, 8}, Shape{1, 1, 2}, Shape{5, 3, 40}, Shape{70, 5, 128}}) {
    const Tensor z = random_tensor(shape, DType::f32, Device::cpu, 1);
    const MagnitudeSum expected = complex_magnitude(z), got = complex_magnitude(on_device(z, Device::cuda));
    EXPECT_NEAR(got.sum, expected.sum, 1e-12 * expected.sum);
    EXPECT_EQ(got.max, expected.max);
    EXPECT_EQ(got.count, expected.count);
  }
}

/// v[0] o, v[1] m, v[2] l, v[3] delta, v[4] d_o, v[5] another o.
Call attention_state(std::int64_t T, std::int64_t H, std::int64_t E) {
  const Argument l = integers({T, H}, Stored::wide, [](std::int64_t i) { return 1 + i % 7; });
  return {{out({T, H, E}, Stored::wide), out({T, H}, Stored::wide), l, out({T, H}, Stored::wide), in({T, H, E}),
           in({T, H, E})},
          [](const Views& v) {
            attention_finish({v[0], v[1], v[2], {}, {}});
            attention_delta(v[3], v[4], v[5]);
          }};
}

TEST_F(SimtTraining, AttentionState) {
  for (const std::int64_t E : {1, 3, 40, 64, 200})
    for (const std::int64_t T : {0, 1, 13}) expect_accurate(attention_state(T, 3, E), "attention state");
  expect_same_bits(attention_state(13, 3, 40));
}

TEST_F(SimtTraining, RowsThatSawNoKey) {
  const Tensor o = on_device(random_tensor({1, 2, 3}, DType::f32, Device::cpu, 1), Device::cuda),
               m = on_device(tensor_of({1, 2}, DType::f32, Device::cpu, {-1e30, 2}), Device::cuda),
               l = on_device(tensor_of({1, 2}, DType::f32, Device::cpu, {0, 1}), Device::cuda), before = o.clone();
  attention_finish({o, m, l, {}, {}});
  EXPECT_EQ(host_values<float>(m), (std::vector<float>{std::numeric_limits<float>::infinity(), 2}));
  EXPECT_EQ(host_values<float>(o.view().reshape({2, 3})[0]), std::vector<float>(3));
  EXPECT_EQ(host_values<float>(o.view().reshape({2, 3})[1]), host_values<float>(before.view().reshape({2, 3})[1]));
}

TEST_F(SimtTraining, AttentionBegins) {
  const auto made = [](Device device) {
    const auto on = [device](const Tensor& x) { return on_device(x, device); };
    std::vector<Tensor> state;
    state.push_back(on(random_tensor({3, 2, 8}, DType::f32, Device::cpu, 1)));
    state.push_back(on(random_tensor({3, 2}, DType::f32, Device::cpu, 2)));
    state.push_back(on(random_tensor({3, 2}, DType::f32, Device::cpu, 3)));
    state.push_back(on(tensor_of({3, 2}, DType::i64, Device::cpu, {1, 2, 3, 4, 5, 6})));
    state.push_back(on(tensor_of({1, 2}, DType::i64, Device::cpu, {7, 8})));
    attention_begin({state[0], state[1], state[2], {state[3]}, {state[4]}});
    const Tensor gradient = on(random_tensor({3, 2}, DType::f32, Device::cpu, 4)),
                 carry = on(tensor_of({3, 2}, DType::i64, Device::cpu, {6, 5, 4, 3, 2, 1}));
    AttentionSaved saved;
    saved.carry[0] = carry;
    attention_backward_begin({{state[3]}, {gradient}}, saved);
    state.push_back(gradient.clone());
    return state;
  };
  const std::vector<Tensor> cpu = made(Device::cpu), gpu = made(Device::cuda);
  for (std::size_t i = 0; i < cpu.size(); ++i) EXPECT_TRUE(same_bits(on_device(gpu[i], Device::cpu), cpu[i])) << i;
}

}  // namespace
}  // namespace capstan::tests
