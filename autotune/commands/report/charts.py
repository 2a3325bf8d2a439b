"""The charts of a report: SVG from Matplotlib, in colours that the page sets, so that they suit light and dark."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap
from typing import Any

from autotune.commands.references import KernelFacts, Limits
from autotune.commands.render import short
from autotune.commands.report.facts import JobReport, TaskReport
from autotune.commands.report.knob_importance import KnobValues
from autotune.errors import BadInput, one_line
from autotune.storage.atomic import check_output

# Each colour stands for a variable of the page's style sheet.
_INK = "#010101"
_GRID = "#020202"
_SERIES = tuple(f"#0303{number:02x}" for number in range(1, 9))
_VARIABLES = {_INK: "--ink", _GRID: "--grid"} | {colour: f"--s{place}" for place, colour in enumerate(_SERIES, 1)}
_WIDTH = 6.4
_HEIGHT = 3.4  # inches
_ROW = 0.26  # inches
MAX_TASKS = len(_SERIES)
_MAX_BARS = 40
_MAX_LINES = 300
_LINE_HEIGHT = 0.05  # of a label in parallel coordinates, as a part of the chart's height
_MAX_NAME_LENGTH = 34
# Beyond this ratio of the largest to the smallest, small differences need a logarithmic axis to be seen.
_WIDE = 4.0
_VERY_WIDE = 1000.0  # beyond this ratio, a tick at every power of ten is enough

# A reference that is slower than the first latency by more than this is left to the table: it would flatten the curve.
_FARTHEST = 4.0

_STYLE = {
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.size": 9,
    "text.parse_math": False,  # a name may hold a dollar
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


def check(file: Path) -> None:
    """Check that a page with charts can be made, before anything is read for it.

    Raises:
        BadInput: The file is not an .html file, or Matplotlib is not installed.
        DiskProblem: There is no folder for it.
    """
    if file.suffix not in (".html", ".htm"):
        raise BadInput(f"--html {file}: give a file that ends with .html")
    check_output(file)
    if find_spec("matplotlib") is None:
        raise BadInput("a page has charts, which need Matplotlib; run: pip install 'autotune-tvm[plots]'")


def task_label(task: TaskReport) -> str:
    """Return the number and the name of a task."""
    return f"{task.index} {short(one_line(task.name), _MAX_NAME_LENGTH)}"


def by_share(job: JobReport) -> list[TaskReport]:
    """Return the tasks that have a time, the one that takes most first."""
    return sorted((task for task in job.tasks if task.share is not None), key=lambda task: -(task.share or 0.0))


def latency_over_time(job: JobReport) -> str:
    """Return the latency of the model over the time since the submission."""
    unit, per = _unit(max((point.seconds for point in job.latency), default=0.0))
    times = [point.seconds / per for point in job.latency]
    return _draw(lambda axes: _latency(axes, job, times, f"{unit} since the submission"))


def latency_over_trials(job: JobReport) -> str:
    """Return the latency of the model over the trials."""
    return _draw(lambda axes: _latency(axes, job, [point.trials for point in job.latency], "trials"))


def _latency(axes: Any, job: JobReport, places: Sequence[float], label: str) -> None:
    values = [job.job.metric.in_column(point.latency_ms) or 0.0 for point in job.latency]
    axes.step(places, values, where="post", color=_SERIES[0], label="sum of the tasks' best")
    references = job.references.named if job.references else {}
    near = {name: ms for name, ms in references.items() if ms < _FARTHEST * max(values)}
    for number, (name, ms) in enumerate(near.items(), 1):
        axes.axhline(ms, color=_SERIES[number % MAX_TASKS], linestyle="--", linewidth=1, label=f"{name}, {ms:.4g} ms")
    _scale(axes.yaxis, axes.set_yscale, [*values, *near.values()])
    axes.set_xlabel(label)
    axes.set_ylabel(job.job.metric.column)
    if near:
        axes.legend()


def task_bars(job: JobReport) -> str:
    """Return each task's share of the model's time, and its speed."""
    tasks = by_share(job)[:_MAX_BARS]
    names = [task_label(task) for task in tasks]
    share = [100 * (task.share or 0.0) for task in tasks]
    speed = [task.gflops or 0.0 for task in tasks]

    def draw(left: Any, right: Any) -> None:
        _bars(left, names, share, "share of the model's time in %", "{:.1f}")
        _bars(right, names, speed, "GFLOP/s", "{:.3g}")
        right.tick_params(labelleft=False)

    return _draw(draw, columns=2, height=_bar_height(names), width=9.0)


def best_over_trials(job: JobReport) -> str:
    """Return the best time of the tasks that take most, over their trials."""

    def draw(axes: Any) -> None:
        for task, colour in zip(by_share(job), _SERIES, strict=False):
            last = max(task.trials, task.curve[-1].trials)
            trials = [*(point.trials for point in task.curve), last]
            times = [*(point.best_us for point in task.curve), task.curve[-1].best_us]
            axes.step(trials, times, where="post", color=colour, label=task_label(task))
        _scale(axes.yaxis, axes.set_yscale, [point.best_us for task in by_share(job) for point in task.curve])
        axes.set_xlabel("trials of the task")
        axes.set_ylabel("best time in µs")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))

    return _draw(draw, width=9.0)


def knob_bars(names: Sequence[str], values: Sequence[float]) -> str:
    """Return the importance of knobs in percent."""
    return horizontal(names, [100 * value for value in values], "variance of the time's logarithm explained, in %")


def horizontal(names: Sequence[str], values: Sequence[float], label: str) -> str:
    """Return one horizontal bar for each name, the first at the top."""
    return _draw(lambda axes: _bars(axes, names, values, label, "{:.3g}"), height=_bar_height(names), width=9.0)


def parallel_coordinates(names: Sequence[str], trials: Sequence[KnobValues], fast: int) -> str:
    """Return one line for each trial through its values of some knobs and its time.

    Args:
        trials: The trials, the fastest first. Of many, some are left out, evenly.
        fast: How many of them are the fastest, which are highlighted.
    """
    every = -(-len(trials) // _MAX_LINES)
    lines = [(trial, place < fast) for place, trial in enumerate(trials) if place < fast or place % every == 0]
    axes_of = [_Axis.of_values([trial.values[place] for trial in trials]) for place in range(len(names))]
    axes_of.append(_Axis.of_times([trial.us for trial in trials]))

    def draw(axes: Any) -> None:
        for trial, highlighted in reversed(lines):
            heights = [
                axis.place[value] for axis, value in zip(axes_of, (*trial.values, f"{trial.us:.4g}"), strict=True)
            ]
            colour, width, alpha = (_SERIES[1], 1.4, 0.9) if highlighted else (_SERIES[7], 0.6, 0.35)
            axes.plot(range(len(heights)), heights, color=colour, linewidth=width, alpha=alpha)
        for number, axis in enumerate(axes_of):
            axes.axvline(number, color=_INK, linewidth=0.8)
            for value, height in axis.labels():
                axes.annotate(value, (number, height), (4, 3), textcoords="offset points", fontsize=8)
        axes.set_xticks(range(len(axes_of)), [*("\n".join(wrap(name, 20)) for name in names), "time in µs"])
        axes.set_yticks([])
        axes.set_xlim(-0.1, len(names) + 0.35)
        axes.grid(visible=False)
        axes.spines[["left", "bottom"]].set_visible(False)

    return _draw(draw, width=9.0, height=4.2)


@dataclass(frozen=True)
class _Axis:
    """Where the values of an axis are, from 0 to 1; the value of the fastest trial comes first."""

    place: dict[str, float]

    @classmethod
    def of_values(cls, values: Sequence[str]) -> _Axis:
        """Place the values of a knob evenly, in their order."""
        ordered = sorted(set(values), key=_numbers)
        heights = {value: (number + 0.5) / len(ordered) for number, value in enumerate(ordered)}
        return cls({value: heights[value] for value in dict.fromkeys(values)})

    @classmethod
    def of_times(cls, times: Sequence[float]) -> _Axis:
        """Place times by their logarithm, the shortest at the top."""
        low = math.log(min(times))
        high = math.log(max(times))
        return cls({f"{us:.4g}": 1 - (math.log(us) - low) / (high - low or 1.0) for us in times})

    def labels(self) -> list[tuple[str, float]]:
        """Return the values to write, with their places: as many as have room, those of the fastest trials first."""
        labels = list[tuple[str, float]]()
        for value, height in self.place.items():
            if all(abs(height - other) >= _LINE_HEIGHT for _, other in labels):
                labels.append((value or "none", height))
        return labels


def _numbers(value: str) -> tuple[bool, list[int], str]:
    """Return the key that sorts values such as 4x16 by their numbers, and words behind them."""
    numbers = value.split("x")
    numeric = all(part.lstrip("-").isdigit() for part in numbers)
    return not numeric, [int(part) for part in numbers] if numeric else [], value


def roofline(kernels: Sequence[KernelFacts], limits: Limits) -> str:
    """Return the speed of kernels over their operations per byte, below what the machine allows."""
    computing = [(kernel, kernel.gflop * 1e9) for kernel in kernels if kernel.gflop]
    peaks = sorted({limits.gflops * rate for rate in (1.0, *(kernel.rate for kernel, _ in computing))})
    ridges = [peak / limits.gb_per_s for peak in peaks]
    intensities = [operations / kernel.streamed for kernel, operations in computing if kernel.streamed]
    low = min(intensities + ridges) / 2
    high = max(intensities + ridges) * 2
    placed = [(operations / kernel.streamed if kernel.streamed else high, kernel) for kernel, operations in computing]

    def draw(axes: Any) -> None:
        label = "what this machine allows" + (", by the precision" if len(peaks) > 1 else "")
        for ridge, peak in zip(ridges, peaks, strict=True):
            roof = [(low, low * limits.gb_per_s), (ridge, peak), (high, peak)]
            axes.plot(*zip(*roof, strict=True), color=_SERIES[1], label=label if peak is peaks[-1] else None)
        total = sum(kernel.us for kernel in kernels)
        dots = [(place, kernel.gflops or 0.0, 20 + 400 * kernel.us / total) for place, kernel in placed]
        if dots:
            axes.scatter(*zip(*dots, strict=True), color=_SERIES[0], alpha=0.7, linewidths=0)
        axes.plot([], [], "o", color=_SERIES[0], label="a kernel; the larger, the more time it takes")
        _scale(axes.xaxis, axes.set_xscale, [low, high])
        _scale(axes.yaxis, axes.set_yscale, [speed for _, speed, _ in dots] + [*peaks, low * limits.gb_per_s])
        axes.set_xlabel("operations per byte from beyond the L2 caches")
        axes.set_ylabel("GFLOP/s")
        axes.legend(loc="lower right")

    return _draw(draw)


def _bar_height(names: Sequence[str]) -> float:
    return 0.9 + _ROW * max(2, len(names))


def _bars(axes: Any, names: Sequence[str], values: Sequence[float], label: str, form: str) -> None:
    places = range(len(names))
    bars = axes.barh(places, values, color=_SERIES[0], height=0.7)
    axes.bar_label(bars, [form.format(value) for value in values], padding=2, fontsize=8, color=_INK)
    axes.set_yticks(places, [short(name, 2 * _MAX_NAME_LENGTH) for name in names])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.15)
    axes.set_ylim(max(1.5, len(names) - 0.5), -0.5)  # the first at the top; a single bar stays slim
    axes.set_xlabel(label)


def _scale(axis: Any, set_scale: Callable[[str], None], values: Sequence[float]) -> None:
    """Set a logarithmic axis with plain numbers if the values are far apart."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    positive = [value for value in values if value > 0]
    if positive and max(positive) > _WIDE * min(positive):
        set_scale("log")
        axis.set_major_locator(LogLocator(subs=(1,) if max(positive) > _VERY_WIDE * min(positive) else (1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _unit(seconds: float) -> tuple[str, float]:
    if seconds > 2 * 3600:
        return "hours", 3600.0
    return ("minutes", 60.0) if seconds > 120 else ("seconds", 1.0)


def _draw(draw: Callable[..., None], columns: int = 1, width: float = _WIDTH, height: float = _HEIGHT) -> str:
    """Return what `draw` puts on so many axes side by side."""
    import matplotlib
    from matplotlib.figure import Figure

    image = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(*figure.subplots(1, columns, squeeze=False)[0])
        figure.savefig(image, format="svg", metadata={"Date": None})
    return _inline(image.getvalue(), wide=width > _WIDTH)


def rename_ids(svg: str, prefix: str) -> str:
    """Return a chart whose ids begin with a prefix, since all charts of a page share one space of names."""
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", svg)


def _inline(svg: str, wide: bool) -> str:
    """Return an SVG file as an element of a page: without namespaces, with variables for colours."""
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'(<svg) [^>]*?(viewBox="[^"]*")[^>]*>', r'\1 \2 aria-hidden="true" class="PLOT">', svg, count=1)
    svg = svg.replace("PLOT", "plot wide" if wide else "plot", 1)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg).replace("xlink:href", "href")
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg.strip()
