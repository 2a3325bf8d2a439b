/* Tensor cores by fragments (WMMA): matrices that a warp holds together.
 *
 * A real warp spreads a fragment over its lanes in a way that is not documented. Here each lane has room for all of it,
 * and what the warp does, the last lane to come does with lane 0's. Floats are kept in fp32.
 */
#pragma once

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32 {};
}
constexpr unsigned ALIGNMENT = 32;  // bytes, of what load and store are given

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  using Kept = std::conditional_t<std::is_integral_v<T>, int, float>;
  static constexpr int rows = std::is_same_v<Use, matrix_b> ? K : M;
  static constexpr int columns = std::is_same_v<Use, matrix_a> ? K : N;
  static constexpr int num_elements = rows * columns;
  Kept x[num_elements];
};

struct Load {
  template <class Kept, class T>
  void operator()(Kept &kept, const T &at) const {
    kept = static_cast<Kept>(at);
  }
};
struct Store {
  template <class Kept, class T>
  void operator()(const Kept &kept, T &at) const {
    at = static_cast<T>(kept);
  }
};

/* Calls `Move` for each element of a fragment and its place in memory, once for the warp. */
template <class F, class T, class Move>
void move(F &matrix, T *memory, unsigned stride, bool by_rows, Move) {
  struct Brought {
    F *matrix;
    T *memory;
    unsigned stride;
    bool by_rows;
  } own = {&matrix, memory, stride, by_rows};
  static const char kind = 0;
  cuda_on_cpu::meet(&own, &kind, [](void **lanes) {
    const Brought &first = *static_cast<Brought *>(lanes[0]);
    for (unsigned i = 0; i < cuda_on_cpu::WARP; i++) {
      auto *other = static_cast<Brought *>(lanes[i]);
      if (!other || other->memory != first.memory || other->stride != first.stride)
        cuda_on_cpu::fail("a warp's lanes give a matrix different places");
    }
    if (reinterpret_cast<uintptr_t>(first.memory) % ALIGNMENT) cuda_on_cpu::fail("a matrix is not aligned to 32 bytes");
    if (first.stride * sizeof(T) % 16) cuda_on_cpu::fail("a matrix's stride is no multiple of 16 bytes");
    for (int i = 0; i < F::rows; i++)
      for (int j = 0; j < F::columns; j++)
        Move()(first.matrix->x[i * F::columns + j],
               first.memory[first.by_rows ? i * first.stride + j : j * first.stride + i]);
  });
}

template <class Use, int M, int N, int K, class T, class Layout, class V>
void fill_fragment(fragment<Use, M, N, K, T, Layout> &matrix, V value) {
  for (auto &element : matrix.x) element = value;
}

template <class Use, int M, int N, int K, class T, class Layout, class P>
void load_matrix_sync(fragment<Use, M, N, K, T, Layout> &matrix, const P *memory, unsigned stride) {
  move(matrix, memory, stride, !std::is_same_v<Layout, col_major>, Load());
}

template <int M, int N, int K, class T, class P>
void load_matrix_sync(fragment<accumulator, M, N, K, T> &matrix, const P *memory, unsigned stride, layout_t layout) {
  move(matrix, memory, stride, layout == mem_row_major, Load());
}

template <int M, int N, int K, class T, class P>
void store_matrix_sync(P *memory, const fragment<accumulator, M, N, K, T> &matrix, unsigned stride, layout_t layout) {
  move(matrix, memory, stride, layout == mem_row_major, Store());
}

/* The nearest number of TF32, which has 10 bits of a fraction; halves away from zero, as `cvt.rna` does. */
inline float __float_to_tf32(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof x);
  if (std::isfinite(x)) bits = (bits + 0x1000) & ~0x1fffu;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* d = a b + c. Products are exact; sums are in fp32 in the order of the inner dimension, where a real tensor core adds
 * several products at once in an order and a width of its own. */
template <int M, int N, int K, class D, class TA, class LA, class TB, class LB>
void mma_sync(fragment<accumulator, M, N, K, D> &d, const fragment<matrix_a, M, N, K, TA, LA> &a,
              const fragment<matrix_b, M, N, K, TB, LB> &b, const fragment<accumulator, M, N, K, D> &c) {
  using Out = fragment<accumulator, M, N, K, D>;
  using A = fragment<matrix_a, M, N, K, TA, LA>;
  using B = fragment<matrix_b, M, N, K, TB, LB>;
  struct Brought {
    Out *d;
    const A *a;
    const B *b;
    const Out *c;
  } own = {&d, &a, &b, &c};
  static const char kind = 0;
  cuda_on_cpu::meet(&own, &kind, [](void **lanes) {
    const Brought &it = *static_cast<Brought *>(lanes[0]);
    Out sum = *it.c;
    cuda_on_cpu::multiply_add(it.a->x, it.b->x, sum.x, M, N, K);
    if constexpr (!std::is_integral_v<D>)
      for (auto &element : sum.x) element = static_cast<D>(element);
    *it.d = sum;
  });
}
}  // namespace wmma
}  // namespace nvcuda
