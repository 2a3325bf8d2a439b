/* What WMMA does, by `ldmatrix` and `mma.sync`: fragments of 16 rows and 16 columns, for sums in fp32.
 *
 * CUDA compiles WMMA in fp16 to `ldmatrix` and to `mma` of 16 terms. In bf16 it loads 32 bits at a time by generic
 * addresses, and in TF32 it multiplies 4 terms at a time. So TVM's kernels in these have the fragments of this file,
 * whose operands lie in shared memory. A lane has the registers that the PTX ISA gives it ("Matrix fragments for mma"):
 * those of two products of 16 rows and 8 columns. A warp is 32 threads along x, as TVM's rules for tensor cores make it.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

namespace autotune {
namespace wmma {
using nvcuda::wmma::accumulator;
using nvcuda::wmma::col_major;
using nvcuda::wmma::layout_t;
using nvcuda::wmma::matrix_a;
using nvcuda::wmma::matrix_b;
using nvcuda::wmma::mem_row_major;
using nvcuda::wmma::row_major;

/* A register has two elements of 16 bits, or one of TF32, which TVM calls `half` where there are 8 terms. */
template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  unsigned x[4];
};
template <int K>
struct fragment<accumulator, 16, 16, K, float> {
  float x[8];
};

static __device__ inline unsigned lane() { return threadIdx.x % 32; }

template <bool transposed>
static __device__ inline void load_matrices(unsigned (&x)[4], const void* row) {
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address) : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address) : "memory");
  }
}

/* Where a lane's row of 16 bytes begins: of four matrices of 8 rows, the second lies below the first, or beside it. */
template <int width, class T>
static __device__ inline const T* below(const T* memory, unsigned stride) {
  return memory + lane() % 16 * stride + lane() / 16 * width;
}
template <int width, class T>
static __device__ inline const T* beside(const T* memory, unsigned stride) {
  return memory + (lane() % 8 + lane() / 16 * 8) * stride + lane() / 8 % 2 * width;
}

template <class T>
static __device__ inline void load_matrix_sync(fragment<matrix_a, 16, 16, 16, T, row_major>& matrix, const T* memory,
                                               unsigned stride) {
  load_matrices<false>(matrix.x, below<8>(memory, stride));
}
template <class T>
static __device__ inline void load_matrix_sync(fragment<matrix_b, 16, 16, 16, T, row_major>& matrix, const T* memory,
                                               unsigned stride) {
  load_matrices<true>(matrix.x, below<8>(memory, stride));
}
template <class T>
static __device__ inline void load_matrix_sync(fragment<matrix_b, 16, 16, 16, T, col_major>& matrix, const T* memory,
                                               unsigned stride) {
  load_matrices<false>(matrix.x, beside<8>(memory, stride));
}

/* To the nearest number of TF32. */
static __device__ inline void round_to_tf32(unsigned (&x)[4]) {
  for (int i = 0; i < 4; ++i) x[i] = __float_as_uint(nvcuda::wmma::__float_to_tf32(__uint_as_float(x[i])));
}
static __device__ inline void load_matrix_sync(fragment<matrix_a, 16, 16, 8, half, row_major>& matrix,
                                               const float* memory, unsigned stride) {
  load_matrices<false>(matrix.x, below<4>(memory, stride));
  round_to_tf32(matrix.x);
}
static __device__ inline void load_matrix_sync(fragment<matrix_b, 16, 16, 8, half, col_major>& matrix,
                                               const float* memory, unsigned stride) {
  load_matrices<false>(matrix.x, beside<4>(memory, stride));
  round_to_tf32(matrix.x);
}
/* `ldmatrix` transposes elements of 16 bits only. */
static __device__ inline void load_matrix_sync(fragment<matrix_b, 16, 16, 8, half, row_major>& matrix,
                                               const float* memory, unsigned stride) {
  for (int i = 0; i < 4; ++i)
    matrix.x[i] = __float_as_uint(memory[(lane() % 4 + i % 2 * 4) * stride + lane() / 4 + i / 2 * 8]);
  round_to_tf32(matrix.x);
}

/* d = a b + c, for eight columns. */
template <class T, int K>
struct Product;
template <>
struct Product<nv_bfloat16, 16> {
  static __device__ inline void add(float* d, const unsigned* a, const unsigned* b, const float* c) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]),
                   "f"(c[3]));
  }
};
template <>
struct Product<half, 16> {
  static __device__ inline void add(float* d, const unsigned* a, const unsigned* b, const float* c) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]),
                   "f"(c[3]));
  }
};
template <>
struct Product<half, 8> {
  static __device__ inline void add(float* d, const unsigned* a, const unsigned* b, const float* c) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]),
                   "f"(c[3]));
  }
};

template <int K, class T, class LayoutA, class LayoutB>
static __device__ inline void mma_sync(fragment<accumulator, 16, 16, K, float>& d,
                                       const fragment<matrix_a, 16, 16, K, T, LayoutA>& a,
                                       const fragment<matrix_b, 16, 16, K, T, LayoutB>& b,
                                       const fragment<accumulator, 16, 16, K, float>& c) {
  for (int side = 0; side < 2; ++side) Product<T, K>::add(d.x + 4 * side, a.x, b.x + 2 * side, c.x + 4 * side);
}

template <int K>
static __device__ inline void fill_fragment(fragment<accumulator, 16, 16, K, float>& matrix, float value) {
  for (int i = 0; i < 8; ++i) matrix.x[i] = value;
}

/* By rows, as all of TVM's kernels do. */
template <int K>
static __device__ inline void store_matrix_sync(float* memory, const fragment<accumulator, 16, 16, K, float>& matrix,
                                                unsigned stride, layout_t) {
  for (int i = 0; i < 4; ++i) {
    float* place = memory + (lane() / 4 + i % 2 * 8) * stride + lane() % 4 * 2 + i / 2 * 8;
    *reinterpret_cast<float2*>(place) = make_float2(matrix.x[2 * i], matrix.x[2 * i + 1]);
  }
}
}  // namespace wmma
}  // namespace autotune
