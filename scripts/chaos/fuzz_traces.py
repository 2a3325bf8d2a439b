"""Mutate schedule traces, as a trials file from somebody else may hold them: nothing runs.

    python scripts/chaos/fuzz_traces.py --count 3000 --seed 1                   # half a minute
    python scripts/chaos/fuzz_traces.py --count 1000000 --minutes 20 --seed 1   # as many as there is time for
    python scripts/chaos/fuzz_traces.py --count 100000 --read --seed 1          # without applying them

A mutant is a trace of a real design space with one to three places changed: an operand, an attribute, a decision, a
node of an index map, the order of instructions; one in four is grown by the grammar (`grown_traces.py`). Some new
values call `system`, which would make a file. What the grammar lets through is read as a search reads it, and applied
to its program by TVM, in a process of its own, where its calls are checked. Exit code 1 if a mutant made the file, got
a call past the grammar, raised something else than a refusal, took more than 2 s of a CPU or 200 MB to read, or hung.
Some end their process: TVM trusts operands that fit in kind. So a search rebuilds what was imported in a process of
its own, too.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grown_traces
import nested
import tvm
from bounds import Bounds
from tvm import te, tirx, topi
from tvm.s_tir.meta_schedule.database import Workload

from autotune.errors import DamagedFile, WorkerError
from autotune.storage.formats import Candidate
from autotune.tvm_backend.search import propose
from autotune.tvm_backend.search.design_space import tuning_record
from autotune.tvm_backend.search.evolutionary import EvolutionParameters, propose_without_knobs
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.nest import NestFeatures
from autotune.tvm_backend.types import IRModule, PlainTrace, Target
from autotune.tvm_backend.untrusted_programs import check_calls
from autotune.tvm_backend.untrusted_traces import check_trace

_BATCH = 100  # mutants of one process
_LIMIT_S = 300  # of a batch
_FEW = EvolutionParameters(population=8, generations=1, init_unmeasured=4, mutation_probability=0.5)
_CPU = {"kind": "llvm", "num-cores": 2}
_GPU = {
    "kind": "cuda",
    "arch": "sm_80",
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "thread_warp_size": 32,
}
_BAD = ("ran", "called", "raised", "hung", "slow", "large")
_GROWN = 0.25  # of the mutants


def _product(dtype: str) -> IRModule:
    left = te.placeholder((64, 64), dtype, name="left")
    right = te.placeholder((64, 64), dtype, name="right")
    return _program(topi.nn.relu(topi.matmul(left, right)), left, right)


def _softmax() -> IRModule:
    data = te.placeholder((8, 64), name="data")
    return _program(topi.nn.softmax(data), data)


def _program(result: Any, *arguments: Any) -> IRModule:
    return tvm.IRModule({"main": te.create_prim_func([*arguments, result]).with_attr("global_symbol", "main")})


def _seeds() -> list[_Seed]:
    """Traces of the design spaces of some programs."""
    request = propose.Request((), (), 4, None, 1)
    tasks = [(_product("float32"), _CPU), (_softmax(), _CPU), (_product("float32"), _GPU), (_product("float16"), _GPU)]
    seeds = []
    for program, description in tasks:
        target = tvm.target.Target(description)
        readers = (NestFeatures(program, target), Knobs(program, target))
        for candidate in propose_without_knobs(program, target, request, _FEW).candidates:
            seeds.append(_Seed.of(program, target, readers, json.loads(json.dumps(candidate.trace))))
    return seeds


def _index_map(command: str) -> str:
    call = tirx.call_extern("int64", "system", command)
    index_map = tirx.IndexMap.from_func(lambda i: [tirx.Select(call == -7, i + 1, i)], index_dtype="int64")
    return str(tvm.ir.save_json(index_map))


def _hostile(command: str) -> list[Any]:
    code = f'"define void @f() {{ call i32 @system(ptr @{command}) }}"'
    return [
        _index_map(command),
        tvm.ir.save_json(tirx.call_extern("int32", "system", command)),
        code,
        ["Annotate", ["b0", code], ["pragma_import_llvm"], []],
        ["TransformLayout", ["b0", _index_map(command)], [0, 1, None, True], []],
        ["Tensorize", ["l0", "x"], ["system", True], []],
        *([], None, True, 0, -1, 2**31, 2**63, 0.5, "", "b0", "b99", "l0", "l99", "v0", "None", [0], ["b0"], [1, 1]),
    ]


@dataclass(frozen=True)
class _Seed:
    """A trace to mutate: as text, which is copied fastest, with its places and what stands there, and what reads it."""

    program: IRModule
    target: Target
    readers: tuple[NestFeatures, Knobs]
    text: str
    places: list[nested.Place]
    values: list[Any]

    @classmethod
    def of(cls, program: IRModule, target: Target, readers: tuple[NestFeatures, Knobs], trace: PlainTrace) -> _Seed:
        places = list(nested.places(trace))
        values = [nested.value_at(trace, place) for place in places]
        return cls(program, target, readers, json.dumps(trace), places, values)


def _kind(value: Any) -> object:
    """What a value is: a name such as `b12`, another text, a number, or a list of so many."""
    if isinstance(value, str):
        return value.rstrip("0123456789")[:20]
    return (type(value), len(value) if isinstance(value, list) else 0)


def _mutate(seed: _Seed, random: random.Random, hostile: list[Any]) -> PlainTrace:
    """Change one to three places. Half of the new values are of the kind that was there, so that more of them apply."""
    mutant = json.loads(seed.text)
    if random.random() < _GROWN:
        grown_traces.grow(mutant, random)
        if random.random() < 0.8:
            return mutant
    for _ in range(random.randint(1, 3)):
        *above, key = random.choice(seed.places)
        try:
            _change(nested.value_at(mutant, above), key, seed, random, hostile)
        except (IndexError, KeyError, TypeError):  # an earlier change has taken the place away
            continue
    return mutant


def _change(container: Any, key: Any, seed: _Seed, random: random.Random, hostile: list[Any]) -> None:
    value = container[key]
    match random.randrange(8):
        case 0 if isinstance(container, list):
            container.insert(key, copy.deepcopy(random.choice(container)))
        case 1 if isinstance(container, list):
            del container[key]
        case 2 if isinstance(value, str) and value.startswith("{"):
            graph = json.loads(value)
            *above, name = random.choice(list(nested.places(graph)))
            nested.value_at(graph, above)[name] = random.choice(hostile)
            container[key] = json.dumps(graph)
        case 3:
            container[key] = copy.deepcopy(random.choice(hostile))
        case 4 if type(value) is int:
            container[key] = random.choice([value + 1, value - 1, -value, value * 2, value // 2, 2**31 - 1])
        case _:
            alike = [other for other in random.choices(seed.values, k=40) if _kind(other) == _kind(value)]
            container[key] = copy.deepcopy(random.choice(alike or hostile))


def _read(seed: _Seed, trace: PlainTrace) -> str:
    """Read a mutant in the process of a stage: the grammar, then what is told from a trace without replaying it."""
    try:
        check_trace(trace)
    except ValueError as error:
        return "refused" if len(str(error).splitlines()) == 1 and len(str(error)) < 1000 else f"raised {error!r:.200}"
    except Exception as error:
        return f"raised {type(error).__name__} by the grammar"
    nests, knobs = seed.readers
    try:
        nests.of_traces([trace, json.loads(seed.text)])
        knobs.find(trace)
        knobs.transfer(trace)
    except Exception as error:
        return f"raised {type(error).__name__} as it was read: {error}"
    return "read"


def _outcome(seed: _Seed, trace: PlainTrace, bounds: Bounds, apply: bool) -> str:
    outcome = bounds.outcome(lambda: _read(seed, trace))
    return _applied(seed.program, seed.target, trace) if apply and outcome == "read" else outcome


def _applied(program: IRModule, target: Target, trace: PlainTrace) -> str:
    try:
        record = tuning_record(Candidate("mutant", trace, []), Workload(program), target)
        scheduled = record.as_measure_candidate().sch.mod
    except (DamagedFile, WorkerError):
        return "refused"
    except Exception:  # what TVM raises fails the candidate
        return "not applicable"
    try:
        check_calls(scheduled, program, trace)
    except DamagedFile:
        return "called past the grammar"
    return "applied"


def _batch(seeds: list[_Seed], number: int, count: int, hostile: list[Any], apply: bool) -> Iterator[str]:
    """Run a batch of mutants in a process of its own, and yield what became of them."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        signal.alarm(_LIMIT_S)
        generator = random.Random(number)
        bounds = Bounds()
        with os.fdopen(writer, "w") as answers, open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            for _ in range(count):
                seed = generator.choice(seeds)
                answers.write(_outcome(seed, _mutate(seed, generator, hostile), bounds, apply) + "\n")
                answers.flush()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        yield from (line.strip() for line in answers)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        yield "hung" if os.WTERMSIG(status) == signal.SIGALRM else "ended its process"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=3000, help="how many mutants")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no batch after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--read", action="store_true", help="read them, and apply none")
    options = parser.parse_args()
    seeds = _seeds()
    outcomes: Counter[str] = Counter()
    deadline = time.monotonic() + options.minutes * 60
    with tempfile.TemporaryDirectory() as folder:
        sentinel = Path(folder, "ran")
        hostile = _hostile(f"touch {sentinel}")
        for number, first in enumerate(range(0, options.count, _BATCH)):
            if time.monotonic() > deadline:
                break
            size = min(_BATCH, options.count - first)
            for outcome in _batch(seeds, options.seed * 1_000_003 + number, size, hostile, not options.read):
                outcomes[outcome] += 1
                if outcome.startswith(_BAD):
                    print(f"batch {number}: {outcome}", flush=True)
        if sentinel.exists():
            outcomes["ran"] += 1
    print(
        f"{outcomes.total()} mutants: " + ", ".join(f"{outcome} {times}" for outcome, times in outcomes.most_common())
    )
    return int(any(outcome.startswith(_BAD) for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
