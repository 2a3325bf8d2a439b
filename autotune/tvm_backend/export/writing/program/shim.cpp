// Memory, the thread pool, and the functions of TVM's runtime that compiled kernels call.
#include "shim.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>

namespace {

constexpr int kTensorArgument = 7;  // the kind of an argument that points to a View
constexpr int kCpu = 1;
constexpr size_t kAlignment = 64;
constexpr size_t kIdBytes = 64;  // weights.bin begins with its id

[[noreturn]] void fail(const char* what, const char* about) {
  std::fprintf(stderr, "%s%s\n", what, about);
  std::exit(2);
}

char* mapped(size_t bytes, int protection, int flags, int file, const char* about) {
  void* start = mmap(nullptr, bytes, protection, flags, file, 0);
  if (start == MAP_FAILED) fail("cannot map into memory: ", about);
  return static_cast<char*>(start);
}

}  // namespace

double now_seconds() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

// ---- Memory

Tensor::Tensor(void* data, Type type, std::initializer_list<int64_t> shape)
    : view_{data, kCpu, 0, static_cast<int32_t>(shape.size()), type, shape_, strides_, 0} {
  if (shape.size() > kMaxDimensions) fail("a tensor has too many dimensions", "");
  int axis = 0;
  for (int64_t size : shape) shape_[axis++] = size;
  for (int64_t stride = 1; axis-- > 0; stride *= shape_[axis]) strides_[axis] = stride;
}

size_t Tensor::bytes() const {
  size_t elements = 1;
  for (int axis = 0; axis < view_.dimensions; ++axis) elements *= shape_[axis];
  return elements * (view_.type.bits / 8);
}

Arena::Arena(size_t bytes)
    : start_(mapped(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, "the buffers")) {}

Weights::Weights(const char* path, size_t bytes, const char* id) {
  int file = open(path, O_RDONLY);
  struct stat about;
  if (file < 0 || fstat(file, &about) != 0) fail("cannot read the weights: ", path);
  if (static_cast<size_t>(about.st_size) != bytes) fail("these are not the weights of this network: ", path);
  start_ = mapped(bytes, PROT_READ, MAP_PRIVATE, file, path);
  close(file);
  if (std::strncmp(start_, id, kIdBytes) != 0) fail("these are not the weights of this network: ", path);
}

// ---- Threads
//
// The calling thread does a share of the work, and each worker waits at a mailbox of its own. A worker spins for some
// milliseconds after its last job, because a network has the next one soon, and sleeps then. A worker that finds itself
// on the CPU of the calling thread leaves it, because the system may leave both there for long.

namespace {

struct Group {
  void* unused;
  int32_t tasks;
};

using Task = int(int index, Group* group, void* data);

struct Job {
  Task* task;
  void* data;
  Group group;
  int cpu;  // of the calling thread; -1 if there are more threads than CPUs
};

struct alignas(kAlignment) Worker {
  std::atomic<uint32_t> jobs{0};  // how many it was given
  std::atomic<bool> asleep{false};
  int index;
  pthread_mutex_t lock;
  pthread_cond_t woken;
};

constexpr int kMaxThreads = 256;
constexpr int kPauses = 100;  // then a waiting thread lets others run, for they may be what it waits for
constexpr double kSpinSeconds = 0.01;

Worker* workers[kMaxThreads];
int worker_count = 0;  // besides the calling thread, which is task 0
Job job;
std::atomic<int> unfinished{0};
std::atomic<bool> failed{false};
cpu_set_t usable;                  // the CPUs that the program may use
int block_threads = 1;             // of the block that runs now
thread_local bool inside = false;  // whether this thread computes a part of a block

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void leave_cpu(int cpu) {
  cpu_set_t others = usable;
  CPU_CLR(cpu, &others);
  if (CPU_COUNT(&others) > 0) sched_setaffinity(0, sizeof others, &others);
}

void compute(int index) {
  inside = true;
  if (job.task(index, &job.group, job.data) != 0) failed.store(true);
  inside = false;
}

void wait_for_job(Worker& self, uint32_t seen) {
  double end = 0;
  for (int spins = 0; self.jobs.load(std::memory_order_acquire) == seen; ++spins) {
    pause_briefly();
    if (spins < kPauses) continue;
    sched_yield();
    double now = now_seconds();
    if (end == 0) end = now + kSpinSeconds;
    if (now < end) continue;
    pthread_mutex_lock(&self.lock);
    self.asleep.store(true);
    while (self.jobs.load() == seen) pthread_cond_wait(&self.woken, &self.lock);
    self.asleep.store(false);
    pthread_mutex_unlock(&self.lock);
  }
}

void* work(void* argument) {
  Worker& self = *static_cast<Worker*>(argument);
  for (uint32_t seen = 0;; ++seen) {
    wait_for_job(self, seen);
    if (sched_getcpu() == job.cpu) leave_cpu(job.cpu);
    compute(self.index);
    unfinished.fetch_sub(1, std::memory_order_release);
  }
  return nullptr;
}

void give_job(Worker& worker) {
  worker.jobs.fetch_add(1);
  if (!worker.asleep.load()) return;
  pthread_mutex_lock(&worker.lock);
  pthread_cond_signal(&worker.woken);
  pthread_mutex_unlock(&worker.lock);
}

void start_workers(int threads) {
  if (threads > kMaxThreads) fail("a block has too many threads", "");
  if (worker_count == 0) sched_getaffinity(0, sizeof usable, &usable);
  while (worker_count < threads - 1) {
    Worker* worker = new (std::aligned_alloc(kAlignment, sizeof(Worker))) Worker;
    worker->index = worker_count + 1;
    pthread_mutex_init(&worker->lock, nullptr);
    pthread_cond_init(&worker->woken, nullptr);
    workers[worker_count++] = worker;
    pthread_t thread;
    if (pthread_create(&thread, nullptr, work, worker) != 0) fail("cannot start a thread", "");
  }
}

int launch(Task* task, void* data, int wanted) {
  int tasks = wanted > 0 && wanted < block_threads ? wanted : block_threads;
  if (inside || tasks == 1) {
    Group alone{nullptr, 1};
    return task(0, &alone, data);
  }
  job = {task, data, {nullptr, tasks}, tasks <= CPU_COUNT(&usable) ? sched_getcpu() : -1};
  unfinished.store(tasks - 1);
  for (int index = 1; index < tasks; ++index) give_job(*workers[index - 1]);
  compute(0);
  for (int spins = 0; unfinished.load(std::memory_order_acquire) != 0; ++spins) {
    pause_briefly();
    if (spins >= kPauses) sched_yield();
  }
  return failed.load() ? -1 : 0;
}

// ---- Scratch memory of kernels. Each thread keeps what it has freed and takes it again.

struct Scratch {
  void* start;
  size_t bytes;
  bool used;
};

constexpr int kScratches = 16;
thread_local Scratch scratches[kScratches];

void* allocate(int, int, uint64_t bytes, int, int) {
  Scratch* free_one = nullptr;
  for (Scratch& item : scratches) {
    if (item.used) continue;
    if (free_one == nullptr || item.bytes > free_one->bytes) free_one = &item;
  }
  if (free_one == nullptr) fail("a kernel asks for too many pieces of memory", "");
  if (free_one->bytes < bytes) {
    std::free(free_one->start);
    free_one->bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    free_one->start = std::aligned_alloc(kAlignment, free_one->bytes);
    if (free_one->start == nullptr) fail("out of memory", "");
  }
  free_one->used = true;
  return free_one->start;
}

int release(int, int, void* start) {
  for (Scratch& item : scratches) {
    if (item.start == start) item.used = false;
  }
  return 0;
}

}  // namespace

// ---- What kernels.o refers to by name

extern "C" {

int (*__TVMBackendParallelLaunch)(Task*, void*, int) = launch;
void* (*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = allocate;
int (*__TVMBackendFreeWorkspace)(int, int, void*) = release;

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  std::fprintf(stderr, "%s: ", kind);
  for (int32_t index = 0; index < count; ++index) std::fputs(parts[index] ? parts[index] : "", stderr);
  std::fputc('\n', stderr);
}

void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message) {
  TVMFFIErrorSetRaisedFromCStrParts(kind, &message, 1);
}

}  // extern "C"

// ---- Blocks

const Block* Block::first = nullptr;
bool Block::timed = false;

Block::Block(const char* name, Kernel* kernel, int threads, std::initializer_list<const Tensor*> arguments)
    : name_(name),
      kernel_(kernel),
      threads_(threads < 1 ? 1 : threads),
      count_(static_cast<int>(arguments.size())),
      arguments_(static_cast<Argument*>(std::calloc(arguments.size() + 1, sizeof(Argument)))) {
  int index = 0;
  for (const Tensor* tensor : arguments) arguments_[index++] = {kTensorArgument, 0, const_cast<View*>(&tensor->view_)};
  const Block** last = &first;
  while (*last != nullptr) last = &const_cast<Block*>(*last)->next_;
  *last = this;
  start_workers(threads_);
}

void Block::run() {
  double began = timed ? now_seconds() : 0;
  block_threads = threads_;
  Argument result{};
  if (kernel_(nullptr, arguments_, count_, &result) != 0) fail("this block failed: ", name_);
  if (timed) seconds_ += now_seconds() - began;
}
