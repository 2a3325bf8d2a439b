// Runs the exported model in a program of your own, with TVM's runtime alone: no Python, no compiler.
//
//   autotune::Model net("lib/model.so");
//   std::vector<autotune::Output> outputs = net.run({autotune::input(pixels, {1, 3, 224, 224})});
//   const std::vector<float> scores = outputs[0].values<float>();
//
// A library or a machine that is not right throws std::runtime_error. Inputs that are not, as those of other shapes than
// it takes, throw std::invalid_argument. Threads may share a model: they take turns.
#pragma once
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#define MACHINE_REFUSE(line) throw std::runtime_error(line)
#include "machine.h"
#include "model.h"
#include "shapes.h"

namespace autotune {
namespace ffi = tvm::ffi;

inline size_t bytes_of(const std::string& dtype, const Shape& shape) {
  const DLDataType type = ffi::StringToDLDataType(dtype);
  size_t bytes = (type.bits * type.lanes + 7) / 8;
  for (int64_t size : shape) bytes *= size;
  return bytes;
}

template <typename T>
std::string dtype_of() {
  if (std::is_same_v<T, bool>) return "bool";
  const char* kind = std::is_floating_point_v<T> ? "float" : std::is_signed_v<T> ? "int" : "uint";
  return kind + std::to_string(8 * sizeof(T));
}

// The elements of an input, row by row. They stay the caller's, and are copied when the model runs.
struct Input {
  const void* data;
  Shape shape;
  std::string dtype;
};

template <typename T>
Input input(const T* data, Shape shape) { return {data, std::move(shape), dtype_of<T>()}; }
template <typename T>
Input input(const std::vector<T>& values, Shape shape) {
  const Input made = input(values.data(), std::move(shape));
  if (values.size() * sizeof(T) == bytes_of(made.dtype, made.shape)) return made;
  throw std::invalid_argument(std::to_string(values.size()) + " values are not of the shape " + text(made.shape));
}

struct Output {
  std::string name, dtype;
  Shape shape;
  std::vector<char> bytes;  // of its elements, row by row
  template <typename T>
  std::vector<T> values() const {
    if (dtype != dtype_of<T>()) throw std::invalid_argument("output '" + name + "' is " + dtype);
    std::vector<T> copy(bytes.size() / sizeof(T));
    std::memcpy(copy.data(), bytes.data(), bytes.size());
    return copy;
  }
};

class Model {
 public:
  // Loads the library; `threads` is how many to use, 0 for as many as it was exported for, or as TVM_NUM_THREADS says.
  explicit Model(const std::string& library, int threads = 0)
      : library_(loaded(library)), machine_(library_->GetFunction("vm_load_executable").value()().cast<ffi::Module>()) {
    machine_->GetFunction("vm_initialization").value()(static_cast<int>(kDLCPU), 0, kPooledAllocator);
    if (threads == 0 && std::getenv("TVM_NUM_THREADS") == nullptr) threads = model::kThreads;
    for (const ffi::Any& imported : library_->imports()) {
      auto limit = imported.cast<ffi::Module>()->GetFunction("autotune_threads");
      if (threads > 0 && limit.has_value()) limit.value()(threads);
    }
  }

  std::vector<Output> run(const std::vector<Input>& inputs) {
    const Sizes sizes = sizes_of(inputs);
    const model::Entry& entry = entry_for(inputs);
    std::lock_guard<std::mutex> turn(turn_);
    fill(entry, inputs);
    return outputs(entry, compute(entry), sizes);
  }

  // The steps of `run`.
  void fill(const model::Entry& entry, const std::vector<Input>& inputs) {
    const std::vector<ffi::Tensor>& tensors = tensors_of(entry);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const model::TensorInfo& info = entry.inputs[i];
      const std::string given = inputs[i].dtype + " " + text(inputs[i].shape);
      const std::string wanted = info.dtype + " " + text(info.shape);
      if (inputs[i].dtype != info.dtype || !fits(inputs[i].shape, info))
        throw std::invalid_argument("input '" + info.name + "' is " + given + ", not " + wanted);
      if (inputs[i].shape != info.shape) std::memset(tensors[i].data_ptr(), 0, ffi::GetDataSize(tensors[i]));
      copy_common(tensors[i].data_ptr(), info.shape, inputs[i].data, inputs[i].shape, bytes_of(info.dtype, {}));
      check_index(info, tensors[i]);
    }
  }

  ffi::Any compute(const model::Entry& entry) { return call(entry.name, tensors_of(entry)); }
  // Calls a function of the library with tensors that are the caller's.
  ffi::Any call(const std::string& name, const std::vector<ffi::Tensor>& tensors) {
    const std::vector<ffi::AnyView> arguments(tensors.begin(), tensors.end());
    ffi::Any result;
    machine_->GetFunction(name).value().CallPacked(arguments.data(), arguments.size(), &result);
    return result;
  }

  static ffi::Tensor allocated(const model::TensorInfo& info) {
    return ffi::Tensor::FromNDAlloc(HostMemory{}, ffi::ShapeView(info.shape.data(), info.shape.size()),
                                    ffi::StringToDLDataType(info.dtype), DLDevice{kDLCPU, 0});
  }

  static std::vector<Output> outputs(const model::Entry& entry, const ffi::Any& result, Sizes sizes = {}) {
    std::vector<ffi::Tensor> tensors;
    if (auto single = result.as<ffi::Tensor>()) tensors.push_back(*single);
    else for (const ffi::Any& item : result.cast<ffi::Array<ffi::Any>>()) tensors.push_back(item.cast<ffi::Tensor>());
    for (size_t i = 0; i < model::kCounts.size(); ++i)
      sizes[model::kCounts[i]] = *static_cast<int64_t*>(tensors[entry.outputs.size() + i].data_ptr());
    std::vector<Output> made;
    for (const model::TensorInfo& info : entry.outputs) {
      const void* data = tensors[made.size()].data_ptr();
      const Shape shape = cut(info, sizes);
      made.push_back({info.name, info.dtype, shape, std::vector<char>(bytes_of(info.dtype, shape))});
      copy_common(made.back().bytes.data(), shape, data, info.shape, bytes_of(info.dtype, {}));
    }
    return made;
  }

  static const model::Entry& entry_for(const std::vector<Input>& inputs) {
    const size_t count = model::kInputs.size();
    if (inputs.size() != count) throw std::invalid_argument("the model has " + std::to_string(count) + " inputs");
    if (const model::Entry* entry = smallest_entry(inputs)) return *entry;
    std::string there;
    for (const model::Entry& entry : model::kEntries) {
      const model::TensorInfo& other = entry.inputs[first_unfit(inputs, entry)];
      there += (there.empty() ? "" : ", ") + other.name + " of " + text(other.shape);
    }
    throw std::invalid_argument("the library was compiled for other shapes: " + there);
  }

 private:
  static constexpr int kPooledAllocator = 2;
  struct HostMemory {  // aligned as kernels expect it
    void AllocData(DLTensor* it) { it->data = std::aligned_alloc(64, (ffi::GetDataSize(*it) + 127) / 64 * 64); }
    void FreeData(DLTensor* it) { std::free(it->data); }
  };

  // A library that was cut short would lack its end when that is read.
  static ffi::Module loaded(const std::string& library) {
    machine::check(model::kInstructions);
    const std::uintmax_t bytes = std::filesystem::file_size(library);  // throws if there is none
    if (bytes == model::kLibraryBytes) return ffi::Module::LoadFromFile(library);
    const std::string counts = std::to_string(bytes) + " bytes, and " + std::to_string(model::kLibraryBytes);
    throw std::runtime_error(library + " has " + counts + " were written: it is damaged, or that of another export");
  }

  // An element of an index. Of other numbers than integers the model takes the whole part.
  static int64_t element(const ffi::Tensor& tensor, int64_t i) {
    const int bits = tensor.dtype().bits, code = tensor.dtype().code;
    const char* at = static_cast<const char*>(tensor.data_ptr()) + i * (bits / 8);
    if (code == kDLFloat && bits == 32) return static_cast<int64_t>(*reinterpret_cast<const float*>(at));
    if (code == kDLFloat && bits == 64) return static_cast<int64_t>(*reinterpret_cast<const double*>(at));
    uint64_t value = 0;
    if (code == kDLInt || code == kDLUInt) std::memcpy(&value, at, bits / 8);  // no model looks up by another type
    return code == kDLInt ? static_cast<int64_t>(value << (64 - bits)) >> (64 - bits) : static_cast<int64_t>(value);
  }

  // Refuses an index that its table does not have: a kernel would read elsewhere, or crash.
  static void check_index(const model::TensorInfo& info, const ffi::Tensor& tensor) {
    for (int64_t i = 0; info.rows > 0 && i < tensor.numel(); ++i) {
      const int64_t index = element(tensor, i);
      if (index >= 0 && index < info.rows) continue;
      throw std::invalid_argument("input '" + info.name + "' has the index " + std::to_string(index) +
                                  "; its table has " + std::to_string(info.rows) + " rows, counted from 0");
    }
  }

  std::vector<ffi::Tensor>& tensors_of(const model::Entry& entry) {
    std::vector<ffi::Tensor>& tensors = tensors_[entry.name];
    for (size_t i = tensors.size(); i < entry.inputs.size(); ++i) tensors.push_back(allocated(entry.inputs[i]));
    return tensors;
  }
  ffi::Module library_, machine_;
  std::map<std::string, std::vector<ffi::Tensor>> tensors_;  // the inputs of each function
  std::mutex turn_;
};

}  // namespace autotune
