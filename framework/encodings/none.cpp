#include "framework/encoding.h"

namespace capstan::framework {

/// No position encoding (NoPE): the causal mask alone tells order.
std::unique_ptr<Encoding> make_none(const PositionConfig&, const EncodingShape&) {
  return std::make_unique<Encoding>();
}

}  // namespace capstan::framework
