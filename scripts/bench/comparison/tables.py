"""The results of the runs, as tables in Markdown and as plots."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from autotune.storage.formats import from_json

from .ranks import KINDS
from .tuning import RunSettings

Run = dict[str, Any]
BASELINE = "annealing/greedy"
NEAR = 1.10


def way_of(run: Run) -> str:
    return from_json(RunSettings, run).name


def write(runs: Sequence[Run], best: dict[str, float], ranks: Sequence[dict[str, Any]], folder: Path) -> str:
    """Return all tables, and write the plots to the folder.

    Args:
        best: the best known time of each layer, in microseconds.
    """
    costs = trial_seconds(runs)
    parts = [by_layer(runs, best), summary(runs, costs, best), against_baseline(runs, costs), rank_table(ranks)]
    for layer in costs:
        plot([run for run in runs if run["layer"] == layer], costs[layer], folder / f"{layer}.svg")
    plot_quality(runs, costs, best, folder / "quality.svg")
    return "\n\n".join(part for part in parts if part)


def trial_seconds(runs: Sequence[Run]) -> dict[str, float]:
    """Return the mean seconds of building and measuring a candidate, by layer."""
    return {
        layer: sum(run["measure_s"] for run in group) / max(1, sum(run["measured"] for run in group))
        for layer, group in _grouped(runs, _layer).items()
    }


def by_layer(runs: Sequence[Run], best: dict[str, float]) -> str:
    """Show the best time at the end: mean and standard deviation over seeds."""
    rows = []
    for way, group in _grouped(runs, way_of).items():
        cells = []
        for layer in best:
            ends = [run["best_over_trials"][-1] for run in group if run["layer"] == layer]
            spread = f" ± {statistics.stdev(ends):.0f}" if len(ends) > 1 else ""
            cells.append(f"{statistics.mean(ends):.0f}{spread}" if ends else "")
        rows.append([way, *cells])
    return markdown(["best, us", *best], [*rows, ["best known", *(f"{value:.0f}" for value in best.values())]])


def summary(runs: Sequence[Run], costs: dict[str, float], best: dict[str, float]) -> str:
    """Show means over layers and seeds.

    `quality` is the best known time over the run's best; `near` counts the runs that came within 10% of it.
    """
    rows = []
    for way, group in _grouped(runs, way_of).items():
        rounds = [item for run in group for item in run["rounds"]]
        replayed = max(1, sum(item["replayed"] for item in rounds))
        ways = [reached(run, NEAR * best[run["layer"]], costs[run["layer"]]) for run in group]
        rows.append(
            [
                way,
                f"{geomean(best[run['layer']] / run['best_over_trials'][-1] for run in group):.3f}",
                f"{sum(item[0] for item in ways)} of {len(group)}",
                f"{geomean(item[1] for item in ways):.0f}",
                f"{geomean(item[3] for item in ways):.1f}",
                f"{statistics.mean(len(run['best_over_trials']) for run in group):.0f}",
                f"{statistics.mean(item['steps'] for item in rounds):.1f}",
                f"{statistics.mean(item['seconds'] for item in rounds):.2f}",
                f"{sum(item['invalid'] for item in rounds) / replayed:.1%}",
                f"{sum(item['repeated'] for item in rounds) / replayed:.1%}",
                f"{sum(item['known'] for item in rounds) / max(1, sum(item['size'] for item in rounds)):.0%}",
            ]
        )
    heads = ["", "quality", "near", "trials to near", "s to near", "trials", "steps a round", "search s a round"]
    return markdown([*heads, "invalid", "repeated", "known"], sorted(rows, key=lambda row: row[1], reverse=True))


def against_baseline(runs: Sequence[Run], costs: dict[str, float]) -> str:
    """Compare the cost of reaching a goal with that of AutoTVM's setting.

    The goal of a layer is the best time of the worst of AutoTVM's seeds. A ratio is AutoTVM's cost over the other's.
    Runs that started from the prior are compared with AutoTVM's setting from the prior.
    """
    grouped = _grouped(runs, lambda run: bool(run["prior"]))
    return "\n\n".join(table for group in grouped.values() if (table := _against_baseline(group, costs)))


def _against_baseline(runs: Sequence[Run], costs: dict[str, float]) -> str:
    base = [run for run in runs if f"{run['strategy']}/{run['sampler']}" == BASELINE]
    if not base:
        return ""
    goals = {
        layer: max(run["best_over_trials"][-1] for run in group) for layer, group in _grouped(base, _layer).items()
    }
    least, rows = _needs(base, goals, costs), []
    for way, group in _grouped([run for run in runs if run["layer"] in goals], way_of).items():
        needs = _needs(group, goals, costs)
        ratios = (geomean(least[layer][at] / needs[layer][at] for layer in needs) for at in (0, 1, 2))
        came = sum(run["best_over_trials"][-1] <= goals[run["layer"]] for run in group)
        rows.append([way, *(f"{ratio:.2f}" for ratio in ratios), f"{came} of {len(group)}"])
    heads = [f"times fewer than {way_of(base[0])}", "measurements", "search steps", "seconds", "runs that came there"]
    return markdown(heads, rows)


def _needs(runs: Sequence[Run], goals: dict[str, float], costs: dict[str, float]) -> dict[str, list[float]]:
    """Return the geometric means of trials, steps and seconds to the goal, by layer.

    A run that did not reach the goal counts with its whole cost.
    """
    needs = {}
    for layer, group in _grouped(runs, _layer).items():
        ways = [reached(run, goals[layer], costs[layer]) for run in group]
        needs[layer] = [geomean(item[at] for item in ways) for at in (1, 2, 3)]
    return needs


def reached(run: Run, goal_us: float, trial_s: float) -> tuple[bool, float, float, float]:
    """Return whether the run reached the goal, and the trials, search steps and seconds until then or its end."""
    best = run["best_over_trials"]
    count = next((at + 1 for at, value in enumerate(best) if value <= goal_us), len(best))
    seconds, done, steps = 0.0, 0, 0
    for item in run["rounds"]:
        size = min(item["size"], count - done)
        seconds += item["seconds"] + size * trial_s
        done, steps = done + size, steps + item["steps"]
        if done >= count:
            break
    return best[-1] <= goal_us, float(count), max(1.0, steps), seconds


def rank_table(ranks: Sequence[dict[str, Any]]) -> str:
    rows = []
    for item in (item for item in ranks if "knobs" in item):
        cells = [(f"{item[kind]['spearman']:.2f}", f"{item[kind]['top10_recall']:.2f}") for kind in KINDS]
        rows.append([item["layer"], str(item["trials"]), *itertools.chain.from_iterable(cells)])
    heads = itertools.chain.from_iterable((f"{kind}: rank", "top tenth") for kind in KINDS)
    return markdown(["layer", "trials", *heads], rows) if rows else ""


def plot(runs: Sequence[Run], trial_s: float, path: Path) -> None:
    """Plot the best time over trials, and over seconds of searching, building and measuring. Every seed is a line."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4))
    for at, (way, group) in enumerate(_grouped(runs, way_of).items()):
        for number, run in enumerate(group):
            best = run["best_over_trials"]
            _, took, then = zip(*round_ends(run, trial_s), strict=True)
            look = {"color": f"C{at % 10}", "linestyle": "--" if run["sampler"] == "adaptive" else "-", "alpha": 0.7}
            axes[0].plot(range(1, len(best) + 1), best, **look)
            axes[1].plot(took, then, **look, label=way if number == 0 else None)
    for axis, what in zip(axes, ("trials", "seconds"), strict=True):
        axis.set(title=f"{path.stem}: best, us", xlabel=what, yscale="log")
    axes[1].legend(fontsize="x-small", loc="upper right")
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


def plot_quality(runs: Sequence[Run], costs: dict[str, float], best: dict[str, float], path: Path) -> None:
    """Plot the quality over trials and over seconds: mean of all layers and seeds, 0 before the first measurement."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True)
    for way, group in _grouped(runs, way_of).items():
        steps = [(list(round_ends(run, costs[run["layer"]])), best[run["layer"]]) for run in group]
        for axis, at in zip(axes, (0, 1), strict=True):
            marks = sorted({item[at] for items, _ in steps for item in items})
            means = [statistics.mean(_quality_at(mark, at, *item) for item in steps) for mark in marks]
            look = "--" if group[0]["sampler"] == "adaptive" else "-"
            axis.step(marks, means, look, where="post", label=way)
    for axis, what in zip(axes, ("trials", "seconds of searching, building and measuring"), strict=True):
        axis.set(xlabel=what, ylabel="best known time over best so far, mean")
    axes[0].legend(fontsize="small", loc="lower right")
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


def round_ends(run: Run, trial_s: float) -> Iterator[tuple[float, float, float]]:
    """Yield for each round of a run the trials and seconds until its end, and the best time then."""
    done, seconds = 0, 0.0
    for item in run["rounds"]:
        done, seconds = done + item["size"], seconds + item["seconds"] + item["size"] * trial_s
        yield done, seconds, run["best_over_trials"][done - 1]


def _quality_at(mark: float, at: int, rounds: Sequence[tuple[float, ...]], best_us: float) -> float:
    return max((best_us / item[2] for item in rounds if item[at] <= mark), default=0.0)


def read(kept: Path) -> list[Run]:
    """Read the runs of a file; none where there is no file."""
    return [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []


def geomean(values: Iterable[float]) -> float:
    return math.exp(statistics.mean(math.log(value) for value in values))


def _layer(run: Run) -> str:
    return str(run["layer"])


def _grouped(runs: Iterable[Run], key: Callable[[Run], str]) -> dict[str, list[Run]]:
    return {name: list(group) for name, group in itertools.groupby(sorted(runs, key=key), key=key)}


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
