"""What the last export of a job measured: the latency of the whole model, and the times of its kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.errors import DamagedFile
from autotune.network_plan.plan import Memory
from autotune.storage import formats
from autotune.storage.paths import JobPaths


@dataclass(frozen=True)
class KernelFacts:
    """A kernel of the exported library, timed inside the model.

    Attributes:
        name: The name of its tensor program.
        task: The name of the task that it is; None if it is in no task.
        calls: How often a run of the model calls it.
        us: The microseconds of all its calls in one run.
        gflop: Floating-point operations of one call, in 1e9; None if the values that it is given decide.
        bytes: What one call reads and writes at least; None as before.
        least_us: What the machine allows for all its calls; None if that was not measured, or depends on values.
        rate: How many of its operations the machine can do in the time of one in float32.
        streamed: The bytes of one call that come from beyond the L2 caches; None as before.
        bound: What allows no more: `arithmetic` or `bandwidth`; None if that was not measured.
    """

    name: str
    task: str | None
    calls: int
    us: float
    gflop: float | None
    bytes: int | None
    least_us: float | None
    rate: float = 1.0
    streamed: int | None = 0
    bound: str | None = None

    @property
    def gflops(self) -> float | None:
        """Floating-point operations, in 1e9 a second; None if it is not known how many there are."""
        return None if self.gflop is None else self.gflop * self.calls / self.us * 1e6

    @property
    def gb_per_s(self) -> float | None:
        """Bytes read and written, in 1e9 a second; None if it is not known how many there are."""
        return None if self.bytes is None else self.bytes * self.calls / self.us / 1e3


@dataclass(frozen=True)
class Limits:
    """What the machine can do at most: `autotune.tvm_backend.kernels.roofline.Roofline`."""

    gflops: float
    gb_per_s: float
    ring_bytes: int = 0


@dataclass(frozen=True)
class KernelLimit:
    """What a machine allows a kernel: the microseconds that a call takes at least, and what allows no less."""

    us: float
    bound: str

    def reached(self, us: float) -> str:
        """Return what a call that takes so many microseconds reaches, as text: `81% arithmetic`."""
        return f"{self.us / us:.0%} {self.bound}".rstrip()


@dataclass(frozen=True)
class LanguageFacts:
    """What an export measured of a language model.

    Attributes:
        written_per_s: Tokens that it writes a second.
        read_per_s: Tokens of a prompt that it reads a second, as many at a time as it can.
        tokens: Of the text whose perplexity was computed; 0 if none was.
        perplexity: That of the exported library.
        in_float32: That of the same weights with activations in float32.
    """

    written_per_s: float
    read_per_s: float
    tokens: int = 0
    perplexity: float | None = None
    in_float32: float | None = None

    @classmethod
    def of_report(cls, told: Mapping[str, Any]) -> LanguageFacts | None:
        """Return what a report says; None if the export measured nothing."""
        if "written_per_s" not in told:
            return None
        costs = told["perplexity"] or {"tokens": 0, "library": None, "in_float32": None}
        rates = told["written_per_s"], told["read_per_s"]
        return cls(*rates, costs["tokens"], costs["library"], costs["in_float32"])

    def text(self) -> str:
        """Return a clause about it."""
        speed = f"writes {self.written_per_s:.4g} tokens a second, and reads {self.read_per_s:.4g}"
        if self.perplexity is None:
            return speed
        return (
            f"{speed}; the perplexity of {self.tokens} tokens of English is {self.perplexity:.4g}, and"
            f" {self.in_float32:.4g} with activations in float32"
        )


@dataclass(frozen=True)
class References:
    """What an export measured. Times are milliseconds of a run of the whole model, at each set of shapes of the job.

    Attributes:
        tuned_ms: The exported library.
        untuned_ms: TVM's default schedules; None if they were not timed.
        others_ms: Other runtimes, by name.
        threads: The threads that each ran on.
        exported_at: When, in epoch seconds.
        kernels: The kernels of the exported library, the one that takes most first; none before autotune timed them.
            Of several sets of shapes, they are those of the first.
        limits: What the machine can do at most; None if it was not measured.
        activations: The memory of its activations; None where it is not known.
        entries_ms: The times at each set of shapes by its name, if there are several: those of the library as `tuned`.
        language: What was measured of a language model; None for any other.
    """

    FORMAT = ("autotune-exported", 1)

    tuned_ms: float
    untuned_ms: float | None
    others_ms: dict[str, float]
    threads: int
    exported_at: float
    kernels: tuple[KernelFacts, ...] = ()
    limits: Limits | None = None
    entries_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    activations: Memory | None = None
    language: LanguageFacts | None = None

    @property
    def named(self) -> dict[str, float]:
        """All of them by the name that people know."""
        untuned = {} if self.untuned_ms is None else {"untuned": self.untuned_ms}
        return {"exported library": self.tuned_ms, **self.others_ms, **untuned}

    def limits_of_tasks(self) -> dict[str, KernelLimit]:
        """Return what the machine allows each task, by its name; only those that were measured have one."""
        measured = [item for item in self.kernels if item.task is not None and item.least_us]
        return {str(item.task): KernelLimit((item.least_us or 0.0) / item.calls, item.bound or "") for item in measured}

    def activations_text(self) -> str:
        """Return a sentence about the memory of activations, with a space before it; empty where it is not known."""
        memory = self.activations
        if memory is None:
            return ""
        library, alone, least = (f"{amount / 1e6:.4g} MB" for amount in (memory.library, memory.sum, memory.least))
        return f" Its activations take {library}, {alone} if none shared memory, and {least} at least in any order."

    def kernels_text(self) -> str:
        """Return sentences about the kernels, of which there are some, and the machine's limits."""
        total = sum(kernel.us for kernel in self.kernels)
        top = self.kernels[0]
        outside = sum(kernel.us for kernel in self.kernels if kernel.task is None)
        speed = "" if top.gflops is None else f", at {top.gflops:.3g} GFLOP/s"
        allowed = f", {top.least_us / top.us:.0%} of what the machine allows" if top.least_us else ""
        text = (
            f"Inside the model, {len(self.kernels)} kernels take {total / 1e3:.4g} ms together,"
            f" {outside / total:.0%} of it outside of tasks."
            f" {top.name} takes most: {top.us / total:.0%}{speed}{allowed}."
        )
        if self.limits is None:
            return text
        least_ms = sum(kernel.least_us or 0.0 for kernel in self.kernels) / 1e3
        return (
            f"{text} The machine does {self.limits.gflops:.4g} GFLOP/s in float32"
            f" and reads the {self.limits.ring_bytes / 1e6:.3g} MB of constants at {self.limits.gb_per_s:.3g} GB/s,"
            f" which together allow {least_ms:.3g} ms."
        )


_TITLES = {
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "torch": "PyTorch",
    "litert": "LiteRT",
    "gguf": "NumPy",
    "without_graph": "library without its CUDA graph",
}


def title(runtime: str) -> str:
    """Return the name by which people know a runtime of an export's report."""
    return _TITLES.get(runtime, runtime)


def remember(paths: JobPaths, report: Mapping[str, Any]) -> None:
    """Write what an export measured into the job's folder, for later reports.

    Raises:
        StorageError: It cannot be written.
    """
    formats.write(paths.exported, _of_report(report))


def _of_report(report: Mapping[str, Any]) -> References:
    entries = {str(entry["name"]): _times(entry["latency"]) for entry in report.get("entries", ())}
    times = _sums(list(entries.values())) if entries else _times(report["latency"])
    tuned = times.pop("tuned")
    untuned = times.pop("untuned", None)
    kernels = tuple(KernelFacts(**kernel) for kernel in report.get("kernels", ()))
    limits = Limits(**report["roofline"]) if report.get("roofline") else None
    when = float(report["exported_at"])
    memory = Memory(**report["activations"]) if report.get("activations") else None
    language = LanguageFacts.of_report(report.get("language") or {})
    return References(tuned, untuned, times, int(report["threads"]), when, kernels, limits, entries, memory, language)


def _times(latency: Mapping[str, Any]) -> dict[str, float]:
    """Return the times of a report by runtime."""
    by_runtime = {
        name[:-3]: ms for name, ms in latency.items() if name.endswith("_ms") and isinstance(ms, (int, float))
    }
    return {title(name): float(ms) for name, ms in by_runtime.items()}


def _sums(times: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the time of one run at each set of shapes, of the runtimes that were timed at all of them."""
    everywhere = [name for name in times[0] if all(name in entry for entry in times)]
    return {name: sum(entry[name] for entry in times) for name in everywhere}


def recall(paths: JobPaths) -> References | None:
    """Return what the last export measured; None if there was none, or its file is damaged.

    Raises:
        StorageError: The file cannot be read, or a newer autotune wrote it.
    """
    try:
        return formats.read(References, paths.exported)
    except (FileNotFoundError, DamagedFile):
        return None
