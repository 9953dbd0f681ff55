#pragma once
// Every score term, alone and with others.

#include <vector>

#include "tests/support/dense_attention.h"

namespace capstan::tests {

struct NamedShape {
  const char* name;
  AttentionShape shape;
};

std::vector<NamedShape> all_term_shapes();

}  // namespace capstan::tests
