"""The plan of a model as its passes have made it: what each kernel computes, and where its results lie."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from tvm import tirx

from autotune.errors import BadInput
from autotune.network_plan.arena import aligned
from autotune.network_plan.plan import Algorithm, Block, BlockFacts, Layout, Memory, Plan, PlanFacts, TensorFacts
from autotune.storage.formats import JobSpec
from autotune.storage.job_files import read_state
from autotune.storage.paths import JobPaths
from autotune.tvm_backend.export.compilation import prepare_as_submitted
from autotune.tvm_backend.export.submitted import submitted
from autotune.tvm_backend.export.writing.planned_network import (
    FusedBlock,
    Network,
    PlacedTensor,
    check_functions,
    read_network,
    tensor_bytes,
)
from autotune.tvm_backend.expressions import bindings_of, op_name
from autotune.tvm_backend.graph.blocks import ALGORITHMS, LAYOUTS, OPERATORS
from autotune.tvm_backend.graph.open_loops import without_bodies
from autotune.tvm_backend.graph.run_order import MIN_MEMORY
from autotune.tvm_backend.lowering import finish
from autotune.tvm_backend.search.tasks import as_program, task_hash
from autotune.tvm_backend.target import tvm_target
from autotune.tvm_backend.threads.concurrent_loops import JOINED
from autotune.tvm_backend.threads.extents import MAX_THREADS
from autotune.tvm_backend.types import IRModule, Target

_PACKED_IMAGE = 5
_PACKED_WEIGHT = 6


def plan_of_job(paths: JobPaths, spec: JobSpec, entry: str) -> Plan:
    """Return the plan that the model of a job is compiled by, with the best times of its tasks so far.

    Args:
        spec: What was submitted.
        entry: The name of its set of shapes; empty where there is one.

    Raises:
        BadInput: There is no such set of shapes.
        ModelError: The model has no such plan; the message says why.
    """
    names = [item.name for item in spec.all_entries]
    if entry not in names and (entry or len(names) > 1):
        raise BadInput(f"job {spec.id} has the shapes {' and '.join(names)}; give one of them with --shapes")
    target = tvm_target(spec.target)
    model = submitted(paths, spec)[names.index(entry) if entry else 0]
    prepared = prepare_as_submitted(model.module(), target, paths, spec)
    progress = read_state(paths).tasks
    times = {task.name: item.best_us for task, item in zip(spec.tasks, progress, strict=False)}
    return plan_of(prepared, target, {task.hash: task.name for task in spec.tasks}, times, spec.model)


def plan_of(
    prepared: IRModule, target: Target, tasks: Mapping[str, str], times: Mapping[str, float | None], model: str
) -> Plan:
    """Return the plan that a prepared model follows.

    Args:
        prepared: What `prepare` returned.
        tasks: The name of each task, by its hash.
        times: The best time of each task so far, by its name, in microseconds.
        model: The model, as users know it.

    Raises:
        ModelError: The model does more than call kernels on tensors of fixed sizes.
    """
    prepared = without_bodies(prepared)
    lowered = finish(prepared, target)
    network = read_network(lowered, 0)
    memory = _memory(prepared, lowered, network)
    programs = {name.name_hint: function for name, function in lowered.functions.items()}
    joined = {name: (function.attrs or {}).get(JOINED) for name, function in programs.items()}
    writer = _Writer(prepared, network, joined, _task_names(prepared, tasks), times, _threads(target))
    facts = PlanFacts(model=model, threads=_threads(target), memory=memory)
    return Plan(facts=facts, blocks=tuple(writer.blocks()))


def _task_names(prepared: IRModule, tasks: Mapping[str, str]) -> dict[str, str]:
    """Return the name of the task that each kernel is, by the name of the kernel; empty if it is none."""
    programs = {str(var.name_hint): item for var, item in prepared.functions.items() if isinstance(item, tirx.PrimFunc)}
    return {name: tasks.get(task_hash(as_program(program)), "") for name, program in programs.items()}


def _threads(target: Target) -> int:
    return int(target.attrs.get("num-cores") or 1) if target.kind.name == "llvm" else 0


def memory_of(prepared: IRModule, target: Target) -> Memory:
    """Return what the activations of a prepared model need.

    Raises:
        ModelError: The model does more than call kernels on tensors of fixed sizes.
    """
    prepared = without_bodies(prepared)
    check_functions(prepared)  # before the seconds that it takes to lower many
    lowered = finish(prepared, target)
    return _memory(prepared, lowered, read_network(lowered, 0))


def _memory(prepared: IRModule, lowered: IRModule, network: Network) -> Memory:
    inputs = sum(aligned(tensor_bytes(item)) for item in network.inputs)
    values = [item.value for item in bindings_of(lowered["main"])]
    storages = [int(value.args[0].values[0]) for value in values if op_name(value) == "relax.vm.alloc_storage"]
    return Memory(
        arena=network.arena_bytes,
        library=inputs + sum(map(aligned, storages)),
        sum=network.sum_bytes,
        least=int((prepared["main"].attrs or {}).get(MIN_MEMORY, 0)),
    )


class _Writer:
    """Describes the blocks of a network."""

    def __init__(
        self,
        prepared: IRModule,
        network: Network,
        joined: Mapping[str, Sequence[Sequence[str | int]] | None],
        tasks: Mapping[str, str],
        times: Mapping[str, float | None],
        threads: int,
    ) -> None:
        main = prepared["main"]
        self._prepared = prepared
        self._network = network
        self._joined = joined
        self._tasks = tasks
        self._times = times
        self._threads = threads
        self._algorithms: Mapping[str, Algorithm] = main.attrs.get(ALGORITHMS) or {}
        self._layouts: Mapping[str, Layout] = main.attrs.get(LAYOUTS) or {}
        self._operators = _operators(prepared)
        placed = (*network.inputs, *network.buffers, *network.weights)
        self._placed = {item.name: item for item in placed}
        self._weights = {item.name for item in network.weights}
        self._views = {item.name: item for item in network.views}

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks in order."""
        for block, beside in self._kernels():
            operators = self._operators[block.kernel].pop(0)
            limit = (self._prepared[block.kernel].attrs or {}).get(MAX_THREADS)
            yield Block(
                operators=operators,
                algorithm=next((self._algorithms[name] for name in operators if name in self._algorithms), None),
                layout=next((self._layouts[name] for name in operators if name in self._layouts), None),
                threads=int(limit or self._threads) or None,
                beside=beside,
                facts=self._facts(block),
            )

    def _kernels(self) -> Iterator[tuple[FusedBlock, bool]]:
        """Yield the kernels, also those that are joined, and whether each runs beside the one before it."""
        for block in self._network.blocks:
            members = self._joined.get(block.kernel)
            if members is None:
                yield block, False
                continue
            arguments = iter(block.arguments)
            for number, (name, count) in enumerate(members):
                own = tuple(itertools.islice(arguments, int(count)))
                yield FusedBlock(str(name), own, block.threads), number > 0

    def _facts(self, block: FusedBlock) -> BlockFacts:
        *read, written = block.arguments
        task = self._tasks[block.kernel]
        return BlockFacts(
            kernel=block.kernel,
            task=task,
            best_us=self._times.get(task),
            reads=self._tensors([name for name in read if name not in self._weights]),
            weights=self._tensors([name for name in read if name in self._weights]),
            writes=self._tensors([written]),
        )

    def _tensors(self, names: Sequence[str]) -> tuple[TensorFacts, ...]:
        return tuple(map(self._tensor, names))

    def _tensor(self, name: str) -> TensorFacts:
        """Describe a tensor. A view lies where the tensor lies that it shows."""
        shown: PlacedTensor = self._views.get(name) or self._placed[name]
        source = shown
        while source.viewed:
            source = self._views.get(source.viewed) or self._placed[source.viewed]
        layout = _layout(shown.shape, is_weight=source.name in self._weights)
        return TensorFacts(source.name, shown.dtype, shown.shape, layout, tensor_bytes(shown), source.offset)


def _layout(shape: Sequence[int], *, is_weight: bool) -> str:
    """Return the layout of a packed tensor; empty for other tensors."""
    if is_weight:
        return f"OIHW{shape[-2]}i{shape[-1]}o" if len(shape) == _PACKED_WEIGHT else ""
    return f"NCHW{shape[-1]}c" if len(shape) == _PACKED_IMAGE else ""


def _operators(prepared: IRModule) -> dict[str, list[tuple[str, ...]]]:
    """Return the operators of each call of a kernel, by its name, in order."""
    main = prepared["main"]
    values = [item.value for item in bindings_of(main)]
    calls = [value for value in values if op_name(value) == "relax.call_tir"]
    operators: dict[str, list[tuple[str, ...]]] = {}
    for call, names in zip(calls, main.attrs[OPERATORS], strict=True):
        operators.setdefault(str(call.args[0].name_hint), []).append(tuple(map(str, names)))
    return operators
