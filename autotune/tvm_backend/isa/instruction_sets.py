"""The instruction sets and architectures that there are. To add one, write its file and list it here.

`SETS`, the files and `values` need no TVM. `available` says what the CPU of a target has. `intrinsics` makes tensor
programs of the instructions, and chooses which of them a product uses (`intrinsics/amx_and_vector_tiles.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from autotune.machine.cgroups import ROOT
from autotune.tvm_backend.isa.aarch64 import ARCHITECTURE as AARCH64
from autotune.tvm_backend.isa.aarch64 import NEON
from autotune.tvm_backend.isa.amx import AMX
from autotune.tvm_backend.isa.avx2 import AVX2
from autotune.tvm_backend.isa.avx512 import AVX512
from autotune.tvm_backend.isa.avx_vnni import AVX_VNNI
from autotune.tvm_backend.isa.values import Architecture, InstructionSet, Permission
from autotune.tvm_backend.isa.x86 import ARCHITECTURE as X86_64
from autotune.tvm_backend.isa.x86 import SSE

ARCHITECTURES: tuple[Architecture, ...] = (X86_64, AARCH64)
# Of the sets that a CPU has, the first is preferred.
SETS: tuple[InstructionSet, ...] = (AVX512, AVX_VNNI, AVX2, SSE, AMX, NEON)


def architecture_of(triple: str) -> Architecture | None:
    """Return the architecture of a target's triple, such as `aarch64-linux-gnu`; None of one that is not listed."""
    first = triple.partition("-")[0]
    return next((item for item in ARCHITECTURES if first == item.name or first in item.aliases), None)


def cpu_flags(root: Path = ROOT) -> frozenset[str]:
    """Return the names of what this CPU can do, such as `avx2`, as the kernel lists them; none where it does not."""
    try:
        lines = (root / "proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    headings = tuple(item.features_line for item in ARCHITECTURES)
    listed = (line.partition(":")[2].split() for line in lines if line.startswith(headings))
    return next(map(frozenset, listed), frozenset())


def permissions(reported: Collection[str]) -> Iterator[Permission]:
    """Yield what a process must ask for that uses some features, named as the system lists them."""
    for item in SETS:
        if item.permission is not None and item.permission.reported in reported:
            yield item.permission


def max_operations(reported: Collection[str]) -> int:
    """Return how many operations on bytes a core does in a cycle at most.

    Args:
        reported: What the CPU can do, as the system lists it.
    """
    present = (item for item in SETS if any(feature.reported in reported for feature in item.features))
    return max((item.operations for item in present), default=SSE.operations)
