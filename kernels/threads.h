#pragma once
// The threads of a rank. Results never depend on how many there are: work is cut by its shape alone, each piece is done
// by one thread, and pieces that share a result are added afterwards in their order.

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace capstan::kernels {

/// Threads that the calling rank computes with, itself among them; 1 until set. A rank is a thread (parallel/): the
/// setting and the workers are its own, and end with it. Workers that have nothing to do sleep.
void set_threads(int threads);
int threads();

/// A callable, borrowed.
template <class Signature> class FunctionRef;
template <class... Arguments> class FunctionRef<void(Arguments...)> {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>) FunctionRef(F&& f)
      : object_(const_cast<void*>(static_cast<const void*>(&f))), call_([](void* object, Arguments... arguments) {
          (*static_cast<std::remove_reference_t<F>*>(object))(arguments...);
        }) {}
  void operator()(Arguments... arguments) const { call_(object_, arguments...); }

 private:
  void* object_;
  void (*call_)(void*, Arguments...);
};

/// An extent in even pieces of at most `largest` (or 64): all but the last are as long, a multiple of 64.
struct Cut {
  Cut(std::int64_t extent_in, std::int64_t largest) : extent(extent_in) {
    const std::int64_t wanted = std::max<std::int64_t>(1, (extent + largest - 1) / largest);
    length = std::max<std::int64_t>(1, (extent + wanted * 64 - 1) / (wanted * 64)) * 64;
    pieces = (extent + length - 1) / length;
  }
  std::int64_t begin(std::int64_t piece) const { return piece * length; }
  std::int64_t end(std::int64_t piece) const { return std::min(extent, begin(piece) + length); }
  std::int64_t count(std::int64_t piece) const { return end(piece) - begin(piece); }
  std::int64_t extent, length, pieces;
};

/// body(i) for each i in [0, count), on whichever thread is free; returns when all are done. Inside a body it runs on the
/// calling thread. If bodies throw, the exception of the lowest i goes on, after all threads have stopped.
void parallel_for(std::int64_t count, FunctionRef<void(std::int64_t)> body);

/// body(begin, end) over pieces of `rows` rows that are independent of each other. cost: elements touched per row, so that
/// a piece is worth a thread's while. Pieces begin at multiples of `multiple`.
template <class Body> void parallel_rows(std::int64_t rows, std::int64_t cost, Body&& body, std::int64_t multiple = 1) {
  constexpr std::int64_t worthwhile = 1 << 15;
  std::int64_t piece = std::max<std::int64_t>(1, worthwhile / std::max<std::int64_t>(1, cost));
  piece = (piece + multiple - 1) / multiple * multiple;
  parallel_for((rows + piece - 1) / piece, [&](std::int64_t i) { body(i * piece, std::min(rows, (i + 1) * piece)); });
}

}  // namespace capstan::kernels
