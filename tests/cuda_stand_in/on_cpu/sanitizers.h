/* The interface of ThreadSanitizer and AddressSanitizer for fibers, or nothing in its place. */
#pragma once
#include <cstddef>
#include <cstdio>

#include "block.h"

#if defined(CUDA_ON_CPU_TSAN)
extern "C" {
void *__tsan_get_current_fiber();
void *__tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void *);
void __tsan_switch_to_fiber(void *, unsigned);
void __tsan_set_fiber_name(void *, const char *);
void __tsan_acquire(void *);
void __tsan_release(void *);
}
namespace sanitizers {
constexpr unsigned NO_ORDER = 1;  // a switch of fibers orders nothing: only barriers do
inline void release(void *at) { __tsan_release(at); }
inline void acquire(void *at) { __tsan_acquire(at); }
struct Fiber {
  void *own = nullptr;
  void *copier = nullptr;  // to the sanitizer, what copies asynchronously is another thread
  void make(const uint3 &block, const uint3 &thread) {
    char name[96];
    snprintf(name, sizeof name, "block (%u, %u, %u) thread (%u, %u, %u)", block.x, block.y, block.z, thread.x, thread.y,
             thread.z);
    own = __tsan_create_fiber(0);
    __tsan_set_fiber_name(own, name);
    copier = __tsan_create_fiber(0);
    __tsan_set_fiber_name(copier, "cp.async");
  }
  void be_this_thread() { own = __tsan_get_current_fiber(); }
  void end() {
    __tsan_destroy_fiber(own);
    __tsan_destroy_fiber(copier);
  }
  template <class F>
  void copy(F act) {
    __tsan_switch_to_fiber(copier, NO_ORDER);
    act();
    __tsan_switch_to_fiber(own, NO_ORDER);
  }
};
constexpr bool COPIES_APART = true;
inline void leave(Fiber &, Fiber &to, const void *, size_t, bool) { __tsan_switch_to_fiber(to.own, NO_ORDER); }
inline void arrived(Fiber &) {}
}  // namespace sanitizers

#elif defined(CUDA_ON_CPU_ASAN)
extern "C" {
void __sanitizer_start_switch_fiber(void **, const void *, size_t);
void __sanitizer_finish_switch_fiber(void *, const void **, size_t *);
}
namespace sanitizers {
struct Fiber {
  void *fake_stack = nullptr;
  void make(const uint3 &, const uint3 &) { fake_stack = nullptr; }
  void be_this_thread() {}
  void end() {}
  template <class F>
  void copy(F act) { act(); }
};
constexpr bool COPIES_APART = false;
inline const void *scheduler_stack;  // seen when the first fiber begins
inline size_t scheduler_size;
inline void leave(Fiber &from, Fiber &, const void *stack, size_t size, bool for_good) {
  __sanitizer_start_switch_fiber(for_good ? nullptr : &from.fake_stack, stack ? stack : scheduler_stack,
                                 stack ? size : scheduler_size);
}
inline void arrived(Fiber &at) { __sanitizer_finish_switch_fiber(at.fake_stack, nullptr, nullptr); }
inline void release(void *) {}
inline void acquire(void *) {}
}  // namespace sanitizers

#else
namespace sanitizers {
struct Fiber {
  void make(const uint3 &, const uint3 &) {}
  void be_this_thread() {}
  void end() {}
  template <class F>
  void copy(F act) { act(); }
};
constexpr bool COPIES_APART = false;
inline void leave(Fiber &, Fiber &, const void *, size_t, bool) {}
inline void arrived(Fiber &) {}
inline void release(void *) {}
inline void acquire(void *) {}
}  // namespace sanitizers
#endif
