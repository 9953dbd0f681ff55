#pragma once
// How tests steer the emulator. docs/simt.md says what it does.

#include <cstddef>
#include <cstdint>
#include <string>

namespace simt {

/// In which order blocks, threads and streams run, where CUDA leaves it open. `forward`: by number, and of other streams only
/// what is waited for. `reverse`: by number downwards, and other streams first. `random`: as the seed has it.
struct Order {
  enum class Kind : std::uint8_t { forward, reverse, random };
  Kind kind = Kind::forward;
  std::uint64_t seed = 0;
  bool operator==(const Order&) const = default;
};
/// "forward", "reverse" or a number, the seed of a random order. Throws std::invalid_argument.
Order order_of(const std::string& text);

/// From now on. At first: what the environment variable SIMT_ORDER says, or forward.
void set_order(Order order);
Order order();

/// A test's use of the device, in an order of its own if it gives one. At the end of the scope what is queued and a fault are forgotten, and memory that is still allocated
/// (a scratch that an operation keeps) counts as never written.
class Session {
 public:
  explicit Session(Order order = simt::order());
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

 private:
  Order before_;
};

/// How much memory the device has.
void set_device_memory(std::size_t bytes);
/// How long a wait may last for what another thread of the host has yet to queue (60 s), before it is an error.
void set_patience(double seconds);
/// How many devices a program sees, and of which version (13000: 13.0; 0: none) their driver is. All devices share one memory
/// and one multiprocessor; streams belong to the device that their thread works with.
void set_devices(int count, int driver);

}  // namespace simt
