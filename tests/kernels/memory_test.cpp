// kernels/memory.h: reuse, accounts, limits.

#include "kernels/memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/tensor.h"

namespace capstan::kernels {
namespace {

/// A thread of its own keeps nothing from other tests.
template <class Body> void on_new_thread(Body&& body) {
  std::thread thread(body);
  thread.join();
}

std::int64_t bytes_for(const std::string& name, std::int64_t MemoryLine::*what) {
  for (const MemoryLine& line : memory_report().lines)
    if (line.name == name) return line.*what;
  return 0;
}

TEST(Memory, IsGivenToTheNextTensorOfItsSize) {
  on_new_thread([] {
    void* first = nullptr;
    {
      const Tensor x({1000}, DType::f32, Device::cpu);
      first = x.view().data();
    }
    const std::int64_t taken = memory_report().taken;
    for (int repeat = 0; repeat < 100; ++repeat) {
      const Tensor x({1000}, DType::f32, Device::cpu);
      EXPECT_EQ(x.view().data(), first);
    }
    EXPECT_EQ(memory_report().taken, taken);
    const Tensor one({1000}, DType::f32, Device::cpu), two({1000}, DType::f32, Device::cpu);
    EXPECT_EQ(memory_report().taken, taken + 1);
  });
}

TEST(Memory, CountsPeaksAnewWhenAsked) {
  const MemoryPurpose purpose("peaks");
  const Tensor kept({1 << 20}, DType::u8, Device::cpu);
  { const Tensor big({1 << 24}, DType::u8, Device::cpu); }
  EXPECT_GE(bytes_for("peaks", &MemoryLine::peak), (1 << 20) + (1 << 24));
  restart_memory_peaks();
  EXPECT_EQ(bytes_for("peaks", &MemoryLine::peak), bytes_for("peaks", &MemoryLine::now));
  EXPECT_EQ(memory_report().peak, memory_report().now);
  { const Tensor middle({1 << 22}, DType::u8, Device::cpu); }
  EXPECT_EQ(bytes_for("peaks", &MemoryLine::peak), (1 << 20) + (1 << 22));
}

TEST(Memory, IsZeroUnlessAskedOtherwise) {
  on_new_thread([] {
    for (std::int64_t n : {1, 17, 4096, 100000}) {
      { std::memset(Tensor({n}, DType::u8, Device::cpu).view().data(), 0x5a, std::size_t(n)); }
      const Tensor again({n}, DType::u8, Device::cpu);
      for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(again.as<std::uint8_t>()[i], 0) << i << " of " << n;
    }
  });
}

TEST(Memory, BeginsWithALine) {
  for (std::int64_t n : {1, 63, 64, 65, 1000, 12345}) {
    const Tensor x({n}, DType::u8, Device::cpu);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(x.view().data()) % 64, 0u);
  }
}

TEST(Memory, IsCountedByPurpose) {
  on_new_thread([] {
    const MemoryPurpose outer("test outer");
    const Tensor x({1 << 20}, DType::u8, Device::cpu);
    EXPECT_EQ(bytes_for("test outer", &MemoryLine::now), 1 << 20);
    {
      const MemoryPurpose inner("test inner");
      const Tensor y({1 << 21}, DType::u8, Device::cpu);
      EXPECT_EQ(bytes_for("test inner", &MemoryLine::now), 1 << 21);
    }
    const Tensor z({1 << 19}, DType::u8, Device::cpu);
    EXPECT_EQ(bytes_for("test outer", &MemoryLine::now), 3 << 19);
  });
  EXPECT_EQ(bytes_for("test outer", &MemoryLine::now), 0);
  EXPECT_EQ(bytes_for("test outer", &MemoryLine::peak), 3 << 19);
  EXPECT_EQ(bytes_for("test inner", &MemoryLine::peak), 1 << 21);
}

TEST(Memory, MayEndOnAnotherThread) {
  Tensor moved;
  on_new_thread([&] {
    const MemoryPurpose purpose("test moved");
    moved = Tensor({4000}, DType::f32, Device::cpu);
    moved.as<float>()[0] = 3;
  });
  EXPECT_EQ(moved.as<float>()[0], 3);
  EXPECT_GT(bytes_for("test moved", &MemoryLine::now), 0);
  moved = {};
  EXPECT_EQ(bytes_for("test moved", &MemoryLine::now), 0);
}

TEST(Memory, OfSizesThatNoLongerComeIsGivenBack) {
  on_new_thread([] {
    constexpr std::int64_t mib = 1 << 20;
    for (std::int64_t size = 1; size <= 64; ++size) {
      const Tensor x({size * mib}, DType::u8, Device::cpu, Fill::none);
    }
    EXPECT_LE(memory_report().kept, 256 * mib);  // without a limit it were over a GiB
  });
}

TEST(Memory, IsReturnedWhenAThreadEnds) {
  const std::int64_t before = memory_report().kept;
  on_new_thread([] { const Tensor x({1 << 22}, DType::u8, Device::cpu); });
  EXPECT_LE(memory_report().kept, before);
}

}  // namespace
}  // namespace capstan::kernels
