// Runs the network of network.cpp.
//
//   main [--repeat N] [--blocks] [--weights FILE] [INPUT.bin ...]
//
// Each INPUT.bin holds the elements of one input, in the order of model.h, row by row. Inputs that are left out are
// ramps from 0 to 1. The outputs are written to output0.bin, output1.bin ... in the current folder. With --blocks the
// time of each block is printed. The weights are those of weights.bin beside the program.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "model.h"
#include "shim.h"

static void fill_with_ramp(const model::TensorInfo& info, void* data) {
  std::memset(data, 0, info.bytes);
  if (std::strcmp(info.type, "float32") != 0) return;  // zeros are valid for any other type
  const size_t count = info.bytes / sizeof(float);
  float* values = static_cast<float*>(data);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) / count;
}

static void read_file(const char* path, void* data, size_t bytes) {
  FILE* file = std::fopen(path, "rb");
  if (file == nullptr || std::fread(data, 1, bytes, file) != bytes || std::fgetc(file) != EOF) {
    std::fprintf(stderr, "%s does not hold exactly %zu bytes\n", path, bytes);
    std::exit(2);
  }
  std::fclose(file);
}

// Returns the smallest index if it is negative, and else the largest one. Of other numbers than integers the model takes
// the whole part.
template <typename T>
static int64_t outermost(const void* data, size_t bytes) {
  const T* values = static_cast<const T*>(data);
  T least = values[0], most = values[0];
  for (size_t i = 1; i < bytes / sizeof(T); ++i) {
    if (values[i] < least) least = values[i];
    if (values[i] > most) most = values[i];
  }
  return static_cast<int64_t>(least) < 0 ? static_cast<int64_t>(least) : static_cast<int64_t>(most);
}

static int64_t outermost_index(const model::TensorInfo& info, const void* data) {
  const char* type = info.type;
  if (std::strcmp(type, "int8") == 0) return outermost<int8_t>(data, info.bytes);
  if (std::strcmp(type, "int16") == 0) return outermost<int16_t>(data, info.bytes);
  if (std::strcmp(type, "int32") == 0) return outermost<int32_t>(data, info.bytes);
  if (std::strcmp(type, "int64") == 0) return outermost<int64_t>(data, info.bytes);
  if (std::strcmp(type, "uint8") == 0) return outermost<uint8_t>(data, info.bytes);
  if (std::strcmp(type, "uint16") == 0) return outermost<uint16_t>(data, info.bytes);
  if (std::strcmp(type, "uint32") == 0) return outermost<uint32_t>(data, info.bytes);
  if (std::strcmp(type, "uint64") == 0) return outermost<uint64_t>(data, info.bytes);
  if (std::strcmp(type, "float32") == 0) return outermost<float>(data, info.bytes);
  if (std::strcmp(type, "float64") == 0) return outermost<double>(data, info.bytes);
  return 0;  // no model looks up by any other type
}

// Refuses an index that its table does not have: a kernel would read elsewhere, or crash.
static void check_index(const model::TensorInfo& info, const void* data) {
  if (info.rows == 0 || info.bytes == 0) return;
  const long long found = outermost_index(info, data);
  if (found >= 0 && found < info.rows) return;
  std::fprintf(stderr, "input '%s' has the index %lld; its table has %lld rows, counted from 0\n", info.name, found,
               static_cast<long long>(info.rows));
  std::exit(2);
}

static void write_output(int index, const void* data, size_t bytes) {
  char path[32];
  std::snprintf(path, sizeof path, "output%d.bin", index);
  FILE* file = std::fopen(path, "wb");
  if (file == nullptr || std::fwrite(data, 1, bytes, file) != bytes || std::fclose(file) != 0) {
    std::fprintf(stderr, "cannot write %s\n", path);
    std::exit(2);
  }
}

// The FNV-1a hash of the bytes of all outputs.
static uint64_t checksum() {
  uint64_t hash = 14695981039346656037u;
  for (int index = 0; index < model::kOutputCount; ++index) {
    const unsigned char* bytes = static_cast<const unsigned char*>(model::output(index));
    for (size_t i = 0; i < model::kOutputs[index].bytes; ++i) hash = (hash ^ bytes[i]) * 1099511628211u;
  }
  return hash;
}

static const char* beside_the_program(const char* name) {
  static char path[4096];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - std::strlen(name) - 1);
  if (length < 0) return name;
  while (length > 0 && path[length - 1] != '/') --length;
  std::strcpy(path + length, name);
  return path;
}

static double peak_megabytes() {
  FILE* file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) return 0;
  char line[256];
  long kilobytes = 0;
  while (std::fgets(line, sizeof line, file) != nullptr && std::sscanf(line, "VmHWM: %ld", &kilobytes) != 1) {
  }
  std::fclose(file);
  return kilobytes * 1024 / 1e6;
}

static void print_blocks(int repeat) {
  std::printf("\n%10s  threads  block\n", "ms");
  for (const Block* block = Block::first; block != nullptr; block = block->next()) {
    std::printf("%10.4f  %7d  %s\n", block->seconds() * 1e3 / repeat, block->threads(), block->name());
  }
}

int main(int argc, char** argv) {
  int repeat = 1, given = 0;
  const char* weights = nullptr;
  const char* files[model::kInputCount + 1];
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--blocks") == 0) {
      Block::timed = true;
    } else if (std::strcmp(argv[i], "--repeat") == 0 && i + 1 < argc) {
      repeat = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--weights") == 0 && i + 1 < argc) {
      weights = argv[++i];
    } else if (argv[i][0] != '-' && given < model::kInputCount) {
      files[given++] = argv[i];
    } else {
      std::fprintf(stderr, "main [--repeat N] [--blocks] [--weights FILE] [INPUT.bin ...], %d inputs at most\n",
                   model::kInputCount);
      return 2;
    }
  }

  const double began = now_seconds();
  model::load(weights != nullptr ? weights : beside_the_program("weights.bin"));
  for (int i = 0; i < model::kInputCount; ++i) {
    if (i < given) read_file(files[i], model::input(i), model::kInputs[i].bytes);
    else fill_with_ramp(model::kInputs[i], model::input(i));
    check_index(model::kInputs[i], model::input(i));
  }
  const double loaded = now_seconds();
  double* milliseconds = static_cast<double*>(std::malloc(repeat * sizeof(double)));
  for (int i = 0; i < repeat; ++i) {
    const double start = now_seconds();
    model::run();
    milliseconds[i] = (now_seconds() - start) * 1e3;
  }
  const double first = milliseconds[0];
  std::sort(milliseconds, milliseconds + repeat);
  std::printf("%s: %.3f ms, the median of %d runs (%.3f to %.3f)\n", model::kName, milliseconds[repeat / 2], repeat,
              milliseconds[0], milliseconds[repeat - 1]);
  std::free(milliseconds);
  std::printf("loaded in %.1f ms, first run %.1f ms, peak memory %.1f MB, checksum of the outputs %016llx\n",
              (loaded - began) * 1e3, first, peak_megabytes(), static_cast<unsigned long long>(checksum()));
  if (Block::timed) print_blocks(repeat);
  for (int i = 0; i < model::kOutputCount; ++i) write_output(i, model::output(i), model::kOutputs[i].bytes);
  return 0;
}
