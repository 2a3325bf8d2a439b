#!/usr/bin/env python
"""Write the chart at the top of the README from the first table of docs/explanation/performance.md.

    python scripts/docs/write_chart.py

`docs/images/headline.svg` has a bar for each model: the time of the tuned model as a share of the time of the fastest
other runtime. The thin line is the range over the turns. The picture has a background of its own and follows the
colours of the reader's system, so it can be read in light and in dark.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "performance.md"
PICTURE = ROOT / "docs" / "images" / "headline.svg"

_TABLE = re.compile(r"<!-- TABLE: bench_inference -->\n(.*?)<!-- END TABLE -->", re.S)
_RATIO = re.compile(r"([\d.]+) \(([\d.]+) to ([\d.]+), (.*)\)")
# Positions in pixels of the picture: where bars begin, how long a bar of 1 is, and where the first row stands.
_WIDTH = 860
_LEFT = 190
_ONE = 370
_TOP = 74
_ROW = 30
_STYLE = """\
.paper { fill: #ffffff; stroke: #d0d7de } .ink { fill: #1f2328 } .quiet { fill: #59636e }
.faster { fill: #2f6fb0 } .slower { fill: #a8adb4 } .one { stroke: #59636e }
.range { stroke: #1f2328; stroke-width: 1.5 }
text { font: 14px system-ui, -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif }
.title { font-size: 17px; font-weight: 600 } .small { font-size: 12px }
@media (prefers-color-scheme: dark) {
.paper { fill: #14181d; stroke: #3d444d } .ink { fill: #e6eaef } .quiet { fill: #a3adb8 }
.faster { fill: #6fa8e0 } .slower { fill: #6b747e } .one { stroke: #a3adb8 }
.range { stroke: #e6eaef }
}"""


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        model: The model, without what stands in brackets.
        share: The time of the tuned model as a share of the time of the fastest other runtime: the median of the turns.
        least: The smallest such share of a turn.
        most: The largest such share of a turn.
        other: The fastest other runtime.
    """

    model: str
    share: float
    least: float
    most: float
    other: str


def rows(text: str) -> list[Row]:
    """Read the rows of the table in a page, in its order."""
    table = _TABLE.search(text)
    assert table is not None, "the page has no table of bench_inference"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*$", table[1], re.M)]
    made = []
    for model, *_, ratio in cells[2:]:
        match = _RATIO.fullmatch(ratio)
        assert match is not None, f"the last column of {model} is no ratio with its range"
        made.append(Row(model.split(" (")[0], float(match[1]), float(match[2]), float(match[3]), match[4]))
    return made


def draw(table: list[Row]) -> str:
    """Return the chart as SVG."""
    bottom = _TOP + _ROW * len(table)
    height = bottom + 40
    one = _LEFT + _ONE
    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'role="img">',
        f"<title>{escape(_spoken(table))}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" x=".5" y=".5" width="{_WIDTH - 1}" height="{height - 1}" rx="8"/>',
        '<text class="ink title" x="20" y="32">Time of a tuned model, as a share of the fastest other runtime</text>',
        '<text class="quiet" x="20" y="54">Shorter is faster. Thin lines are the range over the turns.</text>',
        *(part for index, row in enumerate(table) for part in _bar(row, _TOP + _ROW * index)),
        f'<path class="one" d="M{one} {_TOP - 6}V{bottom + 4}" stroke-dasharray="4 3"/>',
        f'<text class="quiet small" x="{one}" y="{bottom + 20}" text-anchor="middle">'
        "1 = the faster of ONNX Runtime and OpenVINO</text>",
        "</svg>",
    ]
    return "\n".join(elements) + "\n"


def _bar(row: Row, top: int) -> list[str]:
    width, least, most = (round(value * _ONE) for value in (row.share, row.least, row.most))
    kind = "faster" if row.share < 1 else "slower"
    return [
        f'<text class="ink" x="{_LEFT - 12}" y="{top + 16}" text-anchor="end">{escape(row.model)}</text>',
        f'<rect class="{kind}" x="{_LEFT}" y="{top + 2}" width="{width}" height="20"/>',
        f'<path class="range" d="M{_LEFT + least} {top + 12}H{_LEFT + most}"/>',
        f'<text class="ink" x="{_WIDTH - 20}" y="{top + 17}" text-anchor="end">{row.share:.2f}</text>',
    ]


def _spoken(table: list[Row]) -> str:
    """Return the chart in words, for readers who do not see it."""
    shares = "; ".join(f"{row.model} {row.share:.2f} of {row.other}" for row in table)
    return f"Time of a tuned model as a share of the time of the fastest other runtime: {shares}"


def main() -> None:
    """Write the chart."""
    PICTURE.write_text(draw(rows(PAGE.read_text())))
    print(f"wrote {PICTURE}")


if __name__ == "__main__":
    main()
