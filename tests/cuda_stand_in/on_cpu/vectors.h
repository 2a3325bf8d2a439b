/* CUDA's vector types, with its alignments. */
#pragma once

template <class T>
struct alignas(2 * sizeof(T)) CudaVector2 {
  T x, y;
};
template <class T>
struct CudaVector3 {
  T x, y, z;
};
template <class T>
struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) CudaVector4 {
  T x, y, z, w;
};

#define CUDA_VECTORS(name, type)                                                                            \
  using name##2 = CudaVector2<type>;                                                                        \
  using name##4 = CudaVector4<type>;                                                                        \
  struct name##1 { type x; };                                                                               \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }                                          \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

#define CUDA_VECTORS_OF_3(name, type)                                                                       \
  using name##3 = CudaVector3<type>;                                                                        \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }

CUDA_VECTORS(char, signed char)
CUDA_VECTORS(uchar, unsigned char)
CUDA_VECTORS(short, short)
CUDA_VECTORS(ushort, unsigned short)
CUDA_VECTORS(int, int)
CUDA_VECTORS(uint, unsigned int)
CUDA_VECTORS(longlong, long long)
CUDA_VECTORS(ulonglong, unsigned long long)
CUDA_VECTORS(float, float)
CUDA_VECTORS(double, double)
CUDA_VECTORS_OF_3(char, signed char)
CUDA_VECTORS_OF_3(uchar, unsigned char)
CUDA_VECTORS_OF_3(short, short)
CUDA_VECTORS_OF_3(ushort, unsigned short)
CUDA_VECTORS_OF_3(int, int)
CUDA_VECTORS_OF_3(float, float)
CUDA_VECTORS_OF_3(double, double)
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
