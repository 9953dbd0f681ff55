#include "tests/support/large_tensors.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace capstan::tests {

using kernels::Shape;
using kernels::View;

namespace {

void* reserve(std::int64_t bytes) {
  void* memory =
      mmap(nullptr, std::size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CAPSTAN_CHECK(memory != MAP_FAILED, "{} bytes of address space: {}", bytes, std::strerror(errno));
  return memory;
}

/// Two copies of `rows` in a file that is memory.
int make_file(const View& rows) {
  const int file = memfd_create("capstan repeated rows", MFD_CLOEXEC);
  CAPSTAN_CHECK(file >= 0 && ftruncate(file, 2 * rows.bytes()) == 0, "memfd: {}", std::strerror(errno));
  void* both = mmap(nullptr, std::size_t(2 * rows.bytes()), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  CAPSTAN_CHECK(both != MAP_FAILED, "mmap: {}", std::strerror(errno));
  std::memcpy(both, rows.data(), std::size_t(rows.bytes()));
  std::memcpy(static_cast<char*>(both) + rows.bytes(), rows.data(), std::size_t(rows.bytes()));
  munmap(both, std::size_t(2 * rows.bytes()));
  return file;
}

Shape repeated_shape(const View& rows, std::int64_t count) {
  std::vector<std::int64_t> extents{count * rows.dim(0)};
  for (int axis = 1; axis < rows.shape().rank(); ++axis) extents.push_back(rows.dim(axis));
  return Shape(extents);
}

}  // namespace

SparseTensor::SparseTensor(Shape shape, kernels::DType type, kernels::Device device)
    : memory_(reserve(shape.elements() * kernels::size_of(type))), view_(memory_, type, device, shape) {
  madvise(memory_, std::size_t(view_.bytes()), MADV_NOHUGEPAGE);  // one page per touch, not 2 MiB
}

SparseTensor::~SparseTensor() { munmap(memory_, std::size_t(view_.bytes())); }

RepeatedTensor::RepeatedTensor(const View& rows, std::int64_t count)
    : memory_(reserve(count * rows.bytes())), rows_(rows.dim(0)),
      view_(memory_, rows.type(), rows.device(), repeated_shape(rows, count)) {
  CAPSTAN_CHECK(rows.bytes() % sysconf(_SC_PAGESIZE) == 0, "{} bytes are no whole pages", rows.bytes());
  const int file = make_file(rows);
  for (std::int64_t n = 0; n < count; ++n) {
    const void* at = mmap(static_cast<char*>(memory_) + n * rows.bytes(), std::size_t(rows.bytes()),
                          PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, n + 1 < count ? 0 : rows.bytes());
    CAPSTAN_CHECK(at != MAP_FAILED, "mapping {} of {}: {}", n, count, std::strerror(errno));
  }
  close(file);
}

RepeatedTensor::~RepeatedTensor() { munmap(memory_, std::size_t(view_.bytes())); }

}  // namespace capstan::tests
