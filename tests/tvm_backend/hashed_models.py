"""Hashes of the tasks of small networks, and schedules of some.

    PYTHONPATH=scripts/models python -m tests.tvm_backend.hashed_models tests/data

writes the lists that `test_task_hashes.py` compares with. They name the commit at which they were made. They are
written again only where the program of a task changes on purpose, which makes the trials of that task void.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from .small_networks import NETWORKS, build, quantised, quantised_dynamically

# What a network is lowered for: a precision, a CPU for each set of instructions, and whether with Winograd's algorithm.
WAYS = (
    ("fp32", "x86-64-v3", False),
    ("fp32", "x86-64-v4", False),
    ("fp32", "x86-64-v4", True),
    ("int8", "x86-64-v3", False),
    ("int8", "alderlake", False),
    ("int8", "cascadelake", False),
    ("int8", "sapphirerapids", False),
    ("bf16", "cooperlake", False),
    ("bf16", "sapphirerapids", False),
)
DYNAMIC = ("mlp", "encoder", "lstm")  # products that are quantised as they run


@dataclass(frozen=True)
class Case:
    """A network, and what it is lowered for."""

    network: str
    precision: str
    cpu: str
    winograd: bool

    @property
    def name(self) -> str:
        """What the list calls it."""
        return " ".join([self.network, self.precision, self.cpu, *(["winograd"] if self.winograd else [])])


# Those of whose tasks schedules are kept: of products, Winograd's algorithm, and instructions of each kind.
SCHEDULED = (
    Case("resnet", "fp32", "x86-64-v4", False),
    Case("resnet", "fp32", "x86-64-v4", True),
    Case("mobilenet", "fp32", "x86-64-v3", False),
    Case("encoder", "fp32", "x86-64-v4", False),
    Case("resnet", "int8", "x86-64-v3", False),
    Case("resnet", "int8", "cascadelake", False),
    Case("resnet", "int8", "sapphirerapids", False),
    Case("resnet", "bf16", "cooperlake", False),
    Case("resnet", "bf16", "sapphirerapids", False),
)


def cases() -> Iterator[Case]:
    """All networks, for all that they are lowered for."""
    for network in NETWORKS:
        yield from (Case(network, *way) for way in WAYS)


@functools.cache
def _imported(network: str, form: str) -> Any:
    """The module of a network, in floats (""), or quantised."""
    from autotune.tvm_backend.models.onnx.read import read_model

    model = build(network)
    if form:
        model = quantised_dynamically(model) if form == "dynamic" else quantised(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "network.onnx")
        onnx.save(model, path)
        return read_model(path, {}).module


def prepared(case: Case, plan: Any = None) -> tuple[Any, Any]:
    """The fused tensor programs of a network, and their target."""
    from autotune.tvm_backend.load import load_for_tuning

    load_for_tuning("llvm")
    import tvm

    from autotune.network_plan.plan import NOTHING
    from autotune.tvm_backend.lowering import prepare

    target = tvm.target.Target({"kind": "llvm", "mcpu": case.cpu, "num-cores": 2})
    integers = "dynamic" if case.network in DYNAMIC else "static"
    module = _imported(case.network, integers if case.precision == "int8" else "")
    precision = "bf16" if case.precision == "bf16" else "fp32"
    return prepare(module, target, winograd=case.winograd, precision=precision, plan=plan or NOTHING), target


def hashes(case: Case, plan: Any = None) -> dict[str, int]:
    """The hashes of the tasks of a network, each with how often the network runs it."""
    from autotune.tvm_backend.search.tasks import extract

    return {hash: item.weight for hash, item in sorted(extract(*prepared(case, plan)).items())}


def scheduled(case: Case) -> dict[str, Any]:
    """A schedule of the task with the most arithmetic, as a log keeps it: its trace, and the hash of what it makes."""
    from autotune.tvm_backend.search.design_space import to_candidate
    from autotune.tvm_backend.search.knobs import Knobs
    from autotune.tvm_backend.search.propose import _measure_candidate, by_hand
    from autotune.tvm_backend.search.tasks import extract, gflop, program_hash

    module, target = prepared(case)
    programs = extract(module, target)
    task = max(programs, key=lambda hash: (gflop(programs[hash].program), hash))
    program = programs[task].program
    candidate = by_hand(program)
    if candidate is None:
        knobs = Knobs(program, target)
        draw = np.random.default_rng(0)
        applied = None
        while applied is None:
            applied = knobs.apply(tuple(int(draw.integers(len(knob.values))) for knob in knobs.space.knobs))
        candidate = to_candidate(_measure_candidate(applied.schedule), program_hash(applied.schedule.mod))
    return {
        "case": asdict(case),
        "task": task,
        "hash": candidate.hash,
        "trace": candidate.trace,
        "args": candidate.args,
    }


def main() -> None:
    """Write the lists."""
    folder = Path(sys.argv[1])
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True)
    made_at = {"made at": commit.stdout.strip()}
    tasks = {case.name: hashes(case) for case in cases()}
    (folder / "task-hashes.json").write_text(_by_line({**made_at, "tasks": tasks}))
    schedules = {case.name: scheduled(case) for case in SCHEDULED}
    (folder / "schedules.json").write_text(_by_line({**made_at, "schedules": schedules}))
    planned = {str(path.name): hashes(case, _read(path)) for path, case in plans(folder)}
    (folder / "planned-hashes.json").write_text(_by_line({**made_at, "plans": planned}))


def _read(path: Path) -> Any:
    from autotune.network_plan.plan import read

    return read(path)


def _by_line(document: dict[str, Any]) -> str:
    """JSON with a line for each entry of its tables."""
    tables = [
        f'"{name}": '
        + ("{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(item)}" for key, item in table.items()) + "\n}")
        if isinstance(table, dict)
        else f'"{name}": {json.dumps(table)}'
        for name, table in document.items()
    ]
    return "{\n" + ",\n".join(tables) + "\n}\n"


def plans(folder: Path) -> Iterator[tuple[Path, Case]]:
    """The plans that are kept in a folder, and the networks that they are for."""
    yield folder / "plan-of-squeezenet.toml", Case("squeezenet", "fp32", "x86-64-v4", False)
    yield folder / "plan-of-resnet.toml", Case("resnet", "fp32", "x86-64-v3", True)


if __name__ == "__main__":
    main()
