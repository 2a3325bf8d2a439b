/* Runs the launches that the stand-in noted, in a process of its own under a sanitizer.
 *
 *   PROGRAM LAUNCHES     a file as `stand_in.h` says of `launches`
 *
 * Each launch gets memory of its own, of exactly the size that its arguments had, full of zeros.
 */
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "block.h"

namespace {

struct Argument {
  std::vector<unsigned char> bytes;
  void *memory = nullptr;
};

Argument argument(const std::string &word) {
  Argument made;
  if (word[0] == '*') {
    made.memory = calloc(1, strtoull(word.c_str() + 1, nullptr, 10));
    made.bytes.resize(sizeof made.memory);
    memcpy(made.bytes.data(), &made.memory, sizeof made.memory);
    return made;
  }
  for (size_t i = 0; i + 1 < word.size(); i += 2) made.bytes.push_back(strtoul(word.substr(i, 2).c_str(), nullptr, 16));
  return made;
}

int run(const std::string &line) {
  std::istringstream words(line);
  std::string name, word;
  unsigned size[7];
  words >> name;
  for (unsigned &number : size) words >> number;
  std::vector<Argument> arguments;
  while (words >> word) arguments.push_back(argument(word));
  std::vector<void *> pointers;
  for (Argument &it : arguments) pointers.push_back(it.bytes.data());
  auto *entry = static_cast<const cuda_on_cpu::Entry *>(dlsym(RTLD_DEFAULT, ("cuda_on_cpu_" + name).c_str()));
  if (!entry) {
    fprintf(stderr, "ERROR: there is no kernel %s\n", name.c_str());
    return 1;
  }
  int error = entry->run(pointers.data(), size, size + 3, size[6]);
  for (Argument &it : arguments) free(it.memory);
  return error;
}
}  // namespace

int main(int count, char **words) {
  std::ifstream launches(words[count - 1]);
  int failed = 0;
  for (std::string line; std::getline(launches, line);) failed |= run(line);
  return failed != 0;
}
