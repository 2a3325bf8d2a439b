#!/usr/bin/env python
"""Say what ptxas makes of the pipeline for tensor cores: registers, spills, occupancy, instructions of the inner loop.

    pip install nvidia-cuda-nvdisasm                # or put an `nvdisasm` into PATH
    python scripts/gpu/pipeline_table.py            # needs no GPU; some 60 kernels in a minute or two
    python scripts/gpu/pipeline_table.py product_fp16 --arch sm_80

The inner loop is the one with the most `HMMA` or `IMMA`. For each of these, a warp of CUTLASS's multistage kernels has
one `LDSM` for 16 rows of either operand (tiles of 64 by 64: 32 products and 8 loads a step), and each thread copies its
part of both tiles in pieces of 16 bytes (`LDGSTS`). What is left are addresses, barriers and branches, in TF32 the
rounding of operands, and in attention (`attention.cuh`: queries, keys, threads, steps, stages) the softmax.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from check_schedules import build
from count_instructions import find_disassembler

# Rows and columns of a tile, threads, steps of a tile, stages.
TILES = (
    (256, 128, 256, 2, 3),
    (128, 256, 256, 2, 3),
    (128, 128, 256, 2, 4),
    (128, 128, 128, 2, 3),
    (128, 128, 128, 4, 3),
    (128, 64, 128, 4, 4),
    (64, 128, 128, 2, 5),
    (64, 64, 128, 4, 4),
    (64, 64, 64, 4, 3),
    (32, 64, 64, 4, 4),
)
HEADS = (32, 64, 128)  # elements
_ARITHMETIC = ("HMMA", "IMMA")
_COUNTED = ("LDSM", "LDGSTS", "LDS", "BAR")
_ADDRESS = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\d+\s+)?([A-Z][\w.]*)([^;]*);")
_TARGET = re.compile(r"\(?\.(L_x_\d+)\)?")
_LABEL = re.compile(r"^\.(L_x_\d+):", re.MULTILINE)
_HEAD = "BAR."
_REGISTERS = 65536
_MAX_BLOCKS = 32


@dataclass(frozen=True)
class Loop:
    """The instructions of a loop, by the first part of their names."""

    counts: Counter[str]

    @property
    def products(self) -> int:
        """How many it multiplies."""
        return sum(self.counts[name] for name in _ARITHMETIC)


def product(rows: int, columns: int, terms: int, dtype: str, sums: str = "float32", *, by_terms: bool = False) -> Any:
    """A product with a bias of which the positive part is taken. `by_terms`: the second matrix is transposed."""
    from tvm import te, topi

    a = te.placeholder((rows, terms), dtype, name="a")
    b = te.placeholder((columns, terms) if by_terms else (terms, columns), dtype, name="b")
    bias = te.placeholder((columns,), sums, name="bias")
    k = te.reduce_axis((0, terms), "k")
    right = lambda j: (b[j, k] if by_terms else b[k, j]).astype(sums)  # noqa: E731
    total = te.compute((rows, columns), lambda i, j: te.sum(a[i, k].astype(sums) * right(j), k), name="c")
    return _program([a, b, bias, topi.nn.relu(topi.add(total, bias))])


def convolution(batch: int, size: int, channels: int, filters: int, dtype: str) -> Any:
    """A convolution of 3 by 3 with a bias and a residual sum."""
    from tvm import te, topi

    x = te.placeholder((batch, size, size, channels), dtype, name="x")
    w = te.placeholder((filters, 3, 3, channels), dtype, name="w")
    bias = te.placeholder((1, 1, 1, filters), dtype, name="bias")
    other = te.placeholder((batch, size, size, filters), dtype, name="other")
    c = topi.nn.conv2d(x, w, 1, 1, 1, data_layout="NHWC", kernel_layout="OHWI", out_dtype="float32")
    return _program([x, w, bias, other, topi.nn.relu(topi.add(topi.add(topi.cast(c, dtype), bias), other))])


def _program(arguments: list[Any]) -> Any:
    import tvm
    from tvm import te

    from autotune.tvm_backend.cuda import tf32

    program = tvm.IRModule({"main": te.create_prim_func(arguments).with_attr("global_symbol", "main")})
    return tf32.allow(program) if str(arguments[0].dtype) == "float32" else program


KINDS: dict[str, Callable[[], Any]] = {
    "product_fp16": lambda: product(4096, 4096, 4096, "float16"),
    "product_bf16": lambda: product(4096, 4096, 4096, "bfloat16"),
    "product_tf32": lambda: product(4096, 4096, 4096, "float32", by_terms=True),  # as constant matrices lie
    "product_tf32_of_two": lambda: product(4096, 4096, 4096, "float32"),
    "product_int8": lambda: product(4096, 4096, 4096, "int8", "int32"),
    "convolution_fp16": lambda: convolution(32, 28, 128, 128, "float16"),
}


def schedule_of(program: Any, target: Any, tiles: tuple[int, int, int, int, int]) -> Any:
    """The schedule with these tiles, without a split sum; None where the program has no such tiles."""
    from tvm.s_tir import Schedule

    from autotune.tvm_backend.search.design_space import tune_context

    sketches = tune_context(program, target).generate_design_space()
    trace = next(item.trace for item in sketches if "autotune.pipeline" in str(item.trace))
    vector = next(int(item.inputs[1]) for item in trace.insts if "autotune.pipeline_vector" in map(str, item.attrs))
    rows, columns, threads, steps, stages = tiles
    chosen = (item for item in trace.insts if item.kind.name == "SampleCategorical")
    for item, size in zip(chosen, (rows, columns // vector, threads, steps, stages, 8), strict=False):
        possible = list(map(int, item.attrs[0]))
        if size not in possible:
            return None
        trace = trace.with_decision(item, possible.index(size), False)
    schedule = Schedule(program)
    trace.apply_to_schedule(schedule, False)
    return schedule


def inner_loop(listing: str) -> Loop:
    """The loop of a disassembled kernel that multiplies most."""
    return max(_loops(listing), key=lambda loop: loop.products, default=Loop(Counter()))


def _loops(listing: str) -> Iterator[Loop]:
    """The stretches of code from a label to a branch back to it, with what lies before it and is branched to."""
    labels = {match[1]: match.start() for match in _LABEL.finditer(listing)}
    branches = [
        (match.end(), labels[target[1]])
        for match in _ADDRESS.finditer(listing)
        if match[2] == "BRA" and (target := _TARGET.search(match[3]))
    ]
    for end, start in branches:
        begin = min([start, *(to for place, to in branches if start < place < end)])
        if start < end and _HEAD in listing[start:end]:
            yield Loop(Counter(item[2].partition(".")[0] for item in _ADDRESS.finditer(listing[begin:end])))


def disassembled(code: bytes, disassembler: str) -> str:
    """The machine code of a cubin as text."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        command = [disassembler, "-c", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def row(kind: str, tiles: tuple[int, int, int, int, int], target: Any, disassembler: str) -> list[object] | None:
    """The cells of a line of the table; None where there are no such tiles of the kind."""
    from autotune.tvm_backend.cuda import tensor_pipeline
    from autotune.tvm_backend.cuda.multiprocessors import multiprocessors

    schedule = schedule_of(KINDS[kind](), target, tiles)
    if schedule is None:
        return None
    ((_, chosen),) = tensor_pipeline.marked(schedule.mod)
    if not tensor_pipeline.fits(schedule.mod, multiprocessors(target).shared - 1024):
        return None
    return _cells(schedule.mod, target, chosen.threads, chosen.shared_bytes(), disassembler)


def attention_row(size: int, target: Any, disassembler: str) -> tuple[str, list[object]]:
    """The tile and the cells of attention with heads of a size, and with a mask."""
    import tvm

    from autotune.tvm_backend.cuda.attention_kernel import AttentionShape

    shape = AttentionShape(8, 12, 512, 512, size, 0.125, (8, 1, 1, 512))
    program = shape.program("float16", target).with_attr("global_symbol", "main")
    cells = _cells(tvm.IRModule({"main": program}), target, 128, shape.shared_bytes(4), disassembler)
    return f"64, 64, 128, {size // 16}, 2", cells


def _cells(scheduled: Any, target: Any, threads: int, used: int, disassembler: str) -> list[object]:
    from autotune.tvm_backend.cuda import cubin
    from autotune.tvm_backend.cuda.multiprocessors import multiprocessors

    chip = multiprocessors(target)
    with tempfile.TemporaryDirectory() as folder:
        _, code = build(scheduled, target, Path(folder, "kernel.so"))
    (kernel,) = cubin.read(code).kernels
    registers = -(-kernel.registers // 8) * 8 * threads
    shared = used + 1024
    blocks = min(_REGISTERS // registers, chip.shared // shared, chip.threads // threads, _MAX_BLOCKS)
    loop = inner_loop(disassembled(code, disassembler))
    others = sum(loop.counts.values()) - loop.products - sum(loop.counts[name] for name in _COUNTED)
    counts = [loop.products, *(loop.counts[name] for name in _COUNTED), others]
    return [kernel.registers, kernel.stack_bytes, shared >> 10, blocks, blocks * threads // 32, *counts]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(KINDS)}; all by default")
    parser.add_argument("--tiles", type=int, nargs=5, help="rows, columns, threads, steps and stages; all by default")
    parser.add_argument("--arch", default="sm_90", help="default: sm_90")
    given = parser.parse_args()
    os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
    disassembler = find_disassembler()
    from autotune.tvm_backend.load import load_for_tuning
    from autotune.tvm_backend.target import resolve_target, tvm_target

    load_for_tuning("cuda", ())
    target = tvm_target(resolve_target(f'{{"kind": "cuda", "arch": "{given.arch}"}}', 1).description)
    names = ["registers", "stack", "shared KiB", "blocks", "warps", "MMA", *_COUNTED, "others"]
    print(f"| kernel | rows, columns, threads, steps, stages | {' | '.join(names)} |\n|---|---|{'---:|' * len(names)}")
    spilled = False
    for kind in given.kinds or KINDS:
        for tiles in [tuple(given.tiles)] if given.tiles else TILES:
            cells = row(kind, tiles, target, disassembler)
            if cells is not None:
                print(f"| {kind} | {', '.join(map(str, tiles))} | {' | '.join(map(str, cells))} |", flush=True)
                spilled = spilled or bool(cells[1])
    for size in HEADS if not given.kinds else ():
        tile, cells = attention_row(size, target, disassembler)
        print(f"| attention in fp16, heads of {size} | {tile} | {' | '.join(map(str, cells))} |", flush=True)
        spilled = spilled or bool(cells[1])
    sys.exit("a kernel spills registers" if spilled else 0)


if __name__ == "__main__":
    main()
