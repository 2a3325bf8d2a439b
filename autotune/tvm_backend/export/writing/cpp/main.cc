// Runs the exported model with TVM's runtime alone: no Python, no compiler.
//
//   main [--repeat N] [--entry NAME] [INPUT.bin ...]
//
// Each INPUT.bin holds the elements of one input, in the order of model.h, row by row. Inputs that are left out are
// ramps from 0 to 1. The outputs are written to output0.bin, output1.bin ... in the current folder.
// A library for several sets of shapes has an entry for each. That whose inputs have the sizes of the files is run,
// unless NAME says which; without files it is the first.
// TVM_NUM_THREADS overrides the number of threads.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "machine.h"
#include "model.h"

namespace ffi = tvm::ffi;

// Plain memory, aligned as the kernels expect it.
struct HostMemory {
  void AllocData(DLTensor* tensor) {
    tensor->data = std::aligned_alloc(64, (ffi::GetDataSize(*tensor) + 63) / 64 * 64);
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

ffi::Tensor MakeTensor(const model::TensorInfo& info) {
  return ffi::Tensor::FromNDAlloc(HostMemory{}, ffi::ShapeView(info.shape.data(), info.shape.size()),
                                  ffi::StringToDLDataType(info.dtype), DLDevice{kDLCPU, 0});
}

void FillWithRamp(const ffi::Tensor& tensor) {
  std::memset(tensor.data_ptr(), 0, ffi::GetDataSize(tensor));
  if (tensor.dtype().code != kDLFloat || tensor.dtype().bits != 32) return;  // zeros are valid for any other type
  float* values = static_cast<float*>(tensor.data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i) values[i] = static_cast<float>(i) / tensor.numel();
}

void ReadFile(const std::string& path, const ffi::Tensor& tensor) {
  const std::streamsize bytes = ffi::GetDataSize(tensor);
  std::ifstream file(path, std::ios::binary);
  if (!file.read(static_cast<char*>(tensor.data_ptr()), bytes) || file.peek() != EOF) {
    std::fprintf(stderr, "%s does not hold exactly %lld bytes\n", path.c_str(), static_cast<long long>(bytes));
    std::exit(2);
  }
}

// Returns the smallest index if it is negative, and else the largest one. Of other numbers than integers the model takes
// the whole part.
template <typename T>
int64_t Outermost(const ffi::Tensor& tensor) {
  const T* begin = static_cast<const T*>(tensor.data_ptr());
  auto [least, most] = std::minmax_element(begin, begin + tensor.numel());
  return static_cast<int64_t>(*least) < 0 ? static_cast<int64_t>(*least) : static_cast<int64_t>(*most);
}

int64_t OutermostIndex(const ffi::Tensor& tensor) {
  const DLDataType dtype = tensor.dtype();
  switch (dtype.code << 8 | dtype.bits) {
    case kDLInt << 8 | 8: return Outermost<int8_t>(tensor);
    case kDLInt << 8 | 16: return Outermost<int16_t>(tensor);
    case kDLInt << 8 | 32: return Outermost<int32_t>(tensor);
    case kDLInt << 8 | 64: return Outermost<int64_t>(tensor);
    case kDLUInt << 8 | 8: return Outermost<uint8_t>(tensor);
    case kDLUInt << 8 | 16: return Outermost<uint16_t>(tensor);
    case kDLUInt << 8 | 32: return Outermost<uint32_t>(tensor);
    case kDLUInt << 8 | 64: return Outermost<uint64_t>(tensor);
    case kDLFloat << 8 | 32: return Outermost<float>(tensor);
    case kDLFloat << 8 | 64: return Outermost<double>(tensor);
    default: return 0;  // no model looks up by any other type
  }
}

// Refuses an index that its table does not have: a kernel would read elsewhere, or crash.
void CheckIndex(const model::TensorInfo& info, const ffi::Tensor& tensor) {
  if (info.rows == 0 || tensor.numel() == 0) return;
  const int64_t outermost = OutermostIndex(tensor);
  if (outermost >= 0 && outermost < info.rows) return;
  std::fprintf(stderr, "input '%s' has the index %lld; its table has %lld rows, counted from 0\n", info.name.c_str(),
               static_cast<long long>(outermost), static_cast<long long>(info.rows));
  std::exit(2);
}

void WriteFile(const std::string& path, const ffi::Tensor& tensor) {
  std::ofstream(path, std::ios::binary)
      .write(static_cast<const char*>(tensor.data_ptr()), ffi::GetDataSize(tensor));
}

[[noreturn]] void Refuse(const std::string& problem) {
  std::fprintf(stderr, "%s: this library has", problem.c_str());
  for (const model::Entry& entry : model::kEntries) std::fprintf(stderr, " %s", entry.name.c_str());
  std::fprintf(stderr, "\n");
  std::exit(2);
}

const model::Entry& EntryNamed(const std::string& name) {
  for (const model::Entry& entry : model::kEntries) {
    if (entry.name == name) return entry;
  }
  Refuse("no entry " + name);
}

std::uintmax_t Bytes(const model::TensorInfo& info) {
  DLDataType dtype = ffi::StringToDLDataType(info.dtype);
  std::uintmax_t bytes = (dtype.bits * dtype.lanes + 7) / 8;
  for (int64_t size : info.shape) bytes *= size;
  return bytes;
}

bool Fits(const model::Entry& entry, const std::vector<std::string>& files) {
  for (size_t i = 0; i < std::min(files.size(), entry.inputs.size()); ++i) {
    std::error_code unreadable;
    if (std::filesystem::file_size(files[i], unreadable) != Bytes(entry.inputs[i])) return false;
  }
  return true;
}

const model::Entry& EntryFor(const std::vector<std::string>& files) {
  if (files.empty() || model::kEntries.size() == 1) return model::kEntries[0];
  const model::Entry* found = nullptr;
  for (const model::Entry& entry : model::kEntries) {
    if (!Fits(entry, files)) continue;
    if (found != nullptr) Refuse("several entries fit the sizes of the files; give --entry NAME");
    found = &entry;
  }
  if (found == nullptr) Refuse("no entry fits the sizes of the files");
  return *found;
}

// Refuses a library that was cut short, whose end would not be there when it is read, or that of another export.
void CheckSize(const std::string& library) {
  std::error_code unreadable;
  const std::uintmax_t bytes = std::filesystem::file_size(library, unreadable);
  if (!unreadable && bytes == model::kLibraryBytes) return;
  if (unreadable) {
    std::fprintf(stderr, "cannot read %s: %s\n", library.c_str(), unreadable.message().c_str());
  } else {
    std::fprintf(stderr, "%s has %llu bytes, and %llu were written: it is damaged, or that of another export\n",
                 library.c_str(), static_cast<unsigned long long>(bytes),
                 static_cast<unsigned long long>(model::kLibraryBytes));
  }
  std::exit(2);
}

ffi::Function LoadModel(const std::string& library, const std::string& function) {
  machine::check(model::kInstructions);
  CheckSize(library);
  ffi::Module machine =
      ffi::Module::LoadFromFile(library)->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
  constexpr int kPooledAllocator = 2;
  machine->GetFunction("vm_initialization").value()(static_cast<int>(kDLCPU), 0, kPooledAllocator);
  return machine->GetFunction(function).value();
}

int main(int argc, char** argv) {
  setenv("TVM_NUM_THREADS", std::to_string(model::kThreads).c_str(), /*overwrite=*/0);
  int repeat = 1, next = 1;
  std::string name;
  for (; next + 1 < argc; next += 2) {
    std::string option = argv[next];
    if (option == "--repeat") repeat = std::max(1, std::atoi(argv[next + 1]));
    else if (option == "--entry") name = argv[next + 1];
    else break;
  }
  std::vector<std::string> files(argv + std::min(next, argc), argv + argc);
  const model::Entry& entry = name.empty() ? EntryFor(files) : EntryNamed(name);

  ffi::Function run = LoadModel(std::filesystem::path(argv[0]).parent_path() / model::kLibrary, entry.name);
  std::vector<ffi::AnyView> arguments;
  std::vector<ffi::Tensor> inputs;
  for (size_t i = 0; i < entry.inputs.size(); ++i) {
    inputs.push_back(MakeTensor(entry.inputs[i]));
    i < files.size() ? ReadFile(files[i], inputs.back()) : FillWithRamp(inputs.back());
    CheckIndex(entry.inputs[i], inputs.back());
  }
  for (const ffi::Tensor& input : inputs) arguments.push_back(input);

  ffi::Any result;
  std::vector<double> milliseconds;
  for (int i = 0; i < repeat; ++i) {
    auto begin = std::chrono::steady_clock::now();
    run.CallPacked(arguments.data(), static_cast<int>(arguments.size()), &result);
    milliseconds.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(milliseconds.begin(), milliseconds.begin() + repeat / 2, milliseconds.end());
  std::printf("%s: %.3f ms, the median of %d runs\n", model::kName, milliseconds[repeat / 2], repeat);

  std::vector<ffi::Tensor> outputs;
  if (auto single = result.as<ffi::Tensor>()) {
    outputs.push_back(*single);
  } else {
    for (const ffi::Any& item : result.cast<ffi::Array<ffi::Any>>()) outputs.push_back(item.cast<ffi::Tensor>());
  }
  for (size_t i = 0; i < outputs.size(); ++i) WriteFile("output" + std::to_string(i) + ".bin", outputs[i]);
  return 0;
}
