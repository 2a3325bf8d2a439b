// Runs the exported model with TVM's runtime alone: no Python, no compiler.
//
//   main [--repeat N] [INPUT.bin ...]
//
// Each INPUT.bin holds the elements of one input, in the order of model.h, row by row. Inputs that are left out are
// ramps from 0 to 1. The outputs are written to output0.bin, output1.bin ... in the current folder.
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

void WriteFile(const std::string& path, const ffi::Tensor& tensor) {
  std::ofstream(path, std::ios::binary)
      .write(static_cast<const char*>(tensor.data_ptr()), ffi::GetDataSize(tensor));
}

ffi::Function LoadModel(const std::string& library) {
  ffi::Module machine =
      ffi::Module::LoadFromFile(library)->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
  constexpr int kPooledAllocator = 2;
  machine->GetFunction("vm_initialization").value()(static_cast<int>(kDLCPU), 0, kPooledAllocator);
  return machine->GetFunction("main").value();
}

int main(int argc, char** argv) {
  setenv("TVM_NUM_THREADS", std::to_string(model::kThreads).c_str(), /*overwrite=*/0);
  int repeat = 1, next = 1;
  if (argc > 2 && std::string(argv[1]) == "--repeat") repeat = std::max(1, std::atoi(argv[2])), next = 3;

  ffi::Function run = LoadModel(std::filesystem::path(argv[0]).parent_path() / model::kLibrary);
  std::vector<ffi::AnyView> arguments;
  std::vector<ffi::Tensor> inputs;
  for (const model::TensorInfo& info : model::kInputs) {
    inputs.push_back(MakeTensor(info));
    next < argc ? ReadFile(argv[next++], inputs.back()) : FillWithRamp(inputs.back());
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
