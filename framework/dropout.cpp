#include "framework/dropout.h"

#include "kernels/dropout.h"

namespace capstan::framework {

void drop(const kernels::View& x, const kernels::View& index, const Dropout& dropout, int layer,
          std::string_view site) {
  if (dropout.rate == 0) return;
  const std::int64_t tokens = index.dim(1);
  for (std::int64_t b = 0; b < index.dim(0); ++b)
    kernels::apply_dropout(x.rows(b * tokens, (b + 1) * tokens), index[b].reshape({1, tokens}), dropout.rate,
                           dropout_seed(dropout.draws.at(std::size_t(b)), layer, site));
}

}  // namespace capstan::framework
