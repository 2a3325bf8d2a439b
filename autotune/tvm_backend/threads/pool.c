/* The threads of a compiled network: a parallel loop is cut into pieces, and whoever is there takes the next one.
 *
 * Every thread begins with the pieces of its own share, so that the part of an image that it wrote is still in its
 * cache, and goes on with what others have not begun. On a machine with other work, a thread that has no CPU costs the
 * piece that it was computing, not its whole share. Which thread computes a piece changes no bit of the result.
 *
 * A waiting thread spins for some microseconds, then it sleeps. Before, it looks whether a thread that it waits for has
 * got a CPU: one that has not is moved to the CPU which is about to be free. No thread is bound to a CPU for longer.
 *
 * The compiled kernels call `autotune_parallel` through the pointer that TVM's runtime would set. It is hidden, so the
 * runtime does not see it. Before they do, they set `autotune_next_extent` to the number of iterations of the loop, and
 * `autotune_next_threads` if it is to run on fewer threads. `autotune_limit` limits those of all loops from then on.
 *
 * Stealing from shares: Blumofe and Leiserson, Scheduling multithreaded computations by work stealing (1999). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

enum {
  MAX_THREADS = 128,
  PIECES = 8,            /* of a share, at most */
  CACHE_LINE = 64,
  SPINS_PER_LOOK = 64,   /* between two looks at the clock */
  SPIN_NS = 100000,      /* for how long a thread waits without sleeping */
  LOOK_NS = 20000,       /* a thread that computes less than a quarter of that has no CPU */
  NAP_NS = 300000,       /* for how long a thread sleeps before it looks again */
  LOCK_BYTES = 128,      /* more than a mutex or a condition takes on any system */
};

/* As in TVM's c_backend_api.h. */
typedef struct {
  void *sync_handle;
  int32_t num_task;
} group_t;
typedef int (*body_t)(int32_t task, group_t *group, void *data);

/* The pieces of a thread that nobody has begun: the generation of the job, the first piece and the one after the last. */
typedef struct {
  _Alignas(CACHE_LINE) _Atomic uint64_t pieces;
  _Atomic uint32_t worked_on; /* the generation whose pieces the owner computes, of whichever share; 0 for none */
} share_t;

typedef union {
  _Alignas(CACHE_LINE) char bytes[LOCK_BYTES];
  pthread_mutex_t mutex;
  pthread_cond_t condition;
} lock_t;

static struct {
  body_t body;
  void *data;
  group_t group;
  _Atomic int32_t pieces;
  _Atomic int32_t team; /* threads that take part */
  _Atomic pthread_t caller;
  _Atomic int32_t caller_cpu;
} job;

static share_t shares[MAX_THREADS];
static _Alignas(CACHE_LINE) _Atomic uint32_t generation; /* counts jobs */
static _Alignas(CACHE_LINE) _Atomic int32_t finished;    /* pieces of the job */
static _Alignas(CACHE_LINE) _Atomic int32_t sleepers;
static _Atomic int32_t caller_sleeps;
static _Atomic int32_t helpers; /* workers that may be moving the calling thread */
static _Atomic int32_t failure;
static _Atomic int32_t stopping;
HIDDEN _Atomic int32_t autotune_next_extent;  /* 0: not known */
HIDDEN _Atomic int32_t autotune_next_threads; /* 0: all */
static _Atomic int32_t most_threads = MAX_THREADS;
static _Atomic int32_t asked_threads; /* 0: as the environment says */
static _Alignas(CACHE_LINE) _Atomic int32_t taken; /* by a calling thread */

static lock_t lock, job_came, job_ended;
static pthread_t workers[MAX_THREADS];
static int32_t threads; /* with the calling thread; 0 before the first job */
static cpu_set_t usable;

/* `pthread_atfork` and what it needs are in files that a compiler driver links, and the linker alone does not. */
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *library);
extern void __cxa_finalize(void *library); /* forgets the handlers of a library */
static char this_library;

/* A thread that spins lets the other thread of its core run on. Whoever compiles pool.ll adds the definition. */
#if defined(FOR_ANY_CPU)
extern void autotune_spin_hint(void);
#elif defined(__x86_64__)
static void autotune_spin_hint(void) { __builtin_ia32_pause(); }
#elif defined(__aarch64__)
static void autotune_spin_hint(void) { __asm__ volatile("yield"); }
#else
static void autotune_spin_hint(void) {}
#endif

/* ---- How many threads */

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

/* The CPUs that the quota of the control group amounts to, rounded up; `otherwise` if there is none. */
static int32_t quota_cpus(int32_t otherwise) {
  char text[64];
  int file = open("/sys/fs/cgroup/cpu.max", O_RDONLY | O_CLOEXEC);
  if (file < 0) return otherwise;
  ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) return otherwise;
  text[length] = 0;
  char *rest;
  long quota = strtol(text, &rest, 10); /* "max" has no digits */
  long period = strtol(rest, NULL, 10);
  if (quota <= 0 || period <= 0) return otherwise;
  return (int32_t)((quota + period - 1) / period);
}

static int32_t wanted_threads(void) {
  const char *given = getenv("TVM_NUM_THREADS");
  int32_t number = atomic_load(&asked_threads);
  if (number == 0 && given) number = atoi(given);
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) return 1;
  int32_t cpus = CPU_COUNT(&usable);
  cpus = quota_cpus(cpus) < cpus ? quota_cpus(cpus) : cpus;
  number = number > 0 ? least(number, cpus) : cpus;
  return least(number < 1 ? 1 : number, MAX_THREADS);
}

/* ---- Pieces */

static uint64_t packed(uint32_t of, uint32_t first, uint32_t end) {
  return (uint64_t)of << 32 | (uint64_t)first << 16 | end;
}

/* Takes a piece from a share: its owner the first one, others the last. Returns -1 if there is none. */
static int32_t take(int32_t share, uint32_t of, bool owner) {
  uint64_t seen = atomic_load_explicit(&shares[share].pieces, memory_order_acquire);
  for (;;) {
    uint32_t first = seen >> 16 & 0xffff;
    uint32_t end = seen & 0xffff;
    if (seen >> 32 != of || first >= end) return -1;
    uint64_t left = owner ? packed(of, first + 1, end) : packed(of, first, end - 1);
    if (atomic_compare_exchange_weak(&shares[share].pieces, &seen, left)) return owner ? first : end - 1;
  }
}

static void wake_caller(void) {
  pthread_mutex_lock(&lock.mutex);
  pthread_cond_signal(&job_ended.condition);
  pthread_mutex_unlock(&lock.mutex);
}

static void compute(int32_t piece) {
  int32_t pieces = atomic_load_explicit(&job.pieces, memory_order_relaxed); /* the job may be another one after the last piece */
  if (job.body(piece, &job.group, job.data) != 0) atomic_store(&failure, 1);
  if (atomic_fetch_add(&finished, 1) + 1 == pieces && atomic_load(&caller_sleeps)) wake_caller();
}

static void work(int32_t self, uint32_t of) {
  int32_t team = atomic_load_explicit(&job.team, memory_order_relaxed);
  if (self >= team) return;
  atomic_store_explicit(&shares[self].worked_on, of, memory_order_relaxed);
  for (int32_t turn = 0; turn < team; ++turn) {
    int32_t share = (self + turn) % team;
    for (int32_t piece; (piece = take(share, of, turn == 0)) >= 0;) compute(piece);
  }
  atomic_store_explicit(&shares[self].worked_on, 0, memory_order_release);
}

/* ---- Waiting */

static int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* Spins until a condition holds, or for some time at most. Returns whether it holds. */
#define SPIN_UNTIL(condition, most_ns)                                 \
  ({                                                                   \
    bool holds = (condition);                                          \
    int64_t end = 0;                                                   \
    for (int32_t spins = 1; !holds; ++spins) {                         \
      autotune_spin_hint();                                            \
      holds = (condition);                                             \
      if (holds || spins % SPINS_PER_LOOK) continue;                   \
      int64_t now = now_ns();                                          \
      if (end == 0) end = now + (most_ns);                             \
      if (now > end) break;                                            \
    }                                                                  \
    holds;                                                             \
  })

static bool is_at_work(int32_t thread, uint32_t of) {
  return atomic_load_explicit(&shares[thread].worked_on, memory_order_acquire) == of;
}

static int64_t computed_ns(pthread_t thread) {
  clockid_t clock;
  struct timespec time = {0, 0};
  if (pthread_getcpuclockid(thread, &clock) == 0) clock_gettime(clock, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static bool has_no_cpu(int32_t index, pthread_t thread, uint32_t of) {
  int64_t before = computed_ns(thread);
  if (SPIN_UNTIL(!is_at_work(index, of), LOOK_NS)) return false;
  return computed_ns(thread) - before < LOOK_NS / 4;
}

/* Moves a thread to the CPU of the one that calls, and lets it run anywhere again. */
static void fetch(pthread_t thread) {
  cpu_set_t before;
  cpu_set_t here;
  CPU_ZERO(&here);
  CPU_SET(sched_getcpu(), &here);
  if (pthread_getaffinity_np(thread, sizeof before, &before) != 0) return;
  pthread_setaffinity_np(thread, sizeof here, &here);
  pthread_setaffinity_np(thread, sizeof before, &before);
}

/* Fetches one of the threads that compute pieces of a job without a CPU, if there are any. */
static void help(int32_t self, uint32_t of) {
  int32_t team = atomic_load_explicit(&job.team, memory_order_relaxed);
  for (int32_t index = 0; index < team; ++index) {
    if (index == self || !is_at_work(index, of)) continue;
    pthread_t thread = index == 0 ? atomic_load(&job.caller) : workers[index];
    if (!has_no_cpu(index, thread, of)) continue;
    fetch(thread);
    return;
  }
}

static void sleep_on(lock_t *event, int64_t most_ns) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += most_ns;
  if (until.tv_nsec >= 1000000000) {
    until.tv_nsec -= 1000000000;
    ++until.tv_sec;
  }
  pthread_cond_timedwait(&event->condition, &lock.mutex, &until);
}

static bool is_unfinished(uint32_t of) {
  return atomic_load(&generation) == of && atomic_load(&finished) != atomic_load(&job.pieces);
}

/* The calling thread may be gone once its job has ended, so it waits until no worker is about to move it. */
static void help_caller(int32_t self, uint32_t of) {
  atomic_fetch_add(&helpers, 1);
  if (is_unfinished(of)) help(self, of);
  atomic_fetch_sub(&helpers, 1);
}

static uint32_t wait_for_job(int32_t self, uint32_t seen) {
  if (SPIN_UNTIL(atomic_load_explicit(&generation, memory_order_acquire) != seen, SPIN_NS)) {
    return atomic_load(&generation);
  }
  while (is_unfinished(seen)) {
    help_caller(self, seen);
    pthread_mutex_lock(&lock.mutex);
    atomic_fetch_add(&sleepers, 1);
    if (is_unfinished(seen)) sleep_on(&job_came, NAP_NS);
    atomic_fetch_sub(&sleepers, 1);
    pthread_mutex_unlock(&lock.mutex);
  }
  pthread_mutex_lock(&lock.mutex);
  atomic_fetch_add(&sleepers, 1);
  while (atomic_load(&generation) == seen) pthread_cond_wait(&job_came.condition, &lock.mutex);
  atomic_fetch_sub(&sleepers, 1);
  pthread_mutex_unlock(&lock.mutex);
  return atomic_load(&generation);
}

static void wait_for_pieces(int32_t pieces, uint32_t of) {
  if (SPIN_UNTIL(atomic_load_explicit(&finished, memory_order_acquire) == pieces, SPIN_NS)) return;
  while (atomic_load(&finished) != pieces) {
    help(0, of);
    pthread_mutex_lock(&lock.mutex);
    atomic_store(&caller_sleeps, 1);
    if (atomic_load(&finished) != pieces) sleep_on(&job_ended, NAP_NS);
    atomic_store(&caller_sleeps, 0);
    pthread_mutex_unlock(&lock.mutex);
  }
}

/* ---- Workers */

/* The system may wake a worker on the CPU of the thread that woke it, and leave both there. */
static void leave_cpu(int32_t cpu) {
  cpu_set_t others = usable;
  CPU_CLR(cpu, &others);
  if (CPU_COUNT(&others) == 0) return;
  sched_setaffinity(0, sizeof others, &others);
  sched_setaffinity(0, sizeof usable, &usable);
}

static void *worker(void *argument) {
  int32_t self = (int32_t)(intptr_t)argument;
  uint32_t seen = 0;
  for (;;) {
    seen = wait_for_job(self, seen);
    if (atomic_load(&stopping)) return NULL;
    int32_t cpu = atomic_load_explicit(&job.caller_cpu, memory_order_relaxed);
    if (sched_getcpu() == cpu) leave_cpu(cpu);
    work(self, seen);
  }
}

static void forget_workers(void) { /* in a child, which has none */
  threads = 0;
  atomic_store(&taken, 0);
  atomic_store(&sleepers, 0);
  atomic_store(&helpers, 0);
}

static void start(void) {
  static bool registered;
  pthread_mutex_init(&lock.mutex, NULL);
  pthread_cond_init(&job_came.condition, NULL);
  pthread_cond_init(&job_ended.condition, NULL);
  atomic_store(&generation, 0);
  if (!registered) __register_atfork(NULL, NULL, forget_workers, &this_library);
  registered = true;
  int32_t wanted = wanted_threads();
  int32_t started = 1;
  while (started < wanted) {
    if (pthread_create(&workers[started], NULL, worker, (void *)(intptr_t)started) != 0) break;
    ++started;
  }
  threads = started;
}

static void publish_job(void) {
  atomic_fetch_add(&generation, 1);
  if (atomic_load(&sleepers) == 0) return;
  pthread_mutex_lock(&lock.mutex);
  pthread_cond_broadcast(&job_came.condition);
  pthread_mutex_unlock(&lock.mutex);
}

HIDDEN __attribute__((destructor)) void autotune_stop_threads(void) {
  __cxa_finalize(&this_library);
  atomic_store(&stopping, 1);
  if (threads > 1) publish_job();
  for (int32_t index = 1; index < threads; ++index) pthread_join(workers[index], NULL);
}

/* ---- Jobs */

static int alone(body_t body, void *data) {
  group_t group = {NULL, 1};
  return body(0, &group, data);
}

/* In how many pieces a team cuts a loop: PIECES for a thread at most, of whole iterations, with none that is empty. */
static int32_t cut(int32_t extent, int32_t team) {
  if (extent <= 0) return team;
  int32_t size = extent / (team * PIECES);
  size = size < 1 ? 1 : size;
  int32_t pieces = (extent + size - 1) / size;
  size = (extent + pieces - 1) / pieces; /* as the compiled loop divides */
  return (extent + size - 1) / size;
}

static int together(body_t body, void *data, int32_t pieces, int32_t team) {
  uint32_t next = atomic_load_explicit(&generation, memory_order_relaxed) + 1;
  job.body = body;
  job.data = data;
  job.group.num_task = pieces;
  atomic_store_explicit(&job.pieces, pieces, memory_order_relaxed);
  atomic_store_explicit(&job.caller, pthread_self(), memory_order_relaxed);
  atomic_store_explicit(&job.team, team, memory_order_relaxed);
  atomic_store_explicit(&job.caller_cpu, sched_getcpu(), memory_order_relaxed);
  atomic_store_explicit(&finished, 0, memory_order_relaxed);
  atomic_store_explicit(&failure, 0, memory_order_relaxed);
  for (int32_t index = 0; index < team; ++index) {
    uint64_t share = packed(next, index * pieces / team, (index + 1) * pieces / team);
    atomic_store_explicit(&shares[index].pieces, share, memory_order_release);
  }
  publish_job();
  work(0, next);
  wait_for_pieces(pieces, next);
  while (atomic_load(&helpers) != 0) autotune_spin_hint();
  return atomic_load(&failure) ? -1 : 0;
}

HIDDEN void autotune_limit(int32_t limit) { atomic_store_explicit(&most_threads, limit, memory_order_relaxed); }

/* An argument or a result, as in c_api.h of tvm-ffi. */
typedef struct {
  int32_t kind; /* 0 for nothing, 1 for an integer */
  uint32_t padding;
  int64_t integer;
} any_t;

/* What a program calls as the function `autotune_threads` of a library, before the first call of a kernel: with how many
 * threads, instead of what TVM_NUM_THREADS says. */
__attribute__((visibility("default"))) int32_t __tvm_ffi_autotune_threads(void *self, const any_t *arguments,
                                                                          int32_t count, any_t *result) {
  (void)self;
  if (count == 1 && arguments[0].kind == 1) atomic_store(&asked_threads, (int32_t)arguments[0].integer);
  *result = (any_t){0, 0, 0};
  return 0;
}

/* Runs a parallel loop, as TVMBackendParallelLaunch does. A thread that calls while another one does computes alone. */
HIDDEN int autotune_parallel(body_t body, void *data, int wanted) {
  int32_t extent = atomic_load_explicit(&autotune_next_extent, memory_order_relaxed);
  int32_t most = atomic_load_explicit(&autotune_next_threads, memory_order_relaxed);
  atomic_store_explicit(&autotune_next_extent, 0, memory_order_relaxed);
  if (most != 0) atomic_store_explicit(&autotune_next_threads, 0, memory_order_relaxed);
  if (extent == 1 || wanted == 1 || most == 1) return alone(body, data);
  if (atomic_exchange_explicit(&taken, 1, memory_order_acquire)) return alone(body, data);
  if (threads == 0) start();
  int32_t team = least(threads, atomic_load_explicit(&most_threads, memory_order_relaxed));
  team = most > 0 ? least(team, most) : team;
  int32_t pieces = team > 1 ? cut(extent, team) : 1;
  int result = pieces > 1 ? together(body, data, pieces, team) : alone(body, data);
  atomic_store_explicit(&taken, 0, memory_order_release);
  return result;
}

HIDDEN int (*__TVMBackendParallelLaunch)(body_t, void *, int) = autotune_parallel;
