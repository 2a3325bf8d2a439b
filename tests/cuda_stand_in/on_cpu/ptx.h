/* The instructions of PTX that generated code has in assembly: matrices by registers. `ptx.py` writes calls to these. */
#pragma once

namespace cuda_on_cpu {

template <class T>
T from_bits(unsigned bits) {
  T value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T>
unsigned to_bits(T value) {
  unsigned bits = 0;
  memcpy(&bits, &value, sizeof value);
  return bits;
}

/* st.shared of 4 bytes each. */
template <class... T>
void store_shared(unsigned address, T... values) {
  unsigned *at = static_cast<unsigned *>(shared_pointer(address));
  ((*at++ = to_bits(values)), ...);
}

/* ld.shared of 4 bytes. */
template <class T>
void load_shared(unsigned address, T &into) {
  into = from_bits<T>(*static_cast<unsigned *>(shared_pointer(address)));
}

/* ldmatrix .m8n8 .xN: lanes 8 i to 8 i + 7 give the addresses of the rows of matrix i, of 8 elements of 16 bits. Lane l
 * takes elements 2 (l % 4) and the next of row l / 4 of each matrix; transposed, of column l / 4. */
template <bool transposed, class... R>
void load_matrices(unsigned address, R &...registers) {
  constexpr int count = sizeof...(R);
  struct Brought {
    const unsigned short *row;
    unsigned taken[count];
  } own = {static_cast<const unsigned short *>(shared_pointer(address)), {}};
  static const char kind = 0;
  meet(&own, &kind, [](void **lanes) {
    for (int matrix = 0; matrix < count; matrix++)
      for (int i = 0; i < static_cast<int>(WARP); i++) {
        unsigned pair = 0;
        for (int half = 0; half < 2; half++) {
          int across = i % 4 * 2 + half, down = i / 4;
          int row = transposed ? across : down, column = transposed ? down : across;
          const auto *begin = static_cast<Brought *>(lanes[matrix * 8 + row])->row;
          if (reinterpret_cast<uintptr_t>(begin) % 16) fail("a row of ldmatrix is not aligned to 16 bytes");
          pair |= static_cast<unsigned>(begin[column]) << 16 * half;
        }
        static_cast<Brought *>(lanes[i])->taken[matrix] = pair;
      }
  });
  int next = 0;
  ((registers = from_bits<R>(own.taken[next++])), ...);
}

/* mma.sync .m16n8kK .row .col: d = a b + c. Which lane holds which element is in the PTX ISA's "Matrix fragments for
 * mma.m16n8k16 with floating point type": in each tile of 8 rows and four registers' width, lane l holds row l / 4,
 * and of it the elements that register l % 4 has room for. */
template <int K, class Operand, class Sum>
struct Mma {
  static constexpr int M = 16, N = 8;
  static constexpr int PACKED = 4 / sizeof(Operand);   // elements in a register of a and b
  static constexpr int TILE = 4 * PACKED;              // elements of the inner dimension that four lanes hold
  static constexpr int TILES = K / TILE;
  static constexpr int SUMS = 4 / (4 / sizeof(Sum));   // registers of c and d
  using Wide = std::conditional_t<std::is_integral_v<Operand>, int, float>;

  struct Brought {
    unsigned a[2 * TILES], b[TILES], c[4], d[4];
  };

  static Wide element(unsigned packed, int which) {
    return static_cast<Wide>(from_bits<Operand>(packed >> 8 * sizeof(Operand) * which));
  }
  /* Of c and d, lane l holds elements 2 (l % 4) and the next of row l / 4, and those eight rows below. */
  static int row(int lane, int which) { return lane / 4 + which / 2 * 8; }
  static int column(int lane, int which) { return lane % 4 * 2 + which % 2; }
  static unsigned &sum_register(unsigned *of, int which) { return of[sizeof(Sum) == 4 ? which : which / 2]; }
  static int sum_shift(int which) { return sizeof(Sum) == 4 ? 0 : which % 2 * 16; }

  static void act(void **lanes) {
    Wide a[M * K], b[K * N], c[M * N];
    for (int lane = 0; lane < static_cast<int>(WARP); lane++) {
      auto &own = *static_cast<Brought *>(lanes[lane]);
      for (int tile = 0; tile < TILES; tile++)
        for (int i = 0; i < PACKED; i++) {
          int inner = tile * TILE + lane % 4 * PACKED + i;
          b[inner * N + lane / 4] = element(own.b[tile], i);
          for (int below = 0; below < 2; below++)
            a[(lane / 4 + below * 8) * K + inner] = element(own.a[tile * 2 + below], i);
        }
      for (int i = 0; i < 4; i++)
        c[row(lane, i) * N + column(lane, i)] =
            static_cast<Wide>(from_bits<Sum>(sum_register(own.c, i) >> sum_shift(i)));
    }
    multiply_add(a, b, c, M, N, K);
    for (int lane = 0; lane < static_cast<int>(WARP); lane++) {
      auto &own = *static_cast<Brought *>(lanes[lane]);
      memset(own.d, 0, sizeof own.d);
      for (int i = 0; i < 4; i++)
        sum_register(own.d, i) |= to_bits(static_cast<Sum>(c[row(lane, i) * N + column(lane, i)])) << sum_shift(i);
    }
  }
};

template <int K, class Operand, class Sum, class D, size_t d_count, class A, size_t a_count, class B, size_t b_count,
          class C, size_t c_count>
void multiply_matrices(D *(&&d)[d_count], const A (&a)[a_count], const B (&b)[b_count], const C (&c)[c_count]) {
  using Shape = Mma<K, Operand, Sum>;
  typename Shape::Brought own = {};
  static_assert(a_count == 2 * Shape::TILES && b_count == Shape::TILES && d_count == c_count,
                "other registers than this shape has");
  for (size_t i = 0; i < a_count; i++) own.a[i] = to_bits(a[i]);
  for (size_t i = 0; i < b_count; i++) own.b[i] = to_bits(b[i]);
  for (size_t i = 0; i < c_count; i++) own.c[i] = to_bits(c[i]);
  static const char kind = 0;
  meet(&own, &kind, Shape::act);
  for (size_t i = 0; i < d_count; i++) *d[i] = from_bits<D>(own.d[i]);
}
}  // namespace cuda_on_cpu

/* An address of shared memory as PTX has it: `ptx.py` and generated code ask for these. */
inline unsigned __cvta_generic_to_shared(const void *pointer) { return cuda_on_cpu::shared_address(pointer); }
