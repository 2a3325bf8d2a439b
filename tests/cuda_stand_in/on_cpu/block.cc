#include "block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "sanitizers.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

extern "C" {
/* Where the linker puts the section of shared variables; null in a library without one. */
extern char __start_cuda_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_cuda_shared[] __attribute__((weak, visibility("hidden")));
/* Keeps the registers of the running fiber on its stack and that stack's pointer in *from, and goes on at `to`. */
void cuda_on_cpu_switch(void **from, void *to) __attribute__((visibility("hidden")));
}

#if !defined(__x86_64__)
#error "fibers are switched in the assembly of x86-64 only"
#endif
asm(R"(
.text
.hidden cuda_on_cpu_switch
.globl cuda_on_cpu_switch
.type cuda_on_cpu_switch, @function
cuda_on_cpu_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size cuda_on_cpu_switch, . - cuda_on_cpu_switch
)");

namespace cuda_on_cpu {
namespace {

#if defined(CUDA_ON_CPU_TSAN) || defined(CUDA_ON_CPU_ASAN)
constexpr size_t STACK = 4 << 20;  // sanitizers need more for each variable
#else
constexpr size_t STACK = 1 << 20;  // a GPU has 512 KiB of local memory for a thread
#endif
constexpr int SAVED_REGISTERS = 6;
constexpr unsigned char NEVER_WRITTEN = 0xff;  // shared memory before a block runs: NaN in every type of floats
constexpr unsigned DYNAMIC = 1u << 30;         // PTX addresses from here on are in dynamic shared memory

constexpr unsigned MOST_GROUPS = 16;           // of copies that are under way at a time

enum class State { READY, AT_BARRIER, IN_WARP, ENDED };

struct Copy {
  void *to;
  const void *from;
  size_t size, zeros;
};

struct Thread {
  unsigned number;
  uint3 index;
  State state;
  void *stack_pointer;
  char *stack;
  sanitizers::Fiber fiber;
  unsigned barriers, meetings;  // how many it came to
  void *brought;
  const void *kind;
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
  unsigned committed, awaited;  // groups
  char begun, done[MOST_GROUPS];  // what orders its copies after what it did before, and what it does after their group
};

/* The launch that runs. Launches of a process come one after the other. */
struct Launch {
  void (*kernel)(void **);
  void **arguments;
  std::vector<Thread> threads;
  std::vector<unsigned> order;  // in which threads get their turn
  Thread *running;
  void *scheduler;
  sanitizers::Fiber scheduler_fiber;
  char *dynamic;
  size_t dynamic_bytes;
  const char *problem;
  bool seeded;
  std::mt19937 random;
  // What sanitizers take for the order of events: threads release and acquire these at barriers and in meetings. Two of
  // each in turn, since a fast thread may come to the next one before a slow thread has left the last.
  char begun, ended, barrier[2];
  std::vector<char> meeting;
} now;

char *stacks;  // of as many threads as a block may have; the pages that nobody touches cost nothing
constexpr size_t MOST_THREADS = 1024;

void to_scheduler(bool for_good) {
  Thread &me = *now.running;
  sanitizers::leave(me.fiber, now.scheduler_fiber, nullptr, 0, for_good);
  cuda_on_cpu_switch(&me.stack_pointer, now.scheduler);
  sanitizers::arrived(me.fiber);
}

void to_thread(Thread &thread) {
  now.running = &thread;
  threadIdx = thread.index;
  sanitizers::leave(now.scheduler_fiber, thread.fiber, thread.stack, STACK, false);
  cuda_on_cpu_switch(&now.scheduler, thread.stack_pointer);
  sanitizers::arrived(now.scheduler_fiber);
}

void perform(const Copy &copy) {
  memcpy(copy.to, copy.from, copy.size);
  memset(static_cast<char *>(copy.to) + copy.size, 0, copy.zeros);
}

/* Where every fiber begins. */
void begin() {
#if defined(CUDA_ON_CPU_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, &sanitizers::scheduler_stack, &sanitizers::scheduler_size);
#endif
  sanitizers::acquire(&now.begun);
  now.kernel(now.arguments);
  commit_group();
  wait_group(0);  // what is still under way ends with its thread
  sanitizers::release(&now.ended);
  now.running->state = State::ENDED;
  to_scheduler(true);
  abort();  // nobody goes on with a thread that has ended
}

void prepare(Thread &thread, unsigned number) {
  thread.number = number;
  thread.index = {number % blockDim.x, number / blockDim.x % blockDim.y, number / blockDim.x / blockDim.y};
  thread.state = State::READY;
  thread.barriers = 0;
  thread.meetings = 0;
  thread.open.clear();
  thread.groups.clear();
  thread.committed = 0;
  thread.awaited = 0;
  thread.stack = stacks + number * STACK;
  void **top = reinterpret_cast<void **>(thread.stack + STACK);
  *--top = nullptr;  // the return address of `begin`; it also aligns its frame
  *--top = reinterpret_cast<void *>(begin);
  for (int i = 0; i < SAVED_REGISTERS; i++) *--top = nullptr;
  thread.stack_pointer = top;
  thread.fiber.make(blockIdx, thread.index);
}

/* Gives every thread that can go on its turn; returns whether there was one. */
bool run_ready() {
  bool any = false;
  if (now.seeded) std::shuffle(now.order.begin(), now.order.end(), now.random);
  for (unsigned number : now.order) {
    if (now.threads[number].state != State::READY) continue;
    any = true;
    to_thread(now.threads[number]);
    if (now.problem) return false;
  }
  return any;
}

size_t count(State state) {
  return std::count_if(now.threads.begin(), now.threads.end(), [&](const Thread &it) { return it.state == state; });
}

/* Runs the threads of one block to their end. */
void run_block() {
  for (unsigned number = 0; number < now.threads.size(); number++) prepare(now.threads[number], number);
  sanitizers::release(&now.begun);
  while (count(State::ENDED) < now.threads.size() && !now.problem) {
    if (run_ready() || now.problem) continue;
    if (count(State::IN_WARP)) {
      now.problem = "lanes of a warp wait for lanes that do not come";
      break;
    }
    for (Thread &thread : now.threads)
      if (thread.state == State::AT_BARRIER) thread.state = State::READY;
  }
  sanitizers::acquire(&now.ended);
  for (Thread &thread : now.threads) thread.fiber.end();
}

/* Fills memory behind the back of sanitizers, which forbid the gaps that they leave between variables. */
void fill(void *memory, unsigned char value, size_t size) {
  asm volatile("rep stosb" : "+D"(memory), "+c"(size) : "a"(value) : "memory");
}

/* Shared memory of a new block: the static part as if never written, the dynamic part of exactly its size. */
void fresh_shared_memory() {
  if (__start_cuda_shared) fill(__start_cuda_shared, NEVER_WRITTEN, __stop_cuda_shared - __start_cuda_shared);
  free(now.dynamic);
  void *made = nullptr;
  if (posix_memalign(&made, 1024, std::max<size_t>(now.dynamic_bytes, 1))) abort();
  fill(made, NEVER_WRITTEN, now.dynamic_bytes);
  now.dynamic = static_cast<char *>(made);
}

void set_up(void (*kernel)(void **), void **arguments, unsigned count, unsigned dynamic_bytes) {
  const char *seed = getenv("CUDA_ON_CPU_SEED");
  if (!stacks)
    stacks = static_cast<char *>(mmap(nullptr, MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (stacks == MAP_FAILED) abort();
  now.kernel = kernel;
  now.arguments = arguments;
  now.threads.resize(count);
  now.order.resize(count);
  for (unsigned i = 0; i < count; i++) now.order[i] = i;
  now.meeting.assign((count + WARP - 1) / WARP * 2, 0);
  now.dynamic_bytes = dynamic_bytes;
  now.problem = nullptr;
  now.seeded = seed != nullptr;
  if (seed) now.random.seed(atoi(seed));
  now.scheduler_fiber.be_this_thread();
}

}  // namespace

int launch(void (*kernel)(void **), void **arguments, const unsigned *grid, const unsigned *block, unsigned dynamic) {
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  unsigned count = block[0] * block[1] * block[2];
  if (!count || count > MOST_THREADS) return LAUNCH_FAILED;
  set_up(kernel, arguments, count, dynamic);
  for (unsigned z = 0; z < grid[2]; z++)
    for (unsigned y = 0; y < grid[1]; y++)
      for (unsigned x = 0; x < grid[0] && !now.problem; x++) {
        blockIdx = {x, y, z};
        fresh_shared_memory();
        run_block();
      }
  if (!now.problem) return FINE;
  fprintf(stderr, "a kernel failed in block (%u, %u, %u): %s\n", blockIdx.x, blockIdx.y, blockIdx.z, now.problem);
  return LAUNCH_FAILED;
}

void wait_for_block() {
  Thread &me = *now.running;
  char *order = &now.barrier[me.barriers++ & 1];
  sanitizers::release(order);
  me.state = State::AT_BARRIER;
  to_scheduler(false);
  sanitizers::acquire(order);
}

namespace {
/* Acts for a warp whose lanes have all come; the caller is one of them. */
void act_for(Thread *first, Thread *end, const Thread &me, void (*act)(void **)) {
  void *brought[WARP] = {};
  for (Thread *thread = first; thread < end; thread++) {
    if (thread->state == State::ENDED) continue;
    if (thread->kind != me.kind) now.problem = "lanes of a warp meet for different things";
    brought[thread->number % WARP] = thread->brought;
  }
  if (!now.problem) act(brought);
  for (Thread *thread = first; thread < end; thread++)
    if (thread->state == State::IN_WARP) thread->state = State::READY;
}
}  // namespace

void meet(void *own, const void *kind, void (*act)(void **)) {
  Thread &me = *now.running;
  unsigned warp = me.number / WARP;
  Thread *first = &now.threads[warp * WARP];
  Thread *end = first + std::min<size_t>(WARP, now.threads.size() - warp * WARP);
  char *order = &now.meeting[2 * warp + (me.meetings++ & 1)];
  me.brought = own;
  me.kind = kind;
  me.state = State::IN_WARP;
  sanitizers::release(order);
  bool last = std::all_of(first, end, [](const Thread &it) { return it.state >= State::IN_WARP; });
  if (last) {
    sanitizers::acquire(order);
    act_for(first, end, me, act);
    sanitizers::release(order);
  }
  if (!last || now.problem) to_scheduler(false);
  sanitizers::acquire(order);
}

void fail(const char *problem) { now.problem = problem; }

unsigned lane() { return now.running->number % WARP; }

unsigned lanes_of_warp() {
  unsigned begin = now.running->number / WARP * WARP, bits = 0;
  for (unsigned i = 0; i < WARP && begin + i < now.threads.size(); i++)
    if (now.threads[begin + i].state != State::ENDED) bits |= 1u << i;
  return bits;
}

void *dynamic_shared() { return now.dynamic; }

unsigned shared_address(const void *pointer) {
  const char *at = static_cast<const char *>(pointer);
  if (__start_cuda_shared && at >= __start_cuda_shared && at < __stop_cuda_shared)
    return static_cast<unsigned>(at - __start_cuda_shared);
  return DYNAMIC + static_cast<unsigned>(at - now.dynamic);
}

void *shared_pointer(unsigned address) {
  return address < DYNAMIC / 2 ? __start_cuda_shared + address : now.dynamic + static_cast<int>(address - DYNAMIC);
}

void copy_async(void *to, const void *from, size_t size, size_t zeros) {
  Copy copy = {to, from, size, zeros};
  Thread &me = *now.running;
  if (sanitizers::COPIES_APART) {
    sanitizers::release(&me.begun);
    me.fiber.copy([&] {
      sanitizers::acquire(&me.begun);
      perform(copy);
    });
  } else if (now.seeded && now.random() % 2) {
    perform(copy);
  } else {
    me.open.push_back(copy);
  }
}

void commit_group() {
  Thread &me = *now.running;
  char *done = &me.done[me.committed++ % MOST_GROUPS];
  me.fiber.copy([&] { sanitizers::release(done); });
  me.groups.push_back(std::move(me.open));
  me.open.clear();
  if (me.groups.size() > MOST_GROUPS) fail("more groups of copies are under way than are known here");
}

void wait_group(size_t pending) {
  Thread &me = *now.running;
  for (; me.groups.size() > pending; me.groups.pop_front()) {
    for (const Copy &copy : me.groups.front()) perform(copy);
    sanitizers::acquire(&me.done[me.awaited++ % MOST_GROUPS]);
  }
}

namespace {
template <class T>
void add_products(const T *a, const T *b, T *c, int rows, int columns, int inner) {
  for (int i = 0; i < rows; i++)
    for (int k = 0; k < inner; k++)
      for (int j = 0; j < columns; j++) c[i * columns + j] += a[i * inner + k] * b[k * columns + j];
}
}  // namespace

void multiply_add(const float *a, const float *b, float *c, int rows, int columns, int inner) {
  add_products(a, b, c, rows, columns, inner);
}

void multiply_add(const int *a, const int *b, int *c, int rows, int columns, int inner) {
  add_products(a, b, c, rows, columns, inner);
}

}  // namespace cuda_on_cpu
