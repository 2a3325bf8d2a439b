// What the machine must have to run the compiled kernels: otherwise their first call would end the process by a signal.
#pragma once
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#endif

// What is done with the line that says what the machine lacks. It may throw, and must not return.
#ifndef MACHINE_REFUSE
#define MACHINE_REFUSE(line) (std::fprintf(stderr, "%s\n", line), std::exit(2))
#endif

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

// Fills `line` with what the CPU can do, as the kernel lists it; returns whether it does.
inline bool read_flags(char* line, int bytes) {
  FILE* file = std::fopen("/proc/cpuinfo", "r");
  if (file == nullptr) return false;
  bool listed = false;
  while (!listed && std::fgets(line, bytes, file) != nullptr) listed = std::strncmp(line, "flags", 5) == 0;
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

// Refuses to go on without the tiles of AMX; `error` is the number of the error with which the system refused them.
inline void check_tiles(int error) {
  if (error == 0) return;
  static char refusal[1 << 10];
  if (error == ENOSPC) {
    std::snprintf(refusal, sizeof refusal,
                  "a thread of this process has an alternate signal stack (sigaltstack) that is too small for the tiles"
                  " of AMX; load the library before that stack is set, or set one of 64 KiB");
  } else {
    std::snprintf(refusal, sizeof refusal,
                  "the system refuses the tiles of AMX to this process (%s); allow arch_prctl and use Linux 5.16 or"
                  " later, or export the model for a CPU without them",
                  std::strerror(error));
  }
  MACHINE_REFUSE(refusal);
}

// Asks the system to keep the tiles of AMX for all threads. It then refuses signal stacks that are too small for them.
inline int ask_for_tiles() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? 0 : errno;
#else
  return 0;
#endif
}

inline void check(const char* instructions) {
  check_cpu(instructions);
  if (has_word(instructions, "amx_tile")) check_tiles(ask_for_tiles());
}

}  // namespace machine
