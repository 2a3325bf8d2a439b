"""Tasks: the distinct tensor programs of a prepared model, with what a person and the planner want to know."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import DamagedFile
from autotune.storage.atomic import publish_bytes
from autotune.storage.formats import TaskSpec
from autotune.tvm_backend.sanitize import check_graph
from autotune.tvm_backend.search.space import design_space
from autotune.tvm_backend.vector_math import intrinsics

_SPREAD = 0x9E3779B97F4A7C15  # odd, so that every version gives another hash


@dataclass(frozen=True)
class Task:
    """A tensor program and its description. `space` is the number of configurations of its design space."""

    spec: TaskSpec
    program: Any
    space: int


def extract_tasks(prepared: Any, target: Any) -> list[Task]:
    """The tasks of a model after `prepare`, heaviest arithmetic first, so that the order is stable.

    Programs that `prepare` has scheduled are no tasks.
    """
    from tvm.s_tir import meta_schedule as ms

    found = ms.relax_integration.extract_tasks(prepared, target)
    tasks = [_task(item, target) for item in found if not _scheduled(item.dispatched[0])]
    return sorted(tasks, key=lambda task: (-task.spec.gflop * task.spec.weight, task.spec.name))


def _scheduled(program: Any) -> bool:
    return any((function.attrs or {}).get("tirx.is_scheduled") for function in program.functions.values())


def _task(extracted: Any, target: Any) -> Task:
    from tvm.s_tir.analysis import estimate_tir_flops

    program = extracted.dispatched[0]
    size = space_size(program, target)
    spec = TaskSpec(
        name=_short(str(extracted.task_name)),
        hash=task_hash(program),
        weight=int(extracted.weight),
        shape=_shapes(program),
        gflop=float(estimate_tir_flops(program)) / 1e9,
        tunable=size > 1,
    )
    return Task(spec, program, size)


def _short(name: str) -> str:
    return name[len("fused_") :] if name.startswith("fused_") else name


def program_hash(program: Any) -> str:
    """The structural hash of a tensor program, 16 hexadecimal digits; the same in every process."""
    from tvm_ffi import structural_hash

    return _digits(int(structural_hash(program)))


def task_hash(program: Any) -> str:
    """The hash that stands for a task: its program's and, where that has elementary functions, how they are computed.

    So what was measured with other formulas does not count for such a task, and all else still does.
    """
    from tvm_ffi import structural_hash

    formulas = intrinsics.VERSION * _SPREAD if intrinsics.has_formulas(program) else 0
    return _digits(int(structural_hash(program)) + formulas)


def _digits(number: int) -> str:
    return f"{number & (2**64 - 1):016x}"


def _shapes(program: Any) -> str:
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    arguments = ArgInfo.from_entry_func(program, remove_preproc=True)
    return " ".join("x".join(str(int(dim)) for dim in argument.shape) or "scalar" for argument in arguments)


def space_size(program: Any, target: Any) -> int:
    """How many configurations the design space has, over all sketches, before any validity check.

    Zero where TVM finds no schedule at all, one where there is nothing to decide.
    """
    return sum(math.prod(_choices(schedule.trace)) for schedule in design_space(program, target))


def _choices(trace: Any) -> list[int]:
    return [count for count in (_count(trace, instruction) for instruction in trace.insts) if count > 1]


def _count(trace: Any, instruction: Any) -> int:
    kind = str(instruction.kind.name)
    if kind == "SampleCategorical":
        return len(instruction.attrs[0])
    if kind == "SamplePerfectTile":
        decision = [int(value) for value in trace.get_decision(instruction)]
        return _factorisations(math.prod(decision), int(instruction.attrs[0]), int(instruction.attrs[1]))
    return 2 if kind.startswith("Sample") else 1


def _factorisations(extent: int, parts: int, innermost: int) -> int:
    """Ordered ways to write `extent` as a product of `parts` factors, the last at most `innermost`."""
    last = [factor for factor in range(1, min(extent, innermost) + 1) if extent % factor == 0]
    return sum(_ordered(extent // factor, parts - 1) for factor in last)


def _ordered(extent: int, parts: int) -> int:
    ways, factor = 1, 2
    while extent > 1:
        power = 0
        while extent % factor == 0:
            extent //= factor
            power += 1
        ways *= math.comb(power + parts - 1, parts - 1)
        factor += 1
    return ways


def write_program(path: Path, program: Any) -> None:
    """Store a tensor program as TVM's JSON: data, never code."""
    import tvm

    publish_bytes(path, tvm.ir.save_json(program).encode())


def read_program(path: Path, hash: str) -> Any:
    """Load what `write_program` stored; `hash` is its `task_hash`.

    TVM's reader makes objects of any type, compiled libraries included: so only those that a program consists of
    get to it.

    Raises:
        DamagedFile: the file is not that tensor program.
    """
    program = _load(path)
    if task_hash(program) != hash:
        raise DamagedFile(f"{path} is damaged: it is another program than was submitted")
    return program


def _load(path: Path) -> Any:
    import tvm

    try:
        text = path.read_text()
        check_graph(text)
        return tvm.ir.load_json(text)
    except Exception as error:  # the parser raises many kinds
        raise DamagedFile(f"{path} is not a tensor program: {str(error).splitlines()[0]}") from error
