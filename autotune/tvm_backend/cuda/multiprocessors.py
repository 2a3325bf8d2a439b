"""The multiprocessors of GPUs: how many there are, what one holds, and how fast it is.

CUDA compiles no kernel that declares more than 48 KiB of shared memory (`shared`). What the launch gives a kernel
(`shared.dyn`, as in all kernels for tensor cores) may be nearly all that a multiprocessor has: TVM's runtime asks the
driver for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.tvm_backend.types import Target

MAX_DECLARED = 48 << 10  # bytes of shared memory
_RESERVED = 1 << 10  # of each block, by CUDA, from sm_80 on
_FIRST_WITH_TENSOR_CORES = 75
AMPERE = 80  # the first with `cp.async`, and with bf16 on tensor cores
_LIMIT = "max_shared_memory_per_block"


@dataclass(frozen=True)
class Multiprocessors:
    """The multiprocessors of a GPU: NVIDIA's tables of compute capabilities, and rates in operations or bytes a cycle.

    Attributes:
        count: How many the GPU has.
        threads, blocks, registers: What one holds at the same time.
        shared: Bytes of shared memory of one.
        multiply_adds: In fp32, a cycle.
        l2_bytes: Read from the L2 cache, a cycle, by copies in pieces.
        schedulers: Parts of one, each of which begins an instruction of a warp in a cycle.
    """

    count: int
    threads: int
    blocks: int
    shared: int
    multiply_adds: int
    registers: int = 65536
    l2_bytes: int = 16
    schedulers: int = 4


_BY_ARCH = {
    "sm_75": Multiprocessors(count=40, threads=1024, blocks=16, shared=64 << 10, multiply_adds=64),
    "sm_80": Multiprocessors(count=108, threads=2048, blocks=32, shared=164 << 10, multiply_adds=64),
    "sm_86": Multiprocessors(count=84, threads=1536, blocks=16, shared=100 << 10, multiply_adds=128),
    "sm_89": Multiprocessors(count=128, threads=1536, blocks=24, shared=100 << 10, multiply_adds=128),
    "sm_90": Multiprocessors(count=132, threads=2048, blocks=32, shared=228 << 10, multiply_adds=128),
}
_DEFAULT = _BY_ARCH["sm_86"]


def generation(target: Target) -> int:
    """Return the number of a target's architecture, 90 of `sm_90`."""
    return int(str(target.attrs["arch"]).removeprefix("sm_"))


def multiprocessors(target: Target) -> Multiprocessors:
    """Return those of the largest usual GPU of a target's architecture."""
    return _BY_ARCH.get(str(target.attrs.get("arch", "")), _DEFAULT)


def max_shared_default(target: Target) -> int:
    """Return the bytes of shared memory that a launch may give a block. A lower limit that the target names holds."""
    named = int(target.attrs[_LIMIT])
    if named < MAX_DECLARED or generation(target) < _FIRST_WITH_TENSOR_CORES:
        return named
    return max(named, multiprocessors(target).shared - _RESERVED)
