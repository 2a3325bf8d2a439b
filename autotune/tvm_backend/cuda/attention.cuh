/* Attention as one kernel, from sm_80 on: what `attention_kernel.py` has kernels call. `pipeline.cuh` stands before it.
 *
 * A block has some queries of a head, and goes over the keys and values tile by tile. Of the scores of a query it keeps
 * the largest and the sum of their powers so far, and scales what it has summed when a larger one comes (Milakov and
 * Gimelshein, "Online normalizer calculation for softmax", 2018; Dao, "FlashAttention-2", 2023). Scores stay in
 * registers: a lane has those results of the first product that it needs as operands of the second one.
 */
namespace autotune {
namespace attention {

using namespace pipeline;

constexpr float LOG2_E = 1.44269504f;

static __device__ __forceinline__ unsigned pair(Fp16, float x, float y) {
  __half2 both = __floats2half2_rn(x, y);
  return *reinterpret_cast<unsigned*>(&both);
}
static __device__ __forceinline__ unsigned pair(Bf16, float x, float y) {
  __nv_bfloat162 both = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<unsigned*>(&both);
}

/* The elements of a head in a tensor of rows. BY_ROWS: the rows are what `Tile` calls a side; else they are its terms. */
template <int ROWS, int STRIDE, int SIZE, bool BY_ROWS>
struct Head {
  static constexpr int TOGETHER = 8;
  const unsigned short* data;
  __device__ __forceinline__ bool inside(int side, int term) const {
    return (BY_ROWS ? side : term) < ROWS && (BY_ROWS ? term : side) < SIZE;
  }
  __device__ __forceinline__ int offset(int side, int term) const {
    return (BY_ROWS ? side : term) * STRIDE + (BY_ROWS ? term : side);
  }
  __device__ __forceinline__ unsigned bits(int offset) const { return data[offset]; }
};

/* What is added to the scores: its strides, of which 0 stands for an axis along which it is the same. */
template <int OF_BATCH, int OF_HEAD, int OF_QUERY, int OF_KEY>
struct Added {
  static constexpr bool IS_THERE = true;
  const float* data;
  __device__ __forceinline__ Added of(int batch, int head) const {
    return {data + static_cast<long long>(batch) * OF_BATCH + static_cast<long long>(head) * OF_HEAD};
  }
  __device__ __forceinline__ float at(int query, int key) const { return data[query * OF_QUERY + key * OF_KEY]; }
};
struct Nothing {
  static constexpr bool IS_THERE = false;
  __device__ __forceinline__ Nothing of(int, int) const { return {}; }
  __device__ __forceinline__ float at(int, int) const { return 0; }
};

/* Where the heads of an operand lie in rows of WIDTH elements. */
template <int WIDTH_, int OFFSET_>
struct Part {
  static constexpr int WIDTH = WIDTH_, OFFSET = OFFSET_;
};

/* SIZE is of a head, DEPTH what it is filled up to. A block has ROWS queries for each of its WARPS. ZEROS: a query all of
 * whose keys are masked has zeros as its result; else it has NaN. */
template <class Element, class Bias, class OfQ, class OfK, class OfV, int HEADS, int QUERIES, int KEYS, int SIZE,
          int DEPTH, int WARPS, int TILE, bool ZEROS>
struct Attention {
  using OfOut = Part<HEADS * SIZE, 0>;
  static constexpr int THREADS = WARPS * LANES;
  static constexpr int TILES = (KEYS + TILE - 1) / TILE;
  static constexpr int TERMS = INSTRUCTION / 2;  // of an instruction
  using Q = Tile<Element, WARPS * ROWS, DEPTH / TERMS, true>;
  using K = Tile<Element, TILE, DEPTH / TERMS, true>;
  using V = Tile<Element, DEPTH, TILE / TERMS, false>;
  static constexpr int STAGE = K::BYTES + V::BYTES;
  static_assert(Element::SIZE == 2, "results of 32 bits are no operands of 8 bits");

  unsigned queries[DEPTH / TERMS][4];
  float scores[TILE / COLUMNS][4];
  float sums[DEPTH / COLUMNS][4];
  float largest[2], total[2];  // of the two rows that a lane has results of

  __device__ __forceinline__ void load_queries(unsigned tile) {
    int begin = Q::template begin<true>(warp() * ROWS);
#pragma unroll
    for (int step = 0; step < DEPTH / TERMS; ++step) Q::template load<true>(queries[step], tile, begin, 0, step);
  }

  __device__ __forceinline__ void score(unsigned keys) {
    int begin = K::template begin<false>(0);
#pragma unroll
    for (int j = 0; j < TILE / COLUMNS; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[j][i] = 0;
#pragma unroll
    for (int step = 0; step < DEPTH / TERMS; ++step)
#pragma unroll
      for (int j = 0; j < TILE / ROWS; ++j) {
        unsigned fragment[4];
        K::template load<false>(fragment, keys, begin, j, step);
        Element::multiply(scores[j * 2], queries[step], fragment);
        Element::multiply(scores[j * 2 + 1], queries[step], fragment + 2);
      }
  }

  /* Makes powers of scores, less the largest one, and scales what was summed before to that. */
  __device__ __forceinline__ void weigh(const Bias& bias, float scale, int query, int key) {
    float most[2] = {largest[0], largest[1]};
#pragma unroll
    for (int j = 0; j < TILE / COLUMNS; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int of_query = query + i / 2 * 8, of_key = key + j * COLUMNS + lane() % 4 * 2 + i % 2;
        bool inside = KEYS % TILE == 0 || of_key < KEYS;
        float score = scores[j][i] * scale;  // times LOG2_E, the least number of a mask would be minus infinity
        if (Bias::IS_THERE && inside && of_query < QUERIES) score += bias.at(of_query, of_key);
        scores[j][i] = inside ? score : -INFINITY;
        most[i / 2] = fmaxf(most[i / 2], scores[j][i]);
      }
    float least[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      most[half] = fmaxf(most[half], __shfl_xor_sync(~0u, most[half], 1));
      most[half] = fmaxf(most[half], __shfl_xor_sync(~0u, most[half], 2));
      least[half] = most[half] == -INFINITY ? 0 : most[half];  // where all keys so far are masked
      float kept = exp2f((largest[half] - least[half]) * LOG2_E);
      largest[half] = most[half];
      total[half] *= kept;
#pragma unroll
      for (int j = 0; j < DEPTH / COLUMNS; ++j) sums[j][half * 2] *= kept, sums[j][half * 2 + 1] *= kept;
    }
#pragma unroll
    for (int j = 0; j < TILE / COLUMNS; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) total[i / 2] += scores[j][i] = exp2f((scores[j][i] - least[i / 2]) * LOG2_E);
  }

  __device__ __forceinline__ void add(unsigned values) {
    int begin = V::template begin<false>(0);
#pragma unroll
    for (int step = 0; step < TILE / TERMS; ++step) {
      const float* left = scores[step * 2];
      const float* right = scores[step * 2 + 1];
      const unsigned weights[4] = {pair(Element{}, left[0], left[1]), pair(Element{}, left[2], left[3]),
                                   pair(Element{}, right[0], right[1]), pair(Element{}, right[2], right[3])};
#pragma unroll
      for (int j = 0; j < DEPTH / ROWS; ++j) {
        unsigned fragment[4];
        V::template load<false>(fragment, values, begin, j, step);
        Element::multiply(sums[j * 2], weights, fragment);
        Element::multiply(sums[j * 2 + 1], weights, fragment + 2);
      }
    }
  }

  /* Where a lane leaves the pair of results that it has of eight columns, in the half of a warp's rows. */
  static __device__ __forceinline__ int place_of_pair(int half, int columns) {
    return Q::place(warp() * ROWS + lane() / 4 + half * 8, columns) + lane() % 4 * 4;
  }

  /* Writes results in pieces of 16 bytes, which the lanes of a warp put together where its queries were. */
  __device__ __forceinline__ void store(unsigned short* out, char* shared, int row) {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total[half] += __shfl_xor_sync(~0u, total[half], 1);
      total[half] += __shfl_xor_sync(~0u, total[half], 2);
      factor[half] = 1 / total[half];
    }
#pragma unroll
    for (int j = 0; j < DEPTH / COLUMNS; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int place = place_of_pair(half, j);
        float left = sums[j][half * 2] * factor[half], right = sums[j][half * 2 + 1] * factor[half];
        if (ZEROS && total[half] == 0) left = right = 0;
        *reinterpret_cast<unsigned*>(shared + place) = pair(Element{}, left, right);
      }
    __syncwarp();
    constexpr int PIECES = SIZE * 2 / PIECE;
    for (int number = lane(); number < ROWS * PIECES; number += LANES) {
      int down = warp() * ROWS + number / PIECES, piece = number % PIECES;
      if (row + down >= QUERIES) break;
      int4 taken = *reinterpret_cast<const int4*>(shared + Q::place(down, piece));
      *reinterpret_cast<int4*>(out + (row + down) * OfOut::WIDTH + piece * (PIECE / 2)) = taken;
    }
  }

  __device__ __forceinline__ void sum(unsigned short* out, const unsigned short* q, const unsigned short* k,
                                      const unsigned short* v, const Bias& bias, float scale, char* memory, int row) {
    unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(memory));
    auto copy = [&](int tile) {
      if (tile < TILES) {
        unsigned stage = shared + Q::BYTES + tile % 2 * STAGE;
        K::template copy<THREADS>(stage, Head<KEYS, OfK::WIDTH, SIZE, true>{k}, tile * TILE, 0);
        V::template copy<THREADS>(stage + K::BYTES, Head<KEYS, OfV::WIDTH, SIZE, false>{v}, 0, tile * TILE);
      }
      commit();  // an empty group counts, too
    };
    Q::template copy<THREADS>(shared, Head<QUERIES, OfQ::WIDTH, SIZE, true>{q}, row, 0);
    copy(0);
#pragma unroll 1
    for (int tile = 0; tile < TILES; ++tile) {
      copy(tile + 1);
      wait<1>();
      __syncthreads();  // the tile is there
      if (tile == 0) load_queries(shared);
      unsigned stage = shared + Q::BYTES + tile % 2 * STAGE;
      score(stage);
      weigh(bias, scale, row + warp() * ROWS + lane() / 4, tile * TILE);
      add(stage + K::BYTES);
      __syncthreads();  // nobody reads the tile any more
    }
    store(out, memory, row);
  }

  /* Computes the results of block number BLOCK. Tensors lie as (batch, rows, heads, elements). */
  static __device__ __forceinline__ void run(void* out, const void* q, const void* k, const void* v, const Bias& bias,
                                             float scale, void* shared, int block) {
    constexpr int BLOCKS = (QUERIES + WARPS * ROWS - 1) / (WARPS * ROWS);  // of a head
    int batch = block / BLOCKS / HEADS, head = block / BLOCKS % HEADS;
    auto begin = [&](auto part, const void* all, int rows) {
      const auto* first = static_cast<const unsigned short*>(all) + decltype(part)::OFFSET + head * SIZE;
      return first + static_cast<long long>(batch) * rows * decltype(part)::WIDTH;
    };
    Attention attention = {};
    attention.largest[0] = attention.largest[1] = -INFINITY;
    attention.sum(const_cast<unsigned short*>(begin(OfOut{}, out, QUERIES)), begin(OfQ{}, q, QUERIES),
                  begin(OfK{}, k, KEYS), begin(OfV{}, v, KEYS), bias.of(batch, head), scale,
                  static_cast<char*>(shared), block % BLOCKS * (WARPS * ROWS));
  }
};
}  // namespace attention
}  // namespace autotune
