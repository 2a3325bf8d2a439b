// What the machine must have to run the compiled kernels: otherwise their first call would end the process by a signal.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>

// What is done with the line that says what the machine lacks. It may throw, and must not return.
#ifndef MACHINE_REFUSE
#define MACHINE_REFUSE(line) (std::fprintf(stderr, "%s\n", line), std::exit(2))
#endif

#include "amx.h"

namespace machine {

// Returns whether a line has a word. Words are separated by spaces.
inline bool has_word(const char* line, const char* word) {
  const size_t length = std::strlen(word);
  for (const char* at = std::strstr(line, word); at != nullptr; at = std::strstr(at + 1, word)) {
    const bool begins = at == line || at[-1] == ' ' || at[-1] == '\t';
    if (begins && (at[length] == ' ' || at[length] == '\n' || at[length] == '\0')) return true;
  }
  return false;
}

// How the line begins in which the kernel lists what the CPU can do. An emulator may show that of another CPU.
#if defined(__x86_64__)
constexpr char kList[] = "flags";
#else
constexpr char kList[] = "Features";
#endif

// Fills `line` with what the CPU can do, as the kernel lists it; returns whether it does.
inline bool read_flags(char* line, int bytes) {
  FILE* file = std::fopen("/proc/cpuinfo", "r");
  if (file == nullptr) return false;
  bool listed = false;
  while (!listed && std::fgets(line, bytes, file) != nullptr) listed = std::strncmp(line, kList, sizeof kList - 1) == 0;
  std::fclose(file);
  return listed;
}

// Refuses a CPU that lacks some of `instructions`, which are separated by spaces and named as the kernel names them.
inline void check_cpu(const char* instructions) {
  static char flags[1 << 14], wanted[1 << 10], missing[1 << 10], refusal[1 << 11];
  missing[0] = '\0';
  if (!read_flags(flags, sizeof flags)) return;
  std::snprintf(wanted, sizeof wanted, "%s", instructions);
  for (char* word = std::strtok(wanted, " "); word != nullptr; word = std::strtok(nullptr, " ")) {
    if (has_word(flags, word)) continue;
    if (missing[0] != '\0') std::strcat(missing, ", ");
    std::strcat(missing, word);
  }
  if (missing[0] == '\0') return;
  std::snprintf(refusal, sizeof refusal,
                "the model was compiled for a CPU with %s, which this one lacks; tune and export it on such a machine",
                missing);
  MACHINE_REFUSE(refusal);
}

inline void check(const char* instructions) {
  check_cpu(instructions);
  if (has_word(instructions, "amx_tile")) amx::check_tiles(amx::ask_for_tiles());
}

}  // namespace machine
