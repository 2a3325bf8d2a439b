// The tiles of AMX, which a process must ask the system for: without them, the first of its instructions ends it.
#pragma once
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#endif

namespace amx {

// Asks the system to keep the tiles for all threads. It then refuses signal stacks that are too small for them. Returns
// 0, or the number of the error with which the system refuses.
inline int ask_for_tiles() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? 0 : errno;
#else
  return 0;
#endif
}

// Refuses to go on without the tiles, by `MACHINE_REFUSE` of machine.h; `error` is what `ask_for_tiles` returned.
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

}  // namespace amx
