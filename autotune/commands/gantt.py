"""Draw stages as a Gantt chart: one row per device and CPU, one bar per stage. As PNG, SVG or a web page."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autotune.errors import BadInput
from autotune.planning.simulator import SimulationResult, Span
from autotune.planning.view import Kind
from autotune.storage.atomic import check_output, publish_bytes

_COLOURS: dict[Kind, str] = {
    "search": "#4e79a7",
    "build": "#f28e2b",
    "measure": "#59a14f",
    "train": "#b07aa1",
    "compile": "#edc948",
    "confirm": "#e15759",
}
_WIDTH = 1200
_LEFT = 90
_ROW = 14
_TOP = 44
# A chart of a thousand devices would be too large to look at.
_MAX_ROWS = 200
_TICKS = 8
_DOTS = 100  # an inch


def check(path: Path) -> None:
    """Check that a chart can be written to a file.

    Raises:
        BadInput: The suffix is none of .png, .svg and .html, or PNG is asked for without Matplotlib.
        DiskProblem: There is no folder for it.
    """
    if path.suffix not in (".html", ".svg", ".png"):
        raise BadInput(f"{path}: a chart is a .png, .svg or .html file")
    check_output(path)
    if path.suffix == ".png" and find_spec("matplotlib") is None:
        raise BadInput(f"{path}: PNG needs Matplotlib; run: pip install 'autotune-tvm[plots]', or give an .svg file")


def save(path: Path, results: Sequence[SimulationResult]) -> None:
    """Write a chart of each result, in the format that the suffix of the file names.

    Raises:
        DiskProblem: The file cannot be written.
    """
    if path.suffix == ".png":
        return publish_bytes(path, png(results))
    text = page(results) if path.suffix == ".html" else svg(results)
    publish_bytes(path, text.encode())


def page(results: Sequence[SimulationResult]) -> str:
    """Return a web page with a chart of each result."""
    charts = "\n".join(svg([result]) for result in results)
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>autotune simulate</title>\n{charts}\n</html>\n'
    )


def svg(results: Sequence[SimulationResult]) -> str:
    """Return an SVG image with the charts of all results one below the other, to the same scale of time."""
    longest = max((result.makespan for result in results), default=0.0) or 1.0
    lines = list[str]()
    top = 0
    for result in results:
        rows = _rows(result.spans)[:_MAX_ROWS]
        lines.append(f'<g transform="translate(0 {top})">{_chart(_title(result), result.spans, rows, longest)}</g>')
        top += _TOP + _ROW * len(rows) + 24
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top}" font-family="sans-serif"'
    return f'{head} font-size="10">\n' + "\n".join(lines) + "\n</svg>\n"


def png(results: Sequence[SimulationResult]) -> bytes:
    """Return a PNG image with the charts of all results one below the other; needs Matplotlib."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = [_rows(result.spans)[:_MAX_ROWS] for result in results]
    heights = [_TOP + _ROW * len(names) for names in rows]
    figure = Figure(figsize=(_WIDTH / _DOTS, sum(heights) * 1.3 / _DOTS), dpi=_DOTS, layout="constrained")
    charts = figure.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for chart, result, names in zip(charts, results, rows, strict=True):
        _plot(chart, result, names)
    legend = [Patch(color=colour, label=kind) for kind, colour in _COLOURS.items()]
    figure.legend(handles=legend, loc="outside upper right", ncols=len(legend))
    charts[-1].set_xlabel("seconds")
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def _plot(chart: Any, result: SimulationResult, names: Sequence[str]) -> None:
    bars: dict[str, list[Span]] = {name: [] for name in names}
    for span in result.spans:
        for name in filter(bars.__contains__, _resources(span)):
            bars[name].append(span)
    for index, spans in enumerate(bars.values()):
        colours = [_COLOURS[span.kind] for span in spans]
        chart.broken_barh([(span.start, span.end - span.start) for span in spans], (index - 0.45, 0.9), color=colours)
    chart.set_yticks(range(len(names)), names)
    chart.invert_yaxis()
    chart.set_title(_title(result), loc="left")


def _title(result: SimulationResult) -> str:
    return f"{result.policy}: {result.makespan:.0f} s, lower bound {result.bound:.0f} s"


def timeline(spans: Sequence[Span], label: str = "seconds") -> str:
    """Return a chart of stages as an element of a web page, which scales it and sets its text colour."""
    rows = _rows(spans)[:_MAX_ROWS]
    longest = max((span.end for span in spans), default=0.0) or 1.0
    height = _TOP + _ROW * len(rows) + 4
    chart = _chart(f"stages over {label}", spans, rows, longest)
    head = f'<svg class="plot wide" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="10"'
    return f'{head} fill="currentColor" role="img" aria-label="Gantt chart of the stages">\n{chart}\n</svg>'


def _chart(title: str, spans: Sequence[Span], rows: Sequence[str], longest: float) -> str:
    place = {name: index for index, name in enumerate(rows)}
    scale = (_WIDTH - _LEFT - 10) / longest
    elements = [f'<text x="4" y="14" font-size="13">{escape(title)}</text>', *_legend(), *_axis(longest, scale)]
    elements += [
        f'<text x="4" y="{_TOP + _ROW * (index + 1) - 4}">{escape(name)}</text>' for name, index in place.items()
    ]
    for span in spans:
        shown = sorted(place[name] for name in _resources(span) if name in place)
        elements += [_bar(span, first, count, scale) for first, count in _runs(shown)]
    return "\n".join(elements)


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Return neighbouring rows as (first, count): a stage on a hundred CPUs is one bar."""
    runs: list[tuple[int, int]] = []
    for row in rows:
        if runs and row == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((row, 1))
    return runs


def _bar(span: Span, first: int, count: int, scale: float) -> str:
    x = _LEFT + span.start * scale
    width = max(0.3, (span.end - span.start) * scale)
    tip = f"job {span.id.job} task {span.id.task} round {span.id.round}: {span.kind}, {span.end - span.start:.1f} s"
    return (
        f'<rect x="{x:.1f}" y="{_TOP + _ROW * first}" width="{width:.1f}" height="{_ROW * count - 2}"'
        f' fill="{_COLOURS[span.kind]}"><title>{tip}</title></rect>'
    )


def _legend() -> Iterable[str]:
    for index, (kind, colour) in enumerate(_COLOURS.items()):
        x = _LEFT + 80 * index
        yield f'<rect x="{x}" y="20" width="9" height="9" fill="{colour}"/><text x="{x + 12}" y="28">{kind}</text>'


def _axis(longest: float, scale: float) -> Iterable[str]:
    for tick in range(_TICKS + 1):
        seconds = longest * tick / _TICKS
        x = _LEFT + seconds * scale
        yield f'<text x="{x:.0f}" y="{_TOP - 4}" text-anchor="middle" fill="#777">{seconds:.0f}</text>'


def _resources(span: Span) -> list[str]:
    """Return the names of the rows of a stage. Without leases it is not known which CPU a stage ran on."""
    if span.device and span.device != "cpu":
        return [span.device]
    return [f"CPU {cpu}" for cpu in span.cpus] if span.leased or span.device == "cpu" else ["CPUs"]


def _rows(spans: Iterable[Span]) -> list[str]:
    names = {name for span in spans for name in _resources(span)}
    return sorted(names, key=lambda name: (name.startswith("CPU"), len(name), name))
