"""Compile the thread pool that every library for CPUs brings along.

With TVM's own pool, each kernel waits until every thread has done its fixed share. On a machine with other work, a
thread that has no CPU then costs a time slice of the system for each kernel. `pool.c` describes ours.

`pool.ll` is what clang makes of `pool.c`; `scripts/docs/write_pool.sh` writes it. TVM's LLVM compiles it for any CPU,
so that a machine without a C compiler can export. A test holds the two equal.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

from autotune.tvm_backend.isa.instruction_sets import architecture_of
from autotune.tvm_backend.linker import architecture
from autotune.tvm_backend.programs import llvm_object

_SPIN = """
define internal void @autotune_spin_hint() alwaysinline nounwind {{
  call void asm sideeffect "{instruction}", "~{{memory}}"()
  ret void
}}
"""


@lru_cache(maxsize=4)
def pool_object(triple: str = "") -> bytes:
    """Return the pool as an object file. It takes some 20 ms, once for each target in a process.

    Args:
        triple: What to compile for, such as `aarch64-linux-gnu`; empty for this machine.
    """
    kind = architecture_of(architecture(triple))
    code = resources.files(__package__).joinpath("pool.ll").read_text()
    hint = _SPIN.format(instruction=kind.spin_hint if kind is not None else "nop")
    return llvm_object(code + hint, triple)
