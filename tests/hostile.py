"""Kernels that do harm, compiled with TVM from programs written by hand, as candidates of a real measure stage."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.processes.children import die_with_parent
from autotune.storage.formats import Candidate
from autotune.storage.seals import LIBRARY, file_digest, seal

_PROGRAM = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((16,), "float32"), b: T.Buffer((16,), "float32")):
        T.func_attr({{"tirx.noalias": True}})
        {body}
"""
_DOUBLE = "for i in range(16):\n            b[i] = a[i] * T.float32(2)"
_BLOCK = "T.int64(0), T.int64(1), T.int64(16777216)"
BODIES = {
    "good": _DOUBLE,
    "also_good": "for i in T.vectorized(16):\n            b[i] = a[i] + a[i]",
    "wrong": _DOUBLE.replace("2)", "2.01)"),
    "unfinished": _DOUBLE.replace("range(16)", "range(15)"),
    "hang": "while a[0] == a[0]:\n            T.evaluate(T.call_extern('int32', 'usleep', 1000))",
    "segfault": "for i in range(10000):\n            b[i * 65536] = a[0]",
    "abort": "T.evaluate(T.call_extern('int32', 'abort'))",
    "beyond": _DOUBLE + "\n        for i in range(1):\n            b[16 + i] = T.float32(1)",
    "input": _DOUBLE + "\n        a[3] = T.float32(7)",
    "eater": "for i in range(100000):\n            T.evaluate(T.call_extern('handle', 'memset', "
    f"T.call_extern('handle', 'reallocarray', {_BLOCK}), 1, T.int64(16777216)))",
    "glutton": "c = T.alloc_buffer((T.int64(16000000000),), 'float32', scope='global')\n"
    "        for i in range(T.int64(16)):\n            c[i * T.int64(900000000)] = a[i]\n"
    "        for i in range(T.int64(16)):\n            b[i] = c[(T.int64(15) - i) * T.int64(900000000)]",
    "slow": _DOUBLE + "\n        T.evaluate(T.call_extern('int32', 'usleep', 50000))",
    # It leaves its own results in order, and ends its process a little later, when another one runs there.
    "saboteur": _DOUBLE + "\n        T.evaluate(T.call_extern('handle', 'signal', 14, 0))\n"
    "        T.evaluate(T.call_extern('int32', 'ualarm', 200000, 0))",
    # It takes along the process that watches over it, which is what the kernel does to who has no memory left.
    "assassin": "T.evaluate(T.call_extern('int32', 'kill', T.call_extern('int32', 'getppid'), 9))\n"
    "        T.evaluate(T.call_extern('int32', 'sleep', 5))",
    "second_assassin": "T.evaluate(T.call_extern('int32', 'kill', T.call_extern('int32', 'getppid'), 9))\n"
    "        T.evaluate(T.call_extern('int32', 'sleep', 6))",
}
_MATMUL = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((64, 64), "float32"), b: T.Buffer((64, 64), "float32"), c: T.Buffer((64, 64), "float32")):
        T.func_attr({"tirx.noalias": True})
        for i, j, k in T.grid(64, 64, 64):
            with T.sblock("C"):
                x, y, z = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    c[x, y] = T.float32(0)
                c[x, y] = c[x, y] + a[x, z] * b[z, y]
"""


def program(body: str) -> Any:
    """The tensor program of one of the bodies."""
    import tvm

    return tvm.script.from_source(_PROGRAM.format(body=BODIES[body]))


def matmul() -> Any:
    """The tensor program of a task with a design space."""
    import tvm

    return tvm.script.from_source(_MATMUL)


def scheduled(name: str, change: Callable[[Any, list[Any]], Any]) -> Candidate:
    """The matmul with a schedule that is made of its loops: a candidate to build."""
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from autotune.tvm_backend.search.design_space import to_candidate

    schedule = tvm.s_tir.Schedule(matmul())
    change(schedule, schedule.get_loops(schedule.get_sblock("C")))
    args = ms.arg_info.ArgInfo.from_prim_func(matmul()["main"])
    return to_candidate(ms.MeasureCandidate(schedule, args), name)


def library(body: str, folder: Path) -> Candidate:
    """A built candidate that runs one of the bodies."""
    import tvm

    from autotune.tvm_backend.kernels.build_kernel import build_library

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{body}.so"
    build_library(program(body), tvm.target.Target({"kind": "llvm"}), path)
    args = [["TENSOR", "float32", [16]], ["TENSOR", "float32", [16]]]
    return Candidate(body, [], args, path.name, seal(LIBRARY, file_digest(path)))


def in_a_child(work: Callable[[], Any], wait: bool = True) -> int:
    """Do what a worker does: load TVM, and work in a forked child. Returns its status, or its process id."""
    from autotune.tvm_backend.load import load_for_tuning

    load_for_tuning("llvm")
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.setpgid(0, 0)
            die_with_parent()
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] if wait else pid
