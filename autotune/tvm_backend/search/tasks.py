"""Tasks: the distinct tensor programs of a prepared model, and what the planner and the user need to know of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.analysis import estimate_tir_flops
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm_ffi import structural_hash
from tvm_ffi.serialization import from_json_graph_str

from autotune.errors import DamagedFile, first_line
from autotune.regular_file import read_regular
from autotune.storage.atomic import publish_bytes
from autotune.storage.formats import TaskSpec
from autotune.tvm_backend.expressions import constant_places
from autotune.tvm_backend.search.design_space import PARTITIONED, design_space, tiles
from autotune.tvm_backend.types import Instruction, IRModule, Loop, PrimExpr, PrimFunc, Target, Trace, Var
from autotune.tvm_backend.untrusted_programs import check_graph, check_program
from autotune.tvm_backend.vector_math import registry

_BYTES_US = 20e3  # that a core is assumed to move in a microsecond
_MAX_BYTES = 2**26  # of a file; the largest program of ONNX's tests has half a megabyte
_SPREAD = 0x9E3779B97F4A7C15  # odd, so that every version gives another hash


@dataclass(frozen=True)
class Task:
    """A tensor program and its description.

    Attributes:
        space: Number of configurations of its design space.
    """

    spec: TaskSpec
    program: IRModule
    space: int


@dataclass(frozen=True)
class Program:
    """The tensor program of a task: its name, how often the model runs it, and which arguments are constants."""

    name: str
    program: IRModule
    weight: int
    constants: tuple[int, ...] = ()


def extract_tasks(prepared: IRModule, target: Target) -> list[Task]:
    """Return the tasks of a model after `prepare`, in a stable order: most floating-point operations first.

    Programs that `prepare` has scheduled are not tasks.
    """
    return _in_order(task_of(item, target) for item in extract(prepared, target).values())


def extract(prepared: IRModule, target: Target) -> dict[str, Program]:
    """Return the programs of a model's tasks by hash. Unlike `extract_tasks` it looks at no design space."""
    extracted = ms.relax_integration.extract_tasks(prepared, target)
    places = constant_places(prepared)
    programs = [
        Program(
            str(item.task_name).removeprefix("fused_"),
            item.dispatched[0],
            int(item.weight),
            places.get(str(item.task_name), ()),
        )
        for item in extracted
    ]
    return {task_hash(item.program): item for item in programs if not _scheduled(item.program)}


def extract_programs(prepared: IRModule, target: Target) -> dict[str, IRModule]:
    """Return the tensor programs of a model's tasks by hash."""
    return {hash: item.program for hash, item in extract(prepared, target).items()}


def unite(extracted: Sequence[Sequence[Task]]) -> list[Task]:
    """Return the tasks of a model with several sets of shapes.

    A task that several of them have stands there once. Its weight is the sum of its weights: all tasks together take as
    long as one run with each set of shapes.

    Args:
        extracted: What `extract_tasks` returned for each set of shapes.
    """
    united: dict[str, Task] = {}
    for task in (task for tasks in extracted for task in tasks):
        same = united.get(task.spec.hash)
        weight = task.spec.weight + (same.spec.weight if same else 0)
        united[task.spec.hash] = replace(same or task, spec=replace((same or task).spec, weight=weight))
    return _in_order(united.values())


def _in_order(tasks: Iterable[Task]) -> list[Task]:
    return sorted(tasks, key=lambda task: (-task.spec.gflop * task.spec.weight, task.spec.name))


def _scheduled(program: IRModule) -> bool:
    return any((function.attrs or {}).get("tirx.is_scheduled") for function in program.functions.values())


def task_of(item: Program, target: Target) -> Task:
    """Return the task of a program, with the size of its design space."""
    size = space_size(item.program, target)
    spec = TaskSpec(
        name=item.name,
        hash=task_hash(item.program),
        weight=item.weight,
        shape=_shapes(item.program),
        gflop=gflop(item.program),
        tunable=size > 1,
        constants=item.constants,
    )
    return Task(spec, item.program, size)


def as_program(function: PrimFunc) -> IRModule:
    """Return a tensor program of a model as the program of a task."""
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def argument_bytes(program: IRModule) -> int:
    """Return how many bytes the arguments of a tensor program have: what it reads and writes at least once."""
    return sum(map(_bytes, arguments(program)))


def _bytes(argument: ArgInfo) -> int:
    return math.prod(map(int, argument.shape)) * int(tvm.DataType(str(argument.dtype)).itemsize)


def moving_us(program: IRModule) -> float:
    """Return how many microseconds a core is assumed to take to move the arguments of a tensor program."""
    return argument_bytes(program) / _BYTES_US


def arguments(program: IRModule) -> Sequence[ArgInfo]:
    """Return the `shape` and the `dtype` of each argument of a tensor program."""
    return tuple(ArgInfo.from_entry_func(program, remove_preproc=False))


def gflop(program: IRModule) -> float:
    """Return the arithmetic of a tensor program, in 10^9 operations; 0 if TVM cannot count it.

    It does not count expressions over vectors, which some kernels that are written with their schedule have.
    """
    try:
        return float(estimate_tir_flops(program)) / 1e9
    except tvm.error.InternalError:
        return 0.0


def has_fixed_work(program: IRModule) -> bool:
    """Return whether a tensor program does the same work whatever values it is given.

    It does not if loops end where a value says. Nor does it if values choose the places that it reads or writes of most
    of its arguments, by their bytes: a table of which it reads some rows, or a cache that it adds to.
    """
    function = program["main"]
    open_loops: list[Loop] = []
    chosen: list[Var] = []

    def note_place(tensor: Var, indices: Sequence[PrimExpr]) -> None:
        if any(map(_loads, indices)):
            chosen.append(tensor)

    tvm_ffi.structural_walk(
        function.body,
        (
            (tirx.For, lambda loop: open_loops.append(loop) if _loads(loop.min) or _loads(loop.extent) else None),
            (tirx.While, open_loops.append),
            (tirx.BufferStore, lambda store: note_place(store.buffer, store.indices)),
            (tvm.ir.TensorLoad, lambda load: note_place(load.source, load.indices)),
        ),
    )
    sizes = zip(function.params, map(_bytes, arguments(program)), strict=True)
    partly = sum(size for item, size in sizes if any(item.same_as(tensor) for tensor in chosen))
    return not open_loops and 2 * partly <= argument_bytes(program)


def _loads(value: PrimExpr) -> bool:
    """Whether an expression reads a tensor."""
    loads: list[PrimExpr] = []
    tvm_ffi.structural_walk(value, ((tvm.ir.TensorLoad, loads.append),))
    return bool(loads)


def program_hash(program: IRModule) -> str:
    """Return the structural hash of a tensor program, 16 hexadecimal digits. It is the same in every process."""
    return _digits(int(structural_hash(program)))


def task_hash(program: IRModule) -> str:
    """Return the hash of a task: that of its program, combined with a version if it has elementary functions.

    The version is that of the formulas that compute them. So a change of the formulas makes the trials of such tasks
    void, and of no others.
    """
    formulas = registry.VERSION * _SPREAD if registry.has_formulas(program) else 0
    return _digits(int(structural_hash(program)) + formulas)


def _digits(number: int) -> str:
    return f"{number & (2**64 - 1):016x}"


def _shapes(program: IRModule) -> str:
    arguments = ArgInfo.from_entry_func(program, remove_preproc=True)
    return " ".join("x".join(str(int(dim)) for dim in argument.shape) or "scalar" for argument in arguments)


def space_size(program: IRModule, target: Target) -> int:
    """Count the configurations of the design space, over all sketches, before any validity check.

    A compute location counts as two values, because how many there are depends on the tiles.

    Returns:
        0 where TVM finds no schedule at all, 1 where there is nothing to decide.
    """
    traces = (schedule.trace for schedule in design_space(program, target))
    return sum(math.prod(_value_count(trace, instruction) for instruction in trace.insts) for trace in traces)


def _value_count(trace: Trace, instruction: Instruction) -> int:
    """Count the values that an instruction chooses from; 1 for an instruction that chooses nothing."""
    kind = str(instruction.kind.name)
    if kind == "SampleCategorical":
        return len(instruction.attrs[0])
    if kind in ("SamplePerfectTile", PARTITIONED):
        return len(tiles(trace, instruction))
    return 2 if kind.startswith("Sample") else 1


def write_program(path: Path, program: IRModule) -> None:
    """Store a tensor program as TVM's JSON: data, never code."""
    publish_bytes(path, tvm.ir.save_json(program).encode())


def read_program(path: Path, hash: str) -> IRModule:
    """Load what `write_program` stored.

    TVM's reader makes objects of any type that a file names, compiled libraries included. So the file is checked
    first, and may hold nothing but the types that a program consists of. The program may call nothing but what TVM's
    lowering of models calls, because it is compiled and run.

    Args:
        hash: The program's `task_hash`.

    Raises:
        DamagedFile: The file is not that tensor program.
    """
    program = _load(path)
    if task_hash(program) != hash:
        raise DamagedFile(f"{path} {_fault(program, hash)}")
    return program


def _fault(program: IRModule, hash: str) -> str:
    if program_hash(program) == hash:
        return "was written by a version that computes exp and the like in another way: submit the model again"
    return "is damaged: it holds another program than the one that was submitted"


def _load(path: Path) -> IRModule:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES} bytes")
        text = read_regular(path).decode()
        check_graph(text)
        program = from_json_graph_str(text)  # `tvm.ir.load_json` also converts what older versions of TVM wrote
        check_program(program)
        return program
    except Exception as error:  # the parser raises many types
        raise DamagedFile(f"{path} is not a tensor program: {first_line(error)}") from error
