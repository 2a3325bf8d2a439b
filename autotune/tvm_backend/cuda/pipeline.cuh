/* Products of matrices on tensor cores, from sm_80 on: what `tensor_pipeline.py` has kernels call.
 *
 * A block computes a tile of results. Tiles of both operands come to shared memory some steps ahead (`cp.async`), warps
 * load fragments of the next step while they multiply those of this one (`ldmatrix`, `mma.sync`), and at the end the
 * results lie in shared memory, from where each thread takes those that lie together.
 *
 * An instruction multiplies 16 rows by 8 columns and sums 32 bytes of each: 16 terms of fp16 and bf16, 8 of TF32, 32 of
 * int8. A lane has the registers that the PTX ISA gives it ("Matrix fragments for mma"). A line of a tile lies in pieces
 * of 16 bytes, whose order changes from line to line, so that neither copies nor `ldmatrix` meet in a bank.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace autotune {
namespace pipeline {

constexpr int LANES = 32;
constexpr int PIECE = 16;        // bytes
constexpr int INSTRUCTION = 32;  // bytes of a row that one instruction sums
constexpr int ROWS = 16;         // of a fragment of either operand
constexpr int COLUMNS = 8;       // of an instruction

static __device__ __forceinline__ int lane() { return threadIdx.x % LANES; }
static __device__ __forceinline__ int warp() { return threadIdx.x / LANES; }

/* Division of what may be negative by what is positive, as TVM's programs have it. */
template <class T>
static __device__ __forceinline__ T floor_div(T x, int y) {
  return x / y - (x % y < 0);
}
template <class T>
static __device__ __forceinline__ T floor_mod(T x, int y) {
  return x % y + (x % y < 0 ? y : 0);
}

static __device__ __forceinline__ int bits_of(float x) { return __float_as_int(x); }
static __device__ __forceinline__ int bits_of(int x) { return x; }
static __device__ __forceinline__ void set_bits(float& x, int bits) { x = __int_as_float(bits); }
static __device__ __forceinline__ void set_bits(int& x, int bits) { x = bits; }

/* ---- Elements */

struct Fp16 {
  using Sum = float;
  static constexpr int SIZE = 2;
  static __device__ __forceinline__ void complete(unsigned&) {}
  static __device__ __forceinline__ void multiply(float* d, const unsigned* a, const unsigned* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

struct Bf16 {
  using Sum = float;
  static constexpr int SIZE = 2;
  static __device__ __forceinline__ void complete(unsigned&) {}
  static __device__ __forceinline__ void multiply(float* d, const unsigned* a, const unsigned* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

struct Tf32 {
  using Sum = float;
  static constexpr int SIZE = 4;
  /* To the nearest number: the instruction would cut off digits. */
  static __device__ __forceinline__ void complete(unsigned& x) {
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(x) : "f"(__uint_as_float(x)));
  }
  static __device__ __forceinline__ void multiply(float* d, const unsigned* a, const unsigned* b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

struct Int8 {
  using Sum = int;
  static constexpr int SIZE = 1;
  static __device__ __forceinline__ void complete(unsigned&) {}
  static __device__ __forceinline__ void multiply(int* d, const unsigned* a, const unsigned* b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

/* ---- Copies */

/* Copies BYTES to shared memory; zeros where there is nothing to copy. Only 16 bytes may bypass the L1 cache. */
template <int BYTES>
static __device__ __forceinline__ void copy_ahead(unsigned to, const void* from, bool inside) {
  int taken = inside ? BYTES : 0;
  if constexpr (BYTES == PIECE)
    asm volatile("cp.async.cg.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(taken));
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(taken));
}
static __device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::); }
template <int PENDING>
static __device__ __forceinline__ void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* ---- Tiles in shared memory */

/* A tile of an operand. BY_TERMS: a line has the terms of one row (or column); else it has one term of all of them. */
template <class Element, int SIDE, int STEPS, bool BY_TERMS>
struct Tile {
  static constexpr int SIZE = Element::SIZE;
  static constexpr int TERMS = STEPS * INSTRUCTION / SIZE;
  static constexpr int LINES = BY_TERMS ? SIDE : TERMS;
  static constexpr int PIECES = (BY_TERMS ? TERMS : SIDE) * SIZE / PIECE;  // of a line
  static constexpr int IN_PIECE = PIECE / SIZE;                           // elements
  static constexpr int BYTES = LINES * PIECES * PIECE;
  static_assert(PIECES >= 4, "a line has at least 64 bytes");

  /* Where a piece of a line lies, in bytes. Eight lines in a row have their pieces in eight different places of the 128
   * bytes of all banks. Lines of TF32 by columns are read as words, by four lines and two pieces at a time. */
  static __device__ __forceinline__ int place(int line, int piece) {
    int turn = PIECES == 4 ? line / 2 % 4 : !BY_TERMS && SIZE == 4 ? line % 4 * 2 : line % 8;
    return (line * PIECES + (piece ^ turn)) * PIECE;
  }

  /* Copies what a source has from a row (or column) and a term on. */
  template <int THREADS, class Source>
  static __device__ __forceinline__ void copy(unsigned tile, const Source& source, int side, int term) {
    constexpr int ALL = LINES * PIECES;
    constexpr int AT_ONCE = Source::TOGETHER * SIZE >= 4 ? ALL : 1;  // what is gathered takes registers
#pragma unroll AT_ONCE
    for (int first = 0; first < ALL; first += THREADS) {
      int number = first + static_cast<int>(threadIdx.x);
      if (ALL % THREADS && number >= ALL) break;
      int line = number / PIECES, piece = number % PIECES;
      int of_side = side + (BY_TERMS ? line : piece * IN_PIECE), of_terms = term + (BY_TERMS ? piece * IN_PIECE : line);
      copy_piece(tile + place(line, piece), source, of_side, of_terms);
    }
  }

  template <class Source>
  static __device__ __forceinline__ void copy_piece(unsigned to, const Source& source, int side, int term) {
    constexpr int WIDTH = Source::TOGETHER * SIZE >= 4 ? Source::TOGETHER : 1;
    if constexpr (WIDTH * SIZE >= 4) {
#pragma unroll
      for (int i = 0; i < IN_PIECE; i += WIDTH) {
        int s = BY_TERMS ? side : side + i, t = BY_TERMS ? term + i : term;
        bool inside = source.inside(s, t);
        copy_ahead<WIDTH * SIZE>(to + i * SIZE, inside ? source.data + source.offset(s, t) : source.data, inside);
      }
    } else {
      unsigned words[4] = {};
#pragma unroll
      for (int i = 0; i < IN_PIECE; ++i) {
        int s = BY_TERMS ? side : side + i, t = BY_TERMS ? term + i : term;
        if (source.inside(s, t)) words[i * SIZE / 4] |= source.bits(source.offset(s, t)) << i * SIZE % 4 * 8;
      }
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                   "r"(words[3]));
    }
  }

  /* Where a lane begins to read, in bytes, what lies from a row (or column) on. Of the four parts of a fragment, the
   * second is beside the first along the rows, or along the terms. What is later along a line is found by `^`. */
  template <bool ROWS_FIRST>
  static __device__ __forceinline__ int begin(int side) {
    int part = lane() / 8, below = ROWS_FIRST ? part % 2 : part / 2, beside = ROWS_FIRST ? part / 2 : part % 2;
    if (BY_TERMS) return place(side + below * 8 + lane() % 8, beside);
    if (SIZE == 2) return place(beside * 8 + lane() % 8, side / 8 + below);
    return place(lane() % 4, side / 4 + lane() / 16) + lane() / 4 % 4 * 4;
  }

  /* Loads the registers of a fragment of 16 rows (or columns) for one instruction. */
  template <bool ROWS_FIRST>
  static __device__ __forceinline__ void load(unsigned (&x)[4], unsigned tile, int begin, int fragment, int step) {
    constexpr int LINE = PIECES * PIECE;
    if constexpr (BY_TERMS) {
      unsigned at = tile + (begin ^ step * INSTRUCTION) + fragment * ROWS * LINE;
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                   : "r"(at));
    } else if constexpr (SIZE == 2) {
      unsigned at = tile + (begin ^ fragment * ROWS * SIZE) + step * INSTRUCTION / SIZE * LINE;
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                   : "r"(at));
    } else {
      static_assert(SIZE == 4, "bytes lie by terms");
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int below = ROWS_FIRST ? i % 2 : i / 2, beside = ROWS_FIRST ? i / 2 : i % 2;
        int along = (fragment * ROWS + below * 8) * SIZE, lines = step * INSTRUCTION / SIZE + beside * 4;
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x[i]) : "r"(tile + (begin ^ along) + lines * LINE));
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) Element::complete(x[i]);
  }
};

/* ---- Results in shared memory */

/* Where four results of a row lie together. A warp stores pairs of four rows at a time, and loads eight of a thread. */
template <int WIDTH>
static __device__ __forceinline__ int result_place(int row, int column) {
  int piece = column / 4, turn = row % 4 * 2 + (WIDTH >= 64 ? piece / 8 % 2 : row % 2);
  return row * WIDTH + (piece ^ turn) * 4 + column % 4;
}

/* Takes COUNT results that lie together, from a tile with rows of WIDTH. */
template <int WIDTH, int COUNT, class T>
static __device__ __forceinline__ void take(T* results, const void* tile, int row, int column) {
  const T* all = static_cast<const T*>(tile);
  if constexpr (COUNT % 4 == 0) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
      int4 four = *reinterpret_cast<const int4*>(all + result_place<WIDTH>(row, column + i));
      const int bits[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) set_bits(results[i + j], bits[j]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) results[i] = all[result_place<WIDTH>(row, column + i)];
  }
}

/* ---- The pipeline */

template <class Element_, int ROWS_, int COLUMNS_, int STEPS_, int STAGES_, int WARPS_DOWN_, int WARPS_ACROSS_,
          bool A_BY_TERMS, bool B_BY_TERMS>
struct Pipeline {
  using Element = Element_;
  using Sum = typename Element::Sum;
  using A = Tile<Element, ROWS_, STEPS_, A_BY_TERMS>;
  using B = Tile<Element, COLUMNS_, STEPS_, B_BY_TERMS>;
  static constexpr int STEPS = STEPS_, STAGES = STAGES_, WIDTH = COLUMNS_;
  static constexpr int THREADS = WARPS_DOWN_ * WARPS_ACROSS_ * LANES;
  static constexpr int DOWN = ROWS_ / WARPS_DOWN_, ACROSS = COLUMNS_ / WARPS_ACROSS_;  // results of a warp
  static constexpr int OF_A = DOWN / ROWS, OF_B = ACROSS / ROWS;                       // fragments of a warp
  static constexpr int STAGE = A::BYTES + B::BYTES;
  static_assert(OF_A * ROWS == DOWN && OF_B * ROWS == ACROSS, "a warp has whole fragments");
  static_assert(STAGES >= 2, "one stage is copied while another is multiplied");
  static_assert(STEPS % 2 == 0, "each step has the fragments that the one before does not have");

  struct Fragments {
    unsigned a[OF_A][4], b[OF_B][4];

    __device__ __forceinline__ void load(unsigned stage, int step) {
      int begin_a = A::template begin<true>(warp() / WARPS_ACROSS_ * DOWN);
      int begin_b = B::template begin<false>(warp() % WARPS_ACROSS_ * ACROSS);
#pragma unroll
      for (int i = 0; i < OF_A; ++i) A::template load<true>(a[i], stage, begin_a, i, step);
#pragma unroll
      for (int i = 0; i < OF_B; ++i) B::template load<false>(b[i], stage + A::BYTES, begin_b, i, step);
    }
  };

  Sum sums[OF_A][OF_B * 2][4];

  __device__ __forceinline__ void add(const Fragments& of) {
#pragma unroll
    for (int i = 0; i < OF_A; ++i)
#pragma unroll
      for (int j = 0; j < OF_B * 2; ++j) Element::multiply(sums[i][j], of.a[i], of.b[j / 2] + j % 2 * 2);
  }

  template <int TERMS, class SourceA, class SourceB>
  __device__ __forceinline__ void sum(unsigned shared, const SourceA& a, const SourceB& b, int row, int column) {
    constexpr int TILES = (TERMS + A::TERMS - 1) / A::TERMS;
    auto copy = [&](int tile, int stage) {
      if (tile < TILES) {
        A::template copy<THREADS>(shared + stage * STAGE, a, row, tile * A::TERMS);
        B::template copy<THREADS>(shared + stage * STAGE + A::BYTES, b, column, tile * A::TERMS);
      }
      commit();  // an empty group counts, too
    };
#pragma unroll
    for (int tile = 0; tile < STAGES - 1; ++tile) copy(tile, tile);
    wait<STAGES - 2>();
    __syncthreads();
    Fragments fragments[2];
    fragments[0].load(shared, 0);
    int reading = 0, writing = STAGES - 1;  // stages
#pragma unroll 1
    for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        if (step == 0) {
          copy(tile + STAGES - 1, writing);
          writing = reading;
        }
        if (step == STEPS - 1) {
          wait<STAGES - 2>();
          __syncthreads();  // the next tile is there, and nobody reads this one any more
          reading = reading == STAGES - 1 ? 0 : reading + 1;
        }
        fragments[(step + 1) % 2].load(shared + reading * STAGE, (step + 1) % STEPS);
        add(fragments[step % 2]);
      }
    }
  }

  __device__ __forceinline__ void store(void* shared) const {
    int down = warp() / WARPS_ACROSS_ * DOWN + lane() / 4, across = warp() % WARPS_ACROSS_ * ACROSS + lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < OF_A; ++i)
#pragma unroll
      for (int j = 0; j < OF_B * 2; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          int place = result_place<WIDTH>(down + i * ROWS + half * 8, across + j * COLUMNS);
          Sum* at = static_cast<Sum*>(shared) + place;
          *reinterpret_cast<int2*>(at) = make_int2(bits_of(sums[i][j][half * 2]), bits_of(sums[i][j][half * 2 + 1]));
        }
  }

  /* Leaves a tile of results, from a row and a column on, in shared memory. */
  template <int TERMS, class SourceA, class SourceB>
  static __device__ __forceinline__ void run(void* shared, const SourceA& a, const SourceB& b, int row, int column) {
    Pipeline pipeline = {};
    pipeline.template sum<TERMS>(static_cast<unsigned>(__cvta_generic_to_shared(shared)), a, b, row, column);
    wait<0>();
    __syncthreads();  // results take the place of tiles
    pipeline.store(shared);  // TVM has threads wait before they take them
  }
};
}  // namespace pipeline
}  // namespace autotune
