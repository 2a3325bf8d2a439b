// Runs the exported model with TVM's runtime alone: no Python, no compiler.
//
//   main [--repeat N] [--entry NAME] [INPUT.bin ...]
//
// Each INPUT.bin holds the elements of one input, in the order of model.h, row by row. Inputs that are left out are
// ramps from 0 to 1. The outputs are written to output0.bin, output1.bin ... in the current folder.
// A library for several sets of shapes has an entry for each. That whose inputs have the sizes of the files is run,
// unless NAME says which; without files it is the first.
// TVM_NUM_THREADS overrides the number of threads.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>

#include "autotune.h"

using Bytes = std::vector<char>;

Bytes Ramp(const model::TensorInfo& info) {
  Bytes bytes(autotune::bytes_of(info.dtype, info.shape));  // zeros, which are valid for any type
  if (info.dtype != "float32") return bytes;
  std::vector<float> values(bytes.size() / sizeof(float));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / values.size();
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

Bytes Read(const std::string& path, const model::TensorInfo& info) {
  Bytes bytes(autotune::bytes_of(info.dtype, info.shape));
  std::ifstream file(path, std::ios::binary);
  if (file.read(bytes.data(), bytes.size()) && file.peek() == EOF) return bytes;
  throw std::runtime_error(path + " does not hold exactly " + std::to_string(bytes.size()) + " bytes");
}

[[noreturn]] void Refuse(const std::string& problem) {
  std::string names;
  for (const model::Entry& entry : model::kEntries) names += " " + entry.name;
  throw std::runtime_error(problem + ": this library has" + names);
}

const model::Entry& EntryNamed(const std::string& name) {
  for (const model::Entry& entry : model::kEntries) {
    if (entry.name == name) return entry;
  }
  Refuse("no entry " + name);
}

bool Fits(const model::Entry& entry, const std::vector<std::string>& files) {
  for (size_t i = 0; i < std::min(files.size(), entry.inputs.size()); ++i) {
    std::error_code unreadable;
    const std::uintmax_t bytes = autotune::bytes_of(entry.inputs[i].dtype, entry.inputs[i].shape);
    if (std::filesystem::file_size(files[i], unreadable) != bytes) return false;
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

void Run(const std::string& folder, const model::Entry& entry, const std::vector<std::string>& files, int repeat) {
  autotune::Model net(std::filesystem::path(folder) / model::kLibrary);
  std::vector<Bytes> contents;
  std::vector<autotune::Input> inputs;
  for (size_t i = 0; i < entry.inputs.size(); ++i) {
    const model::TensorInfo& info = entry.inputs[i];
    contents.push_back(i < files.size() ? Read(files[i], info) : Ramp(info));
    inputs.push_back({contents.back().data(), info.shape, info.dtype});
  }
  net.fill(entry, inputs);

  tvm::ffi::Any result;
  std::vector<double> milliseconds;
  for (int i = 0; i < repeat; ++i) {
    auto begin = std::chrono::steady_clock::now();
    result = net.compute(entry);
    milliseconds.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(milliseconds.begin(), milliseconds.begin() + repeat / 2, milliseconds.end());
  std::printf("%s: %.3f ms, the median of %d runs\n", model::kName, milliseconds[repeat / 2], repeat);

  const std::vector<autotune::Output> outputs = autotune::Model::outputs(entry, result);
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::ofstream("output" + std::to_string(i) + ".bin", std::ios::binary)
        .write(outputs[i].bytes.data(), outputs[i].bytes.size());
  }
}

int main(int argc, char** argv) {
  int repeat = 1, next = 1;
  std::string name;
  for (; next + 1 < argc; next += 2) {
    std::string option = argv[next];
    if (option == "--repeat") repeat = std::max(1, std::atoi(argv[next + 1]));
    else if (option == "--entry") name = argv[next + 1];
    else break;
  }
  const std::vector<std::string> files(argv + std::min(next, argc), argv + argc);
  try {
    const model::Entry& entry = name.empty() ? EntryFor(files) : EntryNamed(name);
    Run(std::filesystem::read_symlink("/proc/self/exe").parent_path(), entry, files, repeat);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
