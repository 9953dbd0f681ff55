#pragma once
// Values in device memory: read as float, rounded once when stored. The device's counterpart of bfloat16.h.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/tensor.h"

namespace capstan::kernels {

__device__ inline float value_of(float x) { return x; }
__device__ inline float value_of(__nv_bfloat16 x) { return __bfloat162float(x); }

/// x as an element of type T, to the nearest, ties to even.
template <class T> __device__ inline T element_of(float x) {
  if constexpr (std::is_same_v<T, float>) return x;
  else return __float2bfloat16(x);
}

/// N neighbours that are moved by one instruction (two, if they are more than 16 bytes).
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack { T at[N]; };
/// How many elements the widest load has.
template <class T> constexpr int widest = 16 / sizeof(T);

/// The elements of a view as the device names their type. The view lies in device memory.
template <class T> using DeviceType = std::conditional_t<std::is_same_v<T, BFloat16>, __nv_bfloat16, T>;
template <class T> DeviceType<T>* device_data(const View& view) {
  CAPSTAN_CHECK(view && view.type() == DTypeOf<T>::value, "view of {} read as {}", name_of(view.type()),
                name_of(DTypeOf<T>::value));
  return static_cast<DeviceType<T>*>(view.data());
}

/// Whether rows of C elements can be read in packs of `widest`: the address and every row's begin are 16-byte aligned.
inline bool in_packs(const View& view, std::int64_t C) {
  return reinterpret_cast<std::uintptr_t>(view.data()) % 16 == 0 && C * size_of(view.type()) % 16 == 0;
}

}  // namespace capstan::kernels
