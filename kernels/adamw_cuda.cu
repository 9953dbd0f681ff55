#include "kernels/adamw.h"
#include "kernels/adamw_factors.h"
#include "kernels/elements.cuh"

namespace capstan::kernels::cuda {

namespace {

struct Update {
  static constexpr int pack = widest<float>;
  float *w, *m, *v;
  const float* g;
  AdamWFactors f;
  template <int V> __device__ void at(std::int64_t i) const {
    Pack<float, V> W = load<V>(w + i), M = load<V>(m + i), S = load<V>(v + i);
    const Pack<float, V> G = load<V>(g + i);
    for (int k = 0; k < V; ++k) {
      // m = β1 m + (1-β1) g;  v = β2 v + (1-β2) g²
      M.at[k] = f.keep1 * M.at[k] + f.take1 * G.at[k];
      S.at[k] = f.keep2 * S.at[k] + f.take2 * (G.at[k] * G.at[k]);
      // w -= lr (m̂ / (sqrt(v̂) + eps) + weight_decay w)
      W.at[k] -= f.rate * (M.at[k] / (sqrtf(S.at[k]) * f.root + f.eps)) + f.decay * W.at[k];
    }
    store(w + i, W);
    store(m + i, M);
    store(v + i, S);
  }
};

struct Descend {
  float rate;
  __device__ float operator()(float w, float g) const { return w - rate * g; }
};

}  // namespace

void adamw_step(const View& w, const View& m, const View& v, const View& g, const AdamW& settings) {
  const Update update{device_data<float>(w), device_data<float>(m), device_data<float>(v), device_data<float>(g),
                      factors_of(settings)};
  for_each_element(update, w.elements(), {w, m, v, g});
}

void sgd_step(const View& w, const View& g, double lr) {
  map_elements<float, float, float>(Descend{static_cast<float>(lr)}, w, w, g);
}

}  // namespace capstan::kernels::cuda
