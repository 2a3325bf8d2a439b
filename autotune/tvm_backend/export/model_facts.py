"""What a report says of a prepared model besides its times: its constants, its activations, the work of its kernels."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict

from tvm import tirx

from autotune.errors import ModelError
from autotune.storage.formats import JobSpec
from autotune.tvm_backend.export.describe import memory_of
from autotune.tvm_backend.export.ready_library import KernelWork, ModelFacts
from autotune.tvm_backend.expressions import bytes_of_constants, constant_bytes, kernel_calls
from autotune.tvm_backend.graph.concurrent import groups_beside, joined_name
from autotune.tvm_backend.kernels.roofline import relative_rate
from autotune.tvm_backend.search.tasks import argument_bytes, as_program, gflop, has_fixed_work, task_hash
from autotune.tvm_backend.types import IRModule, PrimFunc, Target


def facts_of(prepared: IRModule, spec: JobSpec, target: Target) -> ModelFacts:
    """Return what a report says of a prepared model of a job besides its times."""
    names = {task.hash: task.name for task in spec.tasks}
    return ModelFacts(constant_bytes(prepared), kernel_work(prepared, names, target), _activations(prepared, target))


def _activations(prepared: IRModule, target: Target) -> dict[str, int] | None:
    try:
        return asdict(memory_of(prepared, target))
    except ModelError:
        return None


def kernel_work(prepared: IRModule, tasks: Mapping[str, str], target: Target) -> dict[str, tuple[KernelWork, ...]]:
    """Describe the tensor programs of a prepared model.

    Args:
        prepared: What `prepare` returned.
        tasks: The name of each task, by its hash.

    Returns:
        The work by the name of the tensor program; of several that run beside each other, by their joined name.
    """
    # Calls of one program have constants of the same sizes.
    calls = itertools.chain.from_iterable(kernel_calls(prepared))
    constant = {str(call.args[0].name_hint): bytes_of_constants(call) for call in calls}
    work = {}
    for var, function in prepared.functions.items():
        if isinstance(function, tirx.PrimFunc):
            name = str(var.name_hint)
            work[name] = (_work(function, tasks, target, constant.get(name, 0)),)
    groups = itertools.chain.from_iterable(groups_beside(prepared).values())
    beside = [[kernel for kernel, _ in group] for group in groups]
    return work | {joined_name(kernels): tuple(work[kernel][0] for kernel in kernels) for kernels in beside}


def _work(function: PrimFunc, tasks: Mapping[str, str], target: Target, constants: int) -> KernelWork:
    program = as_program(function)
    name = tasks.get(task_hash(program))
    rate = relative_rate(program, target)
    return KernelWork(name, gflop(program), argument_bytes(program), rate, constants, has_fixed_work(program))
