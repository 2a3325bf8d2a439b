"""Say how much work each kernel of a model does: operations, and bytes read and written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from autotune.tvm_backend.search.tasks import task_hash


@dataclass(frozen=True)
class KernelWork:
    """The work of one call of a kernel.

    Attributes:
        task: The name of the task that it is; None if it is in no task.
        gflop: Floating-point operations, in 1e9.
        bytes: The size of all its arguments. Each is read or written at least once.
    """

    task: str | None
    gflop: float
    bytes: int


def kernel_work(prepared: Any, tasks: Mapping[str, str]) -> dict[str, KernelWork]:
    """Describe the tensor programs of a prepared model.

    Args:
        prepared: What `prepare` returned.
        tasks: The name of each task, by its hash.

    Returns:
        The work by the name of the tensor program.
    """
    from tvm import tirx

    found = {}
    for var, function in prepared.functions.items():
        if isinstance(function, tirx.PrimFunc):
            found[str(var.name_hint)] = _work(function, tasks)
    return found


def _work(function: Any, tasks: Mapping[str, str]) -> KernelWork:
    import tvm
    from tvm.s_tir.analysis import estimate_tir_flops
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    program = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    arguments = ArgInfo.from_entry_func(program, remove_preproc=False)
    size = sum(prod(int(dim) for dim in item.shape) * np.dtype(str(item.dtype)).itemsize for item in arguments)
    return KernelWork(tasks.get(task_hash(program)), float(estimate_tir_flops(program)) / 1e9, size)
