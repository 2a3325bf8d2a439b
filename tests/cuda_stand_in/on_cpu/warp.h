/* What the lanes of a warp do together: shuffles, votes. The last lane to come computes it for all. */
#pragma once

namespace cuda_on_cpu {

/* Which lane a shuffle reads, by the number of the lane that asks. */
template <class T, class Source>
T shuffle(T value, int width, const Source &source, const void *kind) {
  struct Brought {
    T value, taken;
    int width;
    const Source *source;
  } own = {value, value, width, &source};
  meet(&own, kind, [](void **lanes) {
    for (int i = 0; i < static_cast<int>(WARP); i++) {
      auto *asks = static_cast<Brought *>(lanes[i]);
      if (!asks) continue;
      int first = i / asks->width * asks->width, from = (*asks->source)(i, first);
      bool inside = from >= first && from < first + asks->width && lanes[from];
      asks->taken = inside ? static_cast<Brought *>(lanes[from])->value : asks->value;
    }
  });
  return own.taken;
}

inline unsigned vote(bool holds) {
  struct Brought {
    bool holds;
    unsigned bits;
  } own = {holds, 0};
  static const char kind = 0;
  meet(&own, &kind, [](void **lanes) {
    unsigned bits = 0;
    for (unsigned i = 0; i < WARP; i++)
      if (lanes[i] && static_cast<Brought *>(lanes[i])->holds) bits |= 1u << i;
    for (unsigned i = 0; i < WARP; i++)
      if (lanes[i]) static_cast<Brought *>(lanes[i])->bits = bits;
  });
  return own.bits;
}
}  // namespace cuda_on_cpu

template <class T>
T __shfl_sync(unsigned, T value, int lane, int width = 32) {
  static const char kind = 0;
  return cuda_on_cpu::shuffle(value, width, [=](int, int first) { return first + (lane & (width - 1)); }, &kind);
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned by, int width = 32) {
  static const char kind = 0;
  return cuda_on_cpu::shuffle(value, width, [=](int i, int) { return i + static_cast<int>(by); }, &kind);
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned by, int width = 32) {
  static const char kind = 0;
  return cuda_on_cpu::shuffle(value, width, [=](int i, int) { return i - static_cast<int>(by); }, &kind);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask, int width = 32) {
  static const char kind = 0;
  return cuda_on_cpu::shuffle(value, width, [=](int i, int) { return i ^ mask; }, &kind);
}
inline unsigned __activemask() { return cuda_on_cpu::lanes_of_warp(); }
inline unsigned __ballot_sync(unsigned, int holds) { return cuda_on_cpu::vote(holds); }
inline int __any_sync(unsigned, int holds) { return cuda_on_cpu::vote(holds) != 0; }
inline int __all_sync(unsigned, int holds) { return cuda_on_cpu::vote(!holds) == 0; }
inline void __syncwarp(unsigned = ~0u) { cuda_on_cpu::vote(true); }
