#!/usr/bin/env bash
# Write pool.ll, the thread pool as LLVM's text, from pool.c. CLANG is the compiler: any from 15 to 18.
set -euo pipefail
cd "$(dirname "$0")/../../autotune/tvm_backend/threads"

# What names this machine goes, so that LLVM compiles the text for any: its triple, its CPU, and how a thread spins.
"${CLANG:-clang-16}" -O2 -fPIC -S -emit-llvm -fno-ident -Wall -Wextra -DFOR_ANY_CPU pool.c -o - |
  sed -E \
    -e '/^(; ModuleID|source_filename|target )/d' \
    -e 's/ "(min-legal-vector-width|no-trapping-math|stack-protector-buffer-size|target-cpu|target-features|tune-cpu|frame-pointer)"="[^"]*"//g' \
    -e '/^declare void @autotune_spin_hint/d' \
    -e 's/^(attributes #[0-9]+ =) \{ *\}/\1 { nounwind }/' > pool.ll
