// What network.cpp is written in: tensors in an arena or in a mapped file, and blocks that call compiled kernels.
//
// The kernels in kernels.o take their arguments as TVM's compiler lays them out (`View` is DLPack's DLTensor). They
// need nothing of TVM's runtime but the few functions in shim.cpp.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>

struct Type {
  uint8_t code, bits;
  uint16_t lanes;
};

constexpr Type int8{0, 8, 1}, int16{0, 16, 1}, int32{0, 32, 1}, int64{0, 64, 1};
constexpr Type uint8{1, 8, 1}, uint16{1, 16, 1}, uint32{1, 32, 1}, uint64{1, 64, 1};
constexpr Type float16{2, 16, 1}, float32{2, 32, 1}, float64{2, 64, 1}, bfloat16{4, 16, 1}, boolean{6, 8, 1};

struct View {
  void* data;
  int32_t device_type, device_id;
  int32_t dimensions;
  Type type;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};

// A dense array, row by row. It does not own its memory.
class Tensor {
 public:
  Tensor(void* data, Type type, std::initializer_list<int64_t> shape);
  Tensor(const Tensor&) = delete;
  void* data() const { return view_.data; }
  size_t bytes() const;
  Tensor reshaped(std::initializer_list<int64_t> shape) const { return Tensor(view_.data, view_.type, shape); }

 private:
  friend class Block;
  static constexpr int kMaxDimensions = 12;
  View view_;
  int64_t shape_[kMaxDimensions], strides_[kMaxDimensions];
};

// The memory of all buffers, filled with zeros.
class Arena {
 public:
  explicit Arena(size_t bytes);
  Tensor at(size_t offset, Type type, std::initializer_list<int64_t> shape) const {
    return Tensor(start_ + offset, type, shape);
  }

 private:
  char* start_;
};

// A file of weights, mapped into memory. Ends the program if it is another file than the network was made with.
class Weights {
 public:
  Weights(const char* path, size_t bytes, const char* id);
  Tensor at(size_t offset, Type type, std::initializer_list<int64_t> shape) const {
    return Tensor(start_ + offset, type, shape);
  }

 private:
  char* start_;
};

struct Argument {
  int32_t kind;
  uint32_t padding;
  void* value;
};

using Kernel = int32_t(void* self, const Argument* arguments, int32_t count, Argument* result);

#define KERNEL(name) #name, __tvm_ffi_##name

// One fused block of the network: a kernel, how many threads it runs on, and its arguments; the results come last.
class Block {
 public:
  Block(const char* name, Kernel* kernel, int threads, std::initializer_list<const Tensor*> arguments);
  Block(const Block&) = delete;
  void run();

  const char* name() const { return name_; }
  int threads() const { return threads_; }
  double seconds() const { return seconds_; }  // in all runs while `timed` was set
  const Block* next() const { return next_; }  // in the order in which they were made
  static const Block* first;
  static bool timed;

 private:
  const char* name_;
  Kernel* kernel_;
  int threads_, count_;
  Argument* arguments_;
  double seconds_ = 0;
  const Block* next_ = nullptr;
};

double now_seconds();
