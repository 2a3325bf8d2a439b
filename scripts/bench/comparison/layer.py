"""A layer of Chameleon's table 5 as a tuning task: tensor program, knobs, and the trials of all runs."""

from __future__ import annotations

import itertools
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Table 5: network, input channels, output channels, kernel. The paper gives indices of AutoTVM's tasks; those are the
# distinct convolutions in the order of the network, for ResNet-18 C6, C9 and C11 of the AutoTVM paper.
LAYERS = {
    "L1": ("alexnet", 3, 64, 11),
    "L2": ("alexnet", 384, 256, 3),
    "L3": ("vgg16", 3, 64, 3),
    "L4": ("vgg16", 64, 64, 3),
    "L5": ("vgg16", 128, 128, 3),
    "L6": ("resnet18", 128, 128, 3),
    "L7": ("resnet18", 256, 256, 3),
    "L8": ("resnet18", 256, 512, 1),
}
LIMIT_S = 60.0


@dataclass
class Layer:
    """A task whose measurements are kept. A candidate that any run has measured is not measured again.

    Attributes:
        known: trials of all runs, by hash.
        spent_s: seconds of building and measuring by this process, and `measured`, the candidates of these.
    """

    name: str
    program: Any
    target: Any
    knobs: Any
    log: Any
    threads: int
    known: dict[str, Any] = field(default_factory=dict)
    spent_s: float = 0.0
    measured: int = 0

    @classmethod
    def open(cls, name: str, folder: Path, threads: int) -> Layer:
        """Extract the task of a layer, and read its log in the folder."""
        import tvm

        from autotune.storage.tuning_log import TuningLog
        from autotune.tvm_backend.search.knobs import Knobs
        from autotune.tvm_backend.target import resolve_target

        resolved = resolve_target("llvm", threads)
        target = tvm.target.Target(resolved.description)
        program = convolution(name, target)
        log = TuningLog(folder / f"{name}-{resolved.key}.jsonl")
        known = {trial.hash: trial for trial in log.trials()}
        return cls(name, program, target, Knobs(program, target), log, threads, known)

    @property
    def best_us(self) -> float:
        """The best known time of the layer, in microseconds."""
        return min((trial.median_us for trial in self.known.values() if trial.median_us), default=math.inf)

    def measure(self, candidates: Sequence[Any]) -> tuple[list[Any], int]:
        """Measure candidates that are not known; return the trials of all, and how many of them were known."""
        new = [item for item in candidates if item.hash not in self.known]
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            built = list(_built(new, self._builder(Path(folder))))
            good = [item for item, outcome in built if outcome.kind == "ok"]
            timed = list(self._timed(good, Path(folder)))
        failed = [(item, outcome) for item, outcome in built if outcome.kind != "ok"]
        self._record("build", failed)
        self._record("measure", timed)
        self.spent_s += time.monotonic() - began
        self.measured += len(new)
        return [self.known[item.hash] for item in candidates], len(candidates) - len(new)

    def _builder(self, folder: Path) -> Callable[[], Callable[[Any], None]]:
        """Return what prepares a process to build candidates."""
        from autotune.tvm_backend.kernels.build import build_candidate

        return lambda: lambda item: build_candidate(item, self.program, self.target, folder / f"{item.hash}.so")

    def _timed(self, candidates: Sequence[Any], folder: Path) -> Iterator[tuple[Any, Any]]:
        """Time what was built, one after the other, as a daemon with its default settings does."""
        from autotune.processes.isolate import isolated

        best = self.best_us

        def timer() -> Callable[[Any], list[float]]:
            runner = open_runner(self.threads)
            return lambda item: runner.time(folder / f"{item.hash}.so", item.args, best if best < math.inf else None)

        return isolated(candidates, timer, limit_s=LIMIT_S)

    def _record(self, stage: str, ended: Sequence[tuple[Any, Any]]) -> None:
        from autotune.storage.formats import Failure, Trial

        for item, outcome in ended:
            times = tuple(round(value, 4) for value in outcome.value) if outcome.kind == "ok" else ()
            failure = None if times else Failure(stage, outcome.kind, outcome.reason)
            trial = Trial(item.hash, item.trace, item.args, times, failure, "compare", 0, time.time())
            self.log.add([trial])
            self.known[trial.hash] = trial


def open_runner(threads: int) -> Any:
    """Make a runner that times libraries as a daemon with its default settings does."""
    from autotune.settings import MeasureSettings
    from autotune.tvm_backend.kernels.run import Runner, Timing, open_device

    os.environ["TVM_NUM_THREADS"] = str(threads)
    usual = MeasureSettings()
    return Runner(open_device("llvm"), Timing(usual.warmup, usual.repeats, usual.min_repeat_ms))


def _built(candidates: Sequence[Any], builder: Callable[[], Callable[[Any], None]]) -> Iterator[tuple[Any, Any]]:
    """Build candidates, on all CPUs; yield each with the outcome."""
    from autotune.processes.isolate import isolated

    width = len(os.sched_getaffinity(0))
    # A child works ahead of its reader, so reading from all of them in turns keeps all of them busy.
    ways = [isolated(candidates[at::width], builder, limit_s=LIMIT_S) for at in range(width)]
    for turn in itertools.zip_longest(*ways):
        yield from filter(None, turn)


def convolution(name: str, target: Any) -> Any:
    """Return the tensor program of a layer: of the network's tasks with it, the one with the fewest operators fused."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
    import make_models
    import onnx
    from tvm.s_tir import meta_schedule as ms

    from autotune.tvm_backend.models.onnx.read import read_model
    from autotune.tvm_backend.passes.prepare import prepare

    network, *_ = LAYERS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(make_models.build(network), str(path))
        prepared = prepare(read_model(path, {}).module, target)
    found = [item.dispatched[0] for item in ms.relax_integration.extract_tasks(prepared, target)]
    return min((program for program in found if is_layer(program, name)), key=lambda item: len(arguments(item)))


def is_layer(program: Any, name: str) -> bool:
    """Return whether a program convolves with weights of the layer's size and kernel, blocked or not."""
    _, inputs, outputs, kernel = LAYERS[name]
    shapes = [shape for shape in arguments(program)[1:2] if len(shape) >= 4]
    return any(shape[2] == kernel and math.prod(shape) == inputs * outputs * kernel**2 for shape in shapes)


def arguments(program: Any) -> list[list[int]]:
    """Return the shapes of a program's arguments."""
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    return [[int(dim) for dim in item.shape] for item in ArgInfo.from_entry_func(program, remove_preproc=True)]
