"""Import mutated models of TensorFlow Lite, PyTorch and GGUF: each becomes a module or one line; none runs anything.

    python scripts/chaos/fuzz_formats.py lite --count 10000 --seed 1
    python scripts/chaos/fuzz_formats.py torch --count 10000 --seed 1
    python scripts/chaos/fuzz_formats.py gguf --count 20000 --seed 1

Mutants are imported in a child that is forked from a process with the packages loaded. For each, it may compute for two
seconds and take 200 MB more than before. It reports what it runs: commands, pickles, connections, and code with
a text of the mutant in it. Exit code 1 when a mutant was run, brought a traceback, or broke a limit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mutate_formats import MARK, Files, Seed, lite_seeds, torch_seeds
from mutate_gguf import gguf_seeds, of_gguf

from autotune.errors import AutotuneError, ran_out_of_memory
from autotune.storage.formats import ShapeBinding
from autotune.tvm_backend.models.gguf.decoder import Decoder
from autotune.tvm_backend.models.gguf.file import is_gguf
from autotune.tvm_backend.models.gguf.reference import empty_cache
from autotune.tvm_backend.models.gguf.tokenizer import end_tokens, tokenizer_json
from autotune.workers import oneshot

_CPU_S = 2
_WALL_S = 300  # for a batch, on a busy machine
_BATCH = 100  # mutants of a child
_MAX_LENGTH = 1010  # characters of a line for users
_MORE_BYTES = 200 << 20
_BAD = ("ran", "traceback", "unclear", "slow", "large")
_RUNS = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class", "socket.connect")
_READS_ONLY = "<unknown>"  # the file of what `ast.parse` reads and nobody runs


@dataclass
class Tally:
    """What became of the mutants: how often what, and one line for each that is not fine."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    largest: int = 0

    def add(self, number: int, verdict: str, reason: str) -> None:
        self.counts[verdict] += 1
        self.reasons[f"{verdict}: {reason[-60:]}"] += 1
        if verdict in _BAD:
            self.bad.append(f"mutant {number}: {verdict}: {reason}")

    def take(self, line: dict[str, Any]) -> None:
        """Add what a child said of a mutant."""
        verdict, reason = line["verdict"], line["reason"]
        self.slowest_s = max(self.slowest_s, line["seconds"])
        self.largest = max(self.largest, line["more"])
        if verdict in ("imported", "refused") and line["seconds"] > _CPU_S:
            verdict, reason = "slow", f"{line['seconds']:.1f} s; {reason}"
        elif verdict in ("imported", "refused", "memory") and line["more"] > _MORE_BYTES:
            verdict, reason = "large", f"{line['more'] >> 20} MiB; {reason}"
        self.add(line["number"], verdict, reason)

    def lines(self) -> list[str]:
        shown = ["imported", "refused", "crashed", "memory", *_BAD]
        counts = ", ".join(f"{name} {self.counts[name]}" for name in shown)
        most = f"slowest {self.slowest_s:.2f} s of a CPU, largest {self.largest / 2**20:.0f} MiB more"
        return [*self.bad, f"{sum(self.counts.values())} mutants: {counts}; {most}"]


def imported(path: Path, shapes: ShapeBinding) -> None:
    """Import a file as `submit` does."""
    from autotune.processes.messages import ImportRequest
    from autotune.tvm_backend.models.sources import open_source

    request = ImportRequest(str(path), "llvm", 1, (0,), "", (shapes,), {}, True, None)
    source = open_source(request)
    source.read(source.shapes((shapes,))[0], None, gpu=False)
    if is_gguf(path):
        _verified(path)


def _verified(path: Path) -> None:
    """Compute with the weights of a GGUF file, and read its tokenizer, as `export` does."""
    decoder = Decoder.read(path, None, "fp32")
    decoder.reference.logits(np.zeros(1, np.int64), 0, *empty_cache(decoder.network.sizes, 16))
    tokenizer_json(decoder.network.file)
    end_tokens(decoder.network)


def _watch(report: Callable[[str], None]) -> None:
    """Report what this process runs from now on."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _RUNS:
            report(f"{event} {arguments!r}"[:300])
        elif event == "compile" and arguments[1] != _READS_ONLY and MARK in str(arguments[0]):
            report(f"compile {arguments[1]}")

    sys.addaudithook(hook)


@dataclass(frozen=True)
class Mutants:
    """The mutants of a seed of random numbers, by their numbers."""

    kind: str
    root: Path
    seed: int
    parents: Sequence[Seed]

    @property
    def canary(self) -> Path:
        """What a text or a pickle of a mutant makes if it is run."""
        return self.root / "canary"

    def write(self, number: int) -> tuple[Path, ShapeBinding]:
        """Write one, and return its path and the shapes that it is imported with."""
        files = Files(self.canary)
        rng = np.random.default_rng([self.seed, number])
        parent = self.parents[rng.integers(len(self.parents))]
        path = self.root / "mutant"
        mutate = {"lite": files.of_lite, "torch": files.of_torch, "gguf": of_gguf}[self.kind]
        path.write_bytes(mutate(parent.content, rng))
        return path, parent.shapes


def _serve(mutants: Mutants, numbers: Iterable[int], answer: int) -> None:
    """Import mutants in this process, and write a line about each: before, and what became of it."""
    ran: list[str] = []
    _watch(ran.append)
    for number in numbers:
        path, shapes = mutants.write(number)
        os.write(answer, json.dumps({"number": number}).encode() + b"\n")
        used_s = _limit()
        before = _bytes_of("VmRSS")
        ran.clear()
        verdict, reason = _verdict(path, shapes)
        if mutants.canary.exists():
            mutants.canary.unlink()
            ran.append("it made the file")
        if ran:
            verdict, reason = "ran", ran[0]
        seconds = _used_s() - used_s
        more = max(0, _bytes_of("VmHWM") - before)
        line = {"number": number, "verdict": verdict, "reason": reason[:1000], "seconds": seconds, "more": more}
        os.write(answer, json.dumps(line).encode() + b"\n")


def _verdict(path: Path, shapes: ShapeBinding) -> tuple[str, str]:
    try:
        imported(path, shapes)
    except AutotuneError as error:
        text = oneshot.failure_of("import", error).message
        unclear = len(text.splitlines()) != 1 or len(text) > _MAX_LENGTH
        return ("memory" if ran_out_of_memory(error) else "unclear" if unclear else "refused"), text
    except Exception as error:
        return ("memory" if ran_out_of_memory(error) else "traceback"), f"{type(error).__name__}: {error}"
    return "imported", ""


def _limit() -> float:
    """Limit what this process may use from now on, and return how long it has computed so far."""
    Path("/proc/self/clear_refs").write_text("5")  # the largest memory is counted from here
    used_s = _used_s()
    resource.setrlimit(resource.RLIMIT_CPU, (int(used_s) + _CPU_S + 2, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_DATA, (_bytes_of("VmData") + 2 * _MORE_BYTES, resource.RLIM_INFINITY))
    return used_s


def _used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _bytes_of(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:")), 0)


def run(mutants: Mutants, numbers: Sequence[int], tally: Tally) -> int:
    """Import mutants in a child, until it dies; return how many were imported, that which killed it included."""
    answers, answer = os.pipe()
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException), open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
            _serve(mutants, numbers, answer)
        os._exit(0)
    os.close(answer)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
    signal.alarm(_WALL_S)
    with os.fdopen(answers, "rb") as stream:
        lines = [json.loads(line) for line in stream.read().splitlines()]
    _, status = os.waitpid(pid, 0)
    signal.alarm(0)
    ended = [line for line in lines if "verdict" in line]
    for line in ended:
        tally.take(line)
    if len(ended) == len(numbers):
        return len(ended)
    code = os.waitstatus_to_exitcode(status)
    slow = code in (-signal.SIGXCPU, -signal.SIGKILL)
    tally.add(numbers[len(ended)], "slow" if slow else "crashed", f"it ended with {code}")
    return len(ended) + 1


def fuzz(kind: str, root: Path, count: int, seed: int, first: int = 0) -> Tally:
    """Import mutants number `first` to `first + count - 1` of a seed."""
    seeds = {"lite": lite_seeds, "torch": torch_seeds, "gguf": gguf_seeds}[kind]
    mutants = Mutants(kind, root, seed, seeds())
    for parent in mutants.parents:
        (root / "seed").write_bytes(parent.content)
        imported(root / "seed", parent.shapes)  # it is sound; and what is loaded at first is there for the children
    tally = Tally()
    began = time.monotonic()
    numbers = range(first, first + count)
    while numbers:
        numbers = numbers[run(mutants, numbers[:_BATCH], tally) :]
        print(f"{time.monotonic() - began:.0f} s", *tally.lines()[-1:], file=sys.stderr, flush=True)
    return tally


def _warm(kind: str) -> None:
    """Load what the importer loads, so that a forked process has it."""
    from autotune.tvm_backend.load import load_tvm

    os.environ.update(oneshot.SINGLE_THREADED)
    load_tvm("llvm")
    from autotune.tvm_backend.models import submission

    assert submission
    if kind == "lite":
        import ai_edge_litert.interpreter
        import tflite

        from autotune.tvm_backend.models.tflite import convert

        assert ai_edge_litert and tflite and convert
    elif kind == "torch":
        import torch
        import tvm.relax.frontend.torch

        torch.set_num_threads(1)
        assert tvm


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("kind", choices=("lite", "torch", "gguf"))
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant, to see one again")
    parser.add_argument("--reasons", action="store_true", help="show the most frequent ends")
    options = parser.parse_args()
    _warm(options.kind)
    with tempfile.TemporaryDirectory() as folder:
        tally = fuzz(options.kind, Path(folder), options.count, options.seed, options.first)
    print(*tally.lines(), sep="\n")
    for reason, count in tally.reasons.most_common(40) if options.reasons else ():
        print(f"{count:6}  {reason}")
    sys.exit(1 if tally.bad else 0)


if __name__ == "__main__":
    main()
