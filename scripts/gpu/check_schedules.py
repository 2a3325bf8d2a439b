"""Run random schedules for CUDA on the CPU, and look for wrong results, races, and accesses out of bounds.

    python scripts/gpu/check_schedules.py --schedules 100            # hours; 3 of each kind by default
    python scripts/gpu/check_schedules.py softmax product_fp16 --mutants 5

Each schedule is compiled as a candidate would be, and its kernels run on the stand-in of tests/cuda_stand_in. What they
compute is compared with the task without a schedule. Then the same launches run under ThreadSanitizer and under
AddressSanitizer, each with threads in a random order.

Mutants (`mutants.py`) are made of the first kernels of a kind: one lacks a barrier, one a stage of its pipeline, and in
one an address is off by one. A mutant is caught where its results are wrong or a sanitizer complains. Some changes do
not matter: not every barrier is needed. Needs g++ 12 on x86-64, and no GPU.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

sys.path.insert(0, str(Path(__file__).parent))

from checked_tasks import TENSOR_CORES, attentions, tasks  # noqa: E402
from cuda_stand_in import StandIn, compile_libraries  # noqa: E402
from cuda_stand_in.on_cpu import check, image  # noqa: E402
from mutants import Mutant, mutants  # noqa: E402

ARCH = "sm_90"
RUN_LIMIT_S = 120.0
SANITIZERS: tuple[check.Sanitizer, ...] = ("thread", "address")
# What a source has that uses a feature.
FEATURES = {
    "cp.async": ("shared.global",),
    "tensor cores": ("pipeline::",),
    "shuffles": ("__shfl_down_sync",),
    "split sums": ("c_rf_ptr",),
}
WITHIN = "AUTOTUNE_CHECKING_IN"  # set in the process that has the stand-in in its loader's path


@dataclass
class Tally:
    """What became of the schedules of one kind of task."""

    schedules: int = 0
    right: int = 0
    races: int = 0
    out_of_bounds: int = 0
    mutants: Counter[str] = field(default_factory=Counter)
    caught: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    features: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def schedules(program: Any, target: Any, count: int, mark: str) -> Iterator[Any]:
    """Random schedules whose trace has a mark and that pass the postprocessors, as a search would propose them."""
    from autotune.tvm_backend.search.design_space import tune_context

    made = 0
    for seed in range(1, 20 * count + 20):
        context = tune_context(program, target, seed=seed)
        for schedule in context.generate_design_space():
            if mark not in str(schedule.trace):
                continue
            schedule.enter_postproc()
            if made < count and all(rule.apply(schedule) for rule in context.space_generator.postprocs):
                made += 1
                yield schedule.mod
        if made == count:
            return


def cuda_target() -> tuple[dict[str, Any], Any]:
    """The target, as TVM describes it and as an object."""
    from autotune.tvm_backend.target import resolve_target, tvm_target

    description = resolve_target(f'{{"kind": "cuda", "arch": "{ARCH}"}}', 1).description
    return description, tvm_target(description)


def program_of(kind: str) -> Any:
    """The program of a kind of task without a schedule."""
    import tvm
    from tvm import te

    from autotune.tvm_backend.cuda import tf32

    index = "int64" if kind.startswith("long_") else None  # as in the programs of models
    function = te.create_prim_func(tasks()[kind](), index).with_attr("global_symbol", "main")
    program = tvm.IRModule({"main": function})
    return tf32.allow(program) if kind.endswith("_tf32") else program


def kernel_of(kind: str, target: Any) -> Any:
    """The only schedule of attention that is one kernel."""
    import tvm

    shape, dtype = attentions()[kind]
    return tvm.IRModule({"main": shape.program(dtype, target).with_attr("global_symbol", "main")})


def mark_of(kind: str) -> str:
    """What the traces of those schedules have that matter: of a kind for tensor cores, only those that use them."""
    from autotune.tvm_backend.cuda.pipeline_tiles import PREFIX

    return PREFIX if kind.rpartition("_")[2] in TENSOR_CORES else ""


def build(scheduled: Any, target: Any, library: Path, instead: str = "") -> tuple[str, bytes]:
    """Write the library of a scheduled program; return its source in CUDA C and its cubin.

    Args:
        instead: A source in place of its own.

    Raises:
        RuntimeError: The compiler refuses the source.
    """
    from autotune.tvm_backend.cuda import compiler
    from autotune.tvm_backend.kernels.build_kernel import build_library

    made: list[tuple[str, bytes]] = []
    compile_source = compiler.compile_source
    completed = compiler.completed

    def note(source: str, arch: str) -> bytes:
        made.append((compiler.completed(source), compile_source(source, arch)))
        return made[-1][1]

    with (
        patch.object(compiler, "compile_source", note),
        patch.object(compiler, "completed", lambda source: instead or completed(source)),
    ):
        build_library(scheduled, target, library)
    return made[0]


class Checker:
    """Checks schedules on one machine; keeps what is compiled once."""

    def __init__(self, folder: Path, stand_in: StandIn, mutants: int) -> None:
        self.folder = folder
        self.mutants = mutants
        self.launches = stand_in.folder / "launches"
        self.description, self.target = cuda_target()
        self.random = random.Random(1)
        for sanitizer in SANITIZERS:
            check.compile_parts(folder / sanitizer, sanitizer)

    def kind(self, kind: str, count: int) -> Tally:
        """Check random schedules of one kind of task."""
        from autotune.tvm_backend.kernels import verify

        program = program_of(kind)
        truth = verify.compute(program, self.description["host"])
        tally = Tally()
        if kind in attentions():
            drawn = iter([kernel_of(kind, self.target)] * count)  # its threads run in another order each time
        else:
            drawn = schedules(program, self.target, count, mark_of(kind))
        for scheduled in drawn:
            tally.schedules += 1
            self._one(scheduled, truth, tally)
        return tally

    def _one(self, scheduled: Any, truth: Any, tally: Tally) -> None:
        library = self.folder / "candidate.so"
        source, _ = build(scheduled, self.target, library)
        for feature, words in FEATURES.items():
            tally.features[feature] = tally.features.get(feature, 0) + all(word in source for word in words)
        problem = self._verify(library, truth)
        if problem:
            tally.problems.append(problem)
            return
        tally.right += 1
        races = self._complaints(source, "thread")
        overflows = self._complaints(source, "address")
        tally.races += bool(races)
        tally.out_of_bounds += bool(overflows)
        tally.problems += races[:1] + overflows[:1]
        if tally.right <= self.mutants and not races:
            self._mutate(scheduled, source, truth, tally)

    def _verify(self, library: Path, truth: Any) -> str:
        """Run the kernels in a process that may die of it, and note their launches; return what is wrong."""
        from autotune.processes.isolate import isolated

        ((_, outcome),) = isolated([library], lambda: lambda path: self._run(path, truth), limit_s=RUN_LIMIT_S)
        return "" if outcome.kind == "ok" else f"{outcome.kind}: {outcome.reason}"

    def _run(self, library: Path, truth: Any) -> None:
        """Compare results, and then note launches on tensors without guard areas, whose sizes are exact."""
        import tvm

        from autotune.tvm_backend.kernels.verify import Verifier

        device = tvm.cuda(0)
        main = tvm.runtime.load_module(str(library))["main"]
        self.launches.unlink(missing_ok=True)
        Verifier(truth, device).check(main)
        self.launches.touch()
        main(*(tvm.runtime.empty(dims, dtype, device) for dtype, dims in truth.args))
        device.sync()

    def _complaints(self, source: str, sanitizer: check.Sanitizer) -> list[str]:
        program = self.folder / "program"
        check.compile_program(source, self.folder / sanitizer, sanitizer, program)
        return check.complaints(program, self.launches, seed=self.random.randrange(1 << 20))

    def _mutate(self, scheduled: Any, source: str, truth: Any, tally: Tally) -> None:
        """Count the mutants of a kernel, and which of them are caught."""
        for mutant in mutants(source, self.random):
            tally.mutants[mutant.kind] += 1
            if self._is_caught(scheduled, mutant, truth):
                tally.caught[mutant.kind] += 1
            else:
                tally.missed.append(f"{mutant.kind}: {mutant.line}")

    def _is_caught(self, scheduled: Any, mutant: Mutant, truth: Any) -> bool:
        library = self.folder / "mutant.so"
        build(scheduled, self.target, library, mutant.source)
        return bool(self._verify(library, truth) or any(map(self._complaints, [mutant.source] * 2, SANITIZERS)))


def table(tallies: dict[str, Tally]) -> str:
    """The results in Markdown."""
    names = ("schedules", "right", "races", "out of bounds", *FEATURES, "mutants caught")
    lines = [f"| task | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for kind, tally in tallies.items():
        used = [tally.features.get(name, 0) for name in FEATURES]
        cells = [
            tally.schedules,
            tally.right,
            tally.races,
            tally.out_of_bounds,
            *used,
            f"{tally.caught.total()} of {tally.mutants.total()}",
        ]
        lines.append(f"| {kind} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def table_of_mutants(tallies: dict[str, Tally]) -> str:
    """How many mutants of each kind were caught, and which were not, in Markdown."""
    made: Counter[str] = sum((tally.mutants for tally in tallies.values()), Counter())
    caught: Counter[str] = sum((tally.caught for tally in tallies.values()), Counter())
    missed = Counter(item for tally in tallies.values() for item in tally.missed)
    lines = [f"| {kind} | {caught[kind]} of {count} |" for kind, count in made.items()]
    not_caught = [f"not caught, {count} times: {item}" for item, count in missed.most_common()]
    return "\n".join(["\n| mutants | caught |\n|---|---:|", *lines, "", *not_caught])


def run(kinds: list[str], count: int, mutants: int, folder: Path) -> int:
    """Check the kinds of tasks; return the exit code."""
    from autotune.tvm_backend.load import load_for_tuning

    load_for_tuning("cuda", ())
    checker = Checker(folder, StandIn(folder, folder / "gpus"), mutants)
    tallies: dict[str, Tally] = {}
    for kind in tasks():
        if kinds and kind not in kinds:
            continue
        begun = time.monotonic()
        tallies[kind] = checker.kind(kind, count)
        print(table({kind: tallies[kind]}).splitlines()[-1], f"{time.monotonic() - begun:.0f} s", file=sys.stderr)
        for problem in tallies[kind].problems:
            print(f"  {problem}", file=sys.stderr)
    print(table(tallies))
    print(table_of_mutants(tallies))
    return any(tally.problems for tally in tallies.values())


def main() -> None:
    """Start again with the stand-in in the loader's path, which is read when a process starts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kinds", nargs="*", help="kinds of tasks; all by default")
    parser.add_argument("--schedules", type=int, default=3, help="of each kind (default: 3)")
    parser.add_argument("--mutants", type=int, default=1, help="kernels of each kind that are mutated (default: 1)")
    given = parser.parse_args()
    if WITHIN in os.environ:
        sys.exit(run(given.kinds, given.schedules, given.mutants, Path(os.environ[WITHIN])))
    if problem := image.missing():
        sys.exit(f"cannot run kernels on this CPU: {problem}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stand_in = StandIn.make(compile_libraries(folder, computes=True), folder / "gpus")
        environment = {**os.environ, **stand_in.environment(), WITHIN: name}
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
