/* CUDA C for a CPU's C++ compiler: the keywords, the variables and the functions that generated kernels use.
 *
 * The compiler includes it before everything else, as nvcc does cuda_runtime.h.
 */
#pragma once
#include <sys/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "block.h"

#define __CUDACC__
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline
#define __noinline__
#define __restrict__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)
#define __shared__ static __attribute__((section(SHARED_SECTION)))

#include "vectors.h"
#include "half.h"
#include "warp.h"
#include "fragments.h"
#include "ptx.h"

constexpr int warpSize = cuda_on_cpu::WARP;

inline void __syncthreads() { cuda_on_cpu::wait_for_block(); }
inline void __threadfence() {}
inline void __threadfence_block() {}

/* Elementary functions; those with underscores are exact here. */
using std::max;
using std::min;
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __fdividef(float x, float y) { return x / y; }
#define rsqrtf cuda_on_cpu_rsqrtf  // newer C libraries have these names
#define rsqrt cuda_on_cpu_rsqrt
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }

inline float __saturatef(float x) { return x < 0 ? 0 : x > 1 ? 1 : x; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __mulhi(int x, int y) { return static_cast<int>(static_cast<long long>(x) * y >> 32); }
inline unsigned __umulhi(unsigned x, unsigned y) { return static_cast<unsigned long long>(x) * y >> 32; }
inline int __float_as_int(float x) {
  int bits;
  memcpy(&bits, &x, 4);
  return bits;
}
inline float __int_as_float(int bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
inline unsigned __float_as_uint(float x) { return __float_as_int(x); }
inline float __uint_as_float(unsigned bits) { return __int_as_float(bits); }
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; i++) c += static_cast<signed char>(a >> 8 * i) * static_cast<signed char>(b >> 8 * i);
  return c;
}
template <class T>
inline T __ldg(const T *at) {
  return *at;
}

/* Atomics: atomic as they are to ThreadSanitizer, too. They return what was there before. */
template <class T, class F>
inline T cuda_on_cpu_update(T *at, F next) {
  T old;
  __atomic_load(at, &old, __ATOMIC_RELAXED);
  for (T wanted = next(old); !__atomic_compare_exchange(at, &old, &wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);)
    wanted = next(old);
  return old;
}
template <class T>
inline T atomicAdd(T *at, std::common_type_t<T> value) {
  return cuda_on_cpu_update(at, [=](T old) { return static_cast<T>(old + value); });
}
template <class T>
inline T atomicMax(T *at, std::common_type_t<T> value) {
  return cuda_on_cpu_update(at, [=](T old) { return old > value ? old : value; });
}
template <class T>
inline T atomicMin(T *at, std::common_type_t<T> value) {
  return cuda_on_cpu_update(at, [=](T old) { return old < value ? old : value; });
}
template <class T>
inline T atomicExch(T *at, std::common_type_t<T> value) {
  return cuda_on_cpu_update(at, [=](T) { return value; });
}
template <class T>
inline T atomicCAS(T *at, std::common_type_t<T> expected, std::common_type_t<T> value) {
  return cuda_on_cpu_update(at, [=](T old) { return old == expected ? value : old; });
}

namespace cuda_on_cpu {
/* The entry of a kernel: its arguments come as pointers to their values, as in cuLaunchKernel. */
template <auto kernel>
struct Kernel;
template <class... A, void (*kernel)(A...)>
struct Kernel<kernel> {
  static constexpr size_t sizes[] = {sizeof(A)..., 0};
  template <size_t... I>
  static void spread(void **arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_const_t<A> *>(arguments[I])...);
  }
  static void call(void **arguments) { spread(arguments, std::index_sequence_for<A...>{}); }
  static int run(void **arguments, const unsigned *grid, const unsigned *block, unsigned dynamic_bytes) {
    return launch(call, arguments, grid, block, dynamic_bytes);
  }
};
}  // namespace cuda_on_cpu

#define CUDA_ON_CPU_ENTRY(name)                                                                    \
  extern "C" __attribute__((visibility("default"))) const cuda_on_cpu::Entry cuda_on_cpu_##name;   \
  const cuda_on_cpu::Entry cuda_on_cpu_##name = {cuda_on_cpu::Kernel<name>::run, cuda_on_cpu::Kernel<name>::sizes};
