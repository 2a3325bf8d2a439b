// Memory, and the functions of TVM's runtime that compiled kernels call. Those for threads are in pool.c.
#include "shim.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

extern "C" void autotune_limit(int32_t threads);  // of the loops that run next

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

namespace {

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
}

void Block::run() {
  double began = timed ? now_seconds() : 0;
  autotune_limit(threads_);
  Argument result{};
  if (kernel_(nullptr, arguments_, count_, &result) != 0) fail("this block failed: ", name_);
  if (timed) seconds_ += now_seconds() - began;
}
