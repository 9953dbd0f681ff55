#pragma once
// In place of tests/support/simt/simt.h where tests/simt's sources are compiled for a real GPU: the same names. An order is only
// remembered: the GPU takes whichever it likes, and a test that goes through orders repeats its run as often.

#include <cstdint>

namespace simt {

struct Order {
  enum class Kind : std::uint8_t { forward, reverse, random };
  Kind kind = Kind::forward;
  std::uint64_t seed = 0;
  bool operator==(const Order&) const = default;
};
void set_order(Order order);
Order order();

/// Sizes of tests whose oracles can bear it are multiplied by this: GPU_SIZE, or 4.
std::int64_t size_factor();

/// A test's use of the GPU. Its end waits for all work; what went wrong there fails the test.
class Session {
 public:
  explicit Session(Order order = simt::order());
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

 private:
  Order before_;
};

}  // namespace simt
