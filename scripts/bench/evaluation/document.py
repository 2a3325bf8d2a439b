"""docs/explanation/scheduler-measured.md and its pictures, from the raw results of the parts that were run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from . import scale

_REAL = "evaluation-real.svg"
_DEVICES = "evaluation-devices.svg"
_SWEEP = "evaluation-sweep.svg"
PAGE = Path("explanation", "scheduler-measured.md")
IMAGES = Path("images")
_HEAD = """# Scheduling, measured

[What this says of the thesis](science.md). GPUs appear only as simulated devices.

`python scripts/bench/evaluate_scheduler.py` measured these figures and wrote this page, the last part at commit
{commit}.
"""


def write(docs: Path, results: dict[str, Any], commit: str) -> None:
    """Write the page and the pictures of the parts that there are results of."""
    for folder in (docs / PAGE.parent, docs / IMAGES):
        folder.mkdir(parents=True, exist_ok=True)
    sections = [_HEAD.format(commit=commit)]
    if "real" in results:
        sections += [_real(results["real"]), _picture(_REAL, "Time and distortion under each policy")]
        _draw_real(docs / IMAGES / _REAL, results["real"])
    if "devices" in results:
        sections += [_devices(results["devices"]), _picture(_DEVICES, "Makespans of the daemon and the simulator")]
        _draw_devices(docs / IMAGES / _DEVICES, results["devices"])
    if "scale" in results:
        sections += [_scale(results["scale"]), _picture(_SWEEP, "Makespan by number of GPUs")]
        sections += [_picture(scale.CHART, "What each device and CPU does, under two policies")]
        _draw_sweep(docs / IMAGES / _SWEEP, results["scale"])
    (docs / PAGE).write_text("\n".join(sections))


def _picture(name: str, what: str) -> str:
    return f"![{what}](../{IMAGES}/{name})\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines) + "\n"


def distortion(tasks: Sequence[dict[str, Any]], time: str = "logged") -> tuple[float, float]:
    """Of the logged over the true time of each task's best kernel, less one: the median, and that of the sizes."""
    off = [task[f"{time}_us"] / task["again_us"] - 1 for task in tasks]
    return statistics.median(off), statistics.median(map(abs, off))


def _real(results: dict[str, Any]) -> str:
    rows = []
    for row in results["policies"]:
        latency = [f"{row['latency'][name]['tuned_ms']:.2f}" for name in results["models"]]
        cells = [row["policy"], f"{row['wall_s']:.0f}", *latency, f"{_held(row, results['cpus']):.0%}"]
        offs = [distortion(row["tasks"], time) for time in ("logged", "control")]
        rows.append([*cells, *(f"{middle:+.1%} ({size:.1%})" for middle, size in offs)])
    head = ["policy", "total s", *(f"{name} ms" for name in results["models"]), "CPUs held"]
    table = _table([*head, "distortion", "control"], rows)
    return f"""## Real models

{len(results["models"])} models at {results["trials"]} trials each on {results["cpu"]}, {results["cpus"]} CPUs,
each policy in a fresh workspace with the same seeds, one after another.

{table}
*Distortion* is the logged time of a task's best kernel divided by one that is measured alone in the end, less one: the
median over the tasks, and in brackets that of the absolute values. The *control* compares a third measurement with the
second. *CPUs held* is the share of the CPUs' time in which stages held them.
"""


def _held(row: dict[str, Any], cpus: int) -> float:
    """The part of all CPUs' time that stages held; measuring takes all of them."""
    spent = row["stage_s"]
    alone = sum(seconds for kind, seconds in spent.items() if kind != "measure")
    return float((alone + cpus * spent["measure"]) / (cpus * row["wall_s"]))


def _devices(results: Sequence[dict[str, Any]]) -> str:
    runs = [run for run in results if run["policy"] == "predictive"]
    counts = {name: [run["devices"] for run in runs if run["name"] == name] for name in {run["name"] for run in runs}}
    # The picture has those between the fewest and the most devices, too.
    ends = [run for run in runs if run["devices"] in (min(counts[run["name"]]), max(counts[run["name"]]))]
    rows = [_device_row(run) for run in ends]
    head = ["jobs", "devices", "speed", "daemon s", "of the simulator's", "devices busy", "daemon CPU"]
    return f"""## The real daemon on simulated devices

The policy is `predictive`. Stages take time, but no CPU; the daemon, the workers and the files are the real ones.
*uniform*: a stage of a full batch takes 10 s to search, 15 s to build, 3 s to measure, 1 s to train. *mixed*: four
kinds of jobs, with lengths that are spread by 0.3. At a higher speed, all lengths are divided by it, and what the
daemon adds is multiplied by it.

{_table(head, rows)}"""


def _device_row(run: dict[str, Any]) -> list[str]:
    cells = [f"{run['jobs']} {'uniform' if run['name'] == 'judged' else run['name']}", str(run["devices"])]
    cells += [f"{run['speed']:g}", f"{run['real_s']:.1f}"]
    cells += [f"{run['real_s'] / run['simulated_s']:.3f}", f"{run['utilisation']:.0%}"]
    return [*cells, f"{run['daemon_cpu_share']:.1%}"]


def _scale(results: dict[str, Any]) -> str:
    scenarios = results["scenarios"]
    said = "\n".join(f"- `{name}`: {scenario['title']}" for name, scenario in scenarios.items())
    outcomes = [{run["policy"]: _outcome(run) for run in scenario["outcomes"]} for scenario in scenarios.values()]
    rows = [[policy, *(of[policy] for of in outcomes)] for policy in outcomes[0]]
    return f"""## Simulated at scale

The time until all jobs of a scenario have ended, over a lower bound of it, and in brackets how busy the CPUs and the
GPUs are (`scripts/bench/scenarios/`).

{said}

{_table(["policy", *scenarios], rows)}
The jobs of `{scale.SWEPT}` with other numbers of GPUs:
"""


def _outcome(run: dict[str, Any]) -> str:
    busy = f"{run['utilisation']['CPUs']:.0%}, {run['utilisation'].get('cuda', 0.0):.0%}"
    return f"{run['makespan'] / run['bound']:.3f} ({busy})"


def _axes(count: int) -> Any:
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "autotune"  # the same results give the same file
    figure = Figure(figsize=(4.5 * count, 3.2), layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False)[0]


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})


def _draw_real(path: Path, results: dict[str, Any]) -> None:
    figure, (times, off) = _axes(2)
    names = [row["policy"] for row in results["policies"]]
    times.barh(names, [row["wall_s"] for row in results["policies"]], color="#4e79a7")
    times.set_xlabel("seconds until all models are tuned")
    shown = [[100 * (task["logged_us"] / task["again_us"] - 1) for task in row["tasks"]] for row in results["policies"]]
    off.boxplot(shown, vert=False)
    off.set_yticks(range(1, len(names) + 1), names)
    off.set_xlabel("distortion of the tasks' best times, %")
    _save(figure, path)


def _draw_devices(path: Path, results: Sequence[dict[str, Any]]) -> None:
    figure, charts = _axes(2)
    for chart, name in zip(charts, ("uniform", "mixed"), strict=True):
        runs = [run for run in results if (run["name"], run["policy"]) == (name, "predictive")]
        devices = [run["devices"] for run in runs]
        for key, label in (("real_s", "daemon"), ("simulated_s", "simulator"), ("bound_s", "lower bound")):
            chart.plot(devices, [run[key] for run in runs], marker="o", label=label)
        chart.set(
            title=f"8 {name} jobs, predictive", xlabel="devices", ylabel="makespan, s", xticks=devices, ylim=(0, None)
        )
        chart.legend()
    _save(figure, path)


def _draw_sweep(path: Path, results: dict[str, Any]) -> None:
    figure, (chart,) = _axes(1)
    gpus = [row["gpus"] for row in results["sweep"]]
    for name in results["sweep"][0]["makespan"]:
        chart.plot(gpus, [row["makespan"][name] for row in results["sweep"]], marker="o", label=name)
    chart.plot(gpus, [row["bound"] for row in results["sweep"]], linestyle="--", color="grey", label="lower bound")
    chart.set(xlabel="GPUs", ylabel="makespan, s", ylim=(0, None))
    chart.legend()
    _save(figure, path)
