/* Floats of 16 bits: __half (IEEE) and __nv_bfloat16, each operation rounded to their type; and pairs of them. */
#pragma once

/* The common part: `Bits` has static functions between 16 bits and a float. A sum, product or quotient of two such
 * numbers that is computed in fp32 and rounded to 16 bits is what it would be if it were rounded once. */
template <class Bits>
struct CudaFloat16 {
  unsigned short bits;
  CudaFloat16() = default;
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  CudaFloat16(T value) : bits(Bits::pack(static_cast<float>(value))) {}
  operator float() const { return Bits::unpack(bits); }

#define CUDA_FLOAT16_OPERATOR(op)                                                                            \
  friend CudaFloat16 operator op(CudaFloat16 a, CudaFloat16 b) {                                             \
    return CudaFloat16(static_cast<float>(a) op static_cast<float>(b));                                      \
  }                                                                                                          \
  CudaFloat16 &operator op##=(CudaFloat16 b) { return *this = *this op b; }
  CUDA_FLOAT16_OPERATOR(+)
  CUDA_FLOAT16_OPERATOR(-)
  CUDA_FLOAT16_OPERATOR(*)
  CUDA_FLOAT16_OPERATOR(/)
#undef CUDA_FLOAT16_OPERATOR
#define CUDA_FLOAT16_COMPARISON(op)                                                                          \
  friend bool operator op(CudaFloat16 a, CudaFloat16 b) { return static_cast<float>(a) op static_cast<float>(b); }
  CUDA_FLOAT16_COMPARISON(<)
  CUDA_FLOAT16_COMPARISON(<=)
  CUDA_FLOAT16_COMPARISON(>)
  CUDA_FLOAT16_COMPARISON(>=)
  CUDA_FLOAT16_COMPARISON(==)
  CUDA_FLOAT16_COMPARISON(!=)
#undef CUDA_FLOAT16_COMPARISON
  CudaFloat16 operator-() const {
    CudaFloat16 negative;
    negative.bits = bits ^ 0x8000;
    return negative;
  }
  CudaFloat16 operator+() const { return *this; }
};

struct CudaHalfBits {
  static unsigned short pack(float value) {
    _Float16 half = static_cast<_Float16>(value);
    unsigned short bits;
    memcpy(&bits, &half, 2);
    return bits;
  }
  static float unpack(unsigned short bits) {
    _Float16 half;
    memcpy(&half, &bits, 2);
    return static_cast<float>(half);
  }
};

struct CudaBfloat16Bits {
  static unsigned short pack(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    if (value != value) return static_cast<unsigned short>(bits >> 16 | 0x40);
    return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to the nearest, ties to even
  }
  static float unpack(unsigned short half) {
    unsigned bits = static_cast<unsigned>(half) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
  }
};

using __half = CudaFloat16<CudaHalfBits>;
using half = __half;
using __nv_bfloat16 = CudaFloat16<CudaBfloat16Bits>;
using nv_bfloat16 = __nv_bfloat16;

#define CUDA_FUNCTIONS_OF_16_BITS(T, T2)                                                                     \
  inline bool __hgt(T a, T b) { return a > b; }                                                              \
  inline bool __hge(T a, T b) { return a >= b; }                                                             \
  inline bool __hlt(T a, T b) { return a < b; }                                                              \
  inline bool __hle(T a, T b) { return a <= b; }                                                             \
  inline bool __heq(T a, T b) { return a == b; }                                                             \
  inline bool __hisnan(T a) { return a != a; }                                                               \
  inline T __hadd(T a, T b) { return a + b; }                                                                \
  inline T __hsub(T a, T b) { return a - b; }                                                                \
  inline T __hmul(T a, T b) { return a * b; }                                                                \
  inline T __hdiv(T a, T b) { return a / b; }                                                                \
  inline T __hneg(T a) { return -a; }                                                                        \
  inline T __habs(T a) { return T(fabsf(a)); }                                                               \
  inline T __hmax(T a, T b) { return T(fmaxf(a, b)); }                                                       \
  inline T __hmin(T a, T b) { return T(fminf(a, b)); }                                                       \
  inline T __hfma(T a, T b, T c) {                                                                           \
    return T(static_cast<double>(float(a)) * float(b) + static_cast<double>(float(c)));                      \
  }                                                                                                          \
  inline T hexp(T a) { return T(expf(a)); }                                                                  \
  inline T hexp2(T a) { return T(exp2f(a)); }                                                                \
  inline T hexp10(T a) { return T(powf(10, a)); }                                                            \
  inline T hlog(T a) { return T(logf(a)); }                                                                  \
  inline T hlog2(T a) { return T(log2f(a)); }                                                                \
  inline T hlog10(T a) { return T(log10f(a)); }                                                              \
  inline T hsqrt(T a) { return T(sqrtf(a)); }                                                                \
  inline T hrsqrt(T a) { return T(1.0f / sqrtf(a)); }                                                        \
  inline T hrcp(T a) { return T(1.0f / float(a)); }                                                          \
  inline T hsin(T a) { return T(sinf(a)); }                                                                  \
  inline T hcos(T a) { return T(cosf(a)); }                                                                  \
  inline T htanh(T a) { return T(tanhf(a)); }                                                                \
  inline T hfloor(T a) { return T(floorf(a)); }                                                              \
  inline T hceil(T a) { return T(ceilf(a)); }                                                                \
  inline T htrunc(T a) { return T(truncf(a)); }                                                              \
  inline T hrint(T a) { return T(rintf(a)); }                                                                \
  struct alignas(4) T2 {                                                                                     \
    T x, y;                                                                                                  \
    T2() = default;                                                                                          \
    T2(T x, T y) : x(x), y(y) {}                                                                             \
  };                                                                                                         \
  inline T2 operator+(T2 a, T2 b) { return {a.x + b.x, a.y + b.y}; }                                         \
  inline T2 operator-(T2 a, T2 b) { return {a.x - b.x, a.y - b.y}; }                                         \
  inline T2 operator*(T2 a, T2 b) { return {a.x * b.x, a.y * b.y}; }                                         \
  inline T2 operator/(T2 a, T2 b) { return {a.x / b.x, a.y / b.y}; }                                         \
  inline T2 __hadd2(T2 a, T2 b) { return a + b; }                                                            \
  inline T2 __hsub2(T2 a, T2 b) { return a - b; }                                                            \
  inline T2 __hmul2(T2 a, T2 b) { return a * b; }                                                            \
  inline T2 __hfma2(T2 a, T2 b, T2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }             \
  inline T2 __halves2##T2(T a, T b) { return {a, b}; }

CUDA_FUNCTIONS_OF_16_BITS(__half, __half2)
CUDA_FUNCTIONS_OF_16_BITS(__nv_bfloat16, __nv_bfloat162)
using half2 = __half2;
using nv_bfloat162 = __nv_bfloat162;

inline half2 make_half2(__half x, __half y) { return {x, y}; }
inline half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline half2 __half2half2(__half x) { return {x, x}; }
inline half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
inline half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline half2 __float22half2_rn(float2 x) { return {__half(x.x), __half(x.y)}; }
inline float2 __half22float2(half2 x) { return {x.x, x.y}; }
inline float __half2float(__half x) { return x; }
inline __half __float2half(float x) { return __half(x); }
inline __half __float2half_rn(float x) { return __half(x); }
inline __half __low2half(half2 x) { return x.x; }
inline __half __high2half(half2 x) { return x.y; }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline __half __ushort_as_half(unsigned short bits) {
  __half x;
  x.bits = bits;
  return x;
}
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
