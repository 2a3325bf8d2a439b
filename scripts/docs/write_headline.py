#!/usr/bin/env python
"""Write the measured figures of the front page from docs/data/headline.json, which scripts/bench/headline.py fills.

    python scripts/docs/write_headline.py

Those of language models are from docs/data/language_models.json (`bench_language_models.py --save`), of a commit of
their own.

It writes the sentence of the README, the tables of docs/explanation/performance.md, between their marks, and the chart
`docs/images/headline.svg`: for each group of models and each machine, how long each runtime takes in the geometric
mean, as a share of the fastest runtime other than autotune. The picture has a background of its own and follows the
colours of the reader's system, so it can be read in light and in dark.
"""

from __future__ import annotations

import json
import re
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "data" / "headline.json"
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "explanation" / "performance.md"
LANGUAGE = ROOT / "docs" / "data" / "language_models.json"
PICTURE = ROOT / "docs" / "images" / "headline.svg"

GROUPS = {"int8": "int8", "bf16": "bf16", "fp32": "float32", "small": "small, float32"}
RUNTIMES = {"ours": "autotune", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
WRITERS = {"ours": "autotune", "llama_cpp": "llama.cpp", "ik_llama_cpp": "ik_llama.cpp"}
_MAX_BAR = 2.5  # shares beyond are cut, and said in figures
# Positions in pixels of the picture: where bars begin, how long a bar of 1 is, and how high things are.
_WIDTH = 860
_LEFT = 250
_ONE = 200
_BAR = 14
_GROUP = 3 * _BAR + 16
_TITLE = 34
_STYLE = """\
.paper { fill: #ffffff; stroke: #d0d7de } .ink { fill: #1f2328 } .quiet { fill: #59636e }
.ours { fill: #2f6fb0 } .other { fill: #a8adb4 } .one { stroke: #59636e }
text { font: 14px system-ui, -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif }
.title { font-size: 17px; font-weight: 600 } .small { font-size: 12px }
@media (prefers-color-scheme: dark) {
.paper { fill: #14181d; stroke: #3d444d } .ink { fill: #e6eaef } .quiet { fill: #a3adb8 }
.ours { fill: #6fa8e0 } .other { fill: #6b747e } .one { stroke: #a3adb8 }
}"""

Row = Mapping[str, Any]


def machines() -> list[dict[str, Any]]:
    return list(json.loads(RESULTS.read_text())["machines"])


def language(machine: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The entry of language models of the same machine."""
    entries = json.loads(LANGUAGE.read_text())["machines"] if LANGUAGE.exists() else []
    return next((entry for entry in entries if all(entry[key] == machine[key] for key in ("cpu", "cpus"))), None)


def title(machine: Mapping[str, Any]) -> str:
    return f"{machine['cpu']}, {machine['cpus']} CPUs, {', '.join(machine['has'])}"


def times(row: Row) -> dict[str, float]:
    """The milliseconds of each runtime, OpenVINO's under one name however it ran."""
    return {name.removesuffix("_default"): value for name, value in row["ms"].items()}


def in_group(machine: Mapping[str, Any], group: str) -> list[Row]:
    return [row for row in machine["rows"] if row["group"] == group]


def mean(rows: Iterable[Row]) -> float:
    """The geometric mean of our shares of the fastest other."""
    return statistics.geometric_mean(row["share"][0] for row in rows)


def means(rows: Sequence[Row], runtimes: Mapping[str, str] = RUNTIMES) -> dict[str, float]:
    """For each runtime that takes all models, the geometric mean of its times as shares of the fastest other's."""
    best = [min(value for name, value in times(row).items() if name != "ours") for row in rows]
    takes_all = [name for name in runtimes if all(name in times(row) for row in rows)]
    pairs = {name: zip((times(row)[name] for row in rows), best, strict=True) for name in takes_all}
    shares = {name: statistics.geometric_mean(of / least for of, least in pair) for name, pair in pairs.items()}
    return {**shares, "ours": mean(rows)}


def sentence() -> str:
    """What the README says of the figures: the means, and where it loses."""
    said = []
    for machine in machines():
        groups = [(label, in_group(machine, group)) for group, label in GROUPS.items()]
        shares = [f"{label}, {len(rows)} models: {mean(rows):.2f}" for label, rows in groups if rows]
        lost = [
            f"{row['model']} in {GROUPS[row['precision']]} {row['share'][0]:.2f}"
            for row in machine["rows"]
            if row["share"][0] > 1
        ]
        if models := language(machine):
            fork = f"of the faster of llama.cpp and its fork (commit {models['commit']})"
            shares.append(f"{models['model']}: {mean(models['rows']):.2f} {fork}")
        loses = f"Where it loses: {', '.join(lost)}." if lost else "None takes longer."
        said.append(f"{title(machine)} (commit {machine['commit']}): {'; '.join(shares)}. {loses}")
    return "\n".join(said)


def tables() -> str:
    """A table for each machine, with its commit, its command, and what is missing."""
    return "\n\n".join(_table(machine) for machine in machines())


def _table(machine: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{RUNTIMES.get(name, name)} {version}" for name, version in machine["versions"].items())
    head = (
        f"**{title(machine)}**, commit {machine['commit']}, {machine['date']}, {versions}. "
        f"`scripts/bench/headline.sh --trials {machine['trials']} --turns {machine['turns']}`; medians in ms."
    )
    lines = [
        wrapped(head),
        "",
        "| model | precision | autotune | ONNX Runtime | OpenVINO | autotune / limit | autotune / fastest other |",
    ]
    lines.append("|---" * 7 + "|")
    ordered = sorted(machine["rows"], key=lambda row: (list(GROUPS).index(row["group"]), -row["share"][0]))
    lines += [_cells(row) for row in ordered]
    missing = _missing(machine["missing"])
    return "\n".join([*lines, *(["", wrapped(f"Missing: {missing}.")] if missing else [])])


def _missing(items: Sequence[Mapping[str, str]]) -> str:
    """What was not measured: models in the same precisions for the same reason stand together."""
    precisions: dict[tuple[str, str], list[str]] = {}
    for item in items:
        precisions.setdefault((item["model"], item["why"]), []).append(GROUPS[item["precision"]])
    models: dict[tuple[str, str], list[str]] = {}
    for (model, why), named in precisions.items():
        models.setdefault((", ".join(named), why), []).append(model)
    return "; ".join(f"{', '.join(named)} in {text} ({why})" for (text, why), named in models.items())


def _cells(row: Row) -> str:
    taken = times(row)
    cells = [f"{taken[name]:.3g}" if name in taken else "does not take it" for name in RUNTIMES]
    limit = f"{taken['ours'] / row['limit_ms']:.1f}" if row["limit_ms"] else ""
    median, low, high = row["share"]
    other = RUNTIMES[row["fastest_other"].removesuffix("_default")]
    share = f"{median:.2f} ({low:.2f} to {high:.2f}, {other})"
    return f"| {row['model']} | {GROUPS[row['precision']]} | {' | '.join(cells)} | {limit} | {share} |"


def draw() -> str:
    """Return the chart as SVG."""
    elements: list[str] = []
    top = 70
    for machine in machines():
        elements.append(f'<text class="ink" x="20" y="{top}">{escape(title(machine))}</text>')
        top += 14
        for group, label in GROUPS.items():
            if rows := in_group(machine, group):
                elements += _group(f"{len(rows)} models, {label}", means(rows), top)
                top += _GROUP
        if models := language(machine):
            elements += _group(models["model"], means(models["rows"], WRITERS), top, WRITERS)
            top += _GROUP
        top += _TITLE
    one = _LEFT + _ONE
    size = f'viewBox="0 0 {_WIDTH} {top + 10}" width="{_WIDTH}" height="{top + 10}"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(sentence())}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" x=".5" y=".5" width="{_WIDTH - 1}" height="{top + 9}" rx="8"/>',
        '<text class="ink title" x="20" y="30">Time, as a share of the fastest other</text>',
        '<text class="quiet" x="20" y="50">Shorter is faster; geometric means.</text>',
        *elements,
        f'<path class="one" d="M{one} 76V{top - _TITLE}" stroke-dasharray="4 3"/>',
        f'<text class="quiet small" x="{one}" y="{top - 12}" text-anchor="middle">1 = the fastest other</text>',
        "</svg>",
    ]) + "\n"  # fmt: skip


def _group(label: str, shares: Mapping[str, float], top: int, runtimes: Mapping[str, str] = RUNTIMES) -> list[str]:
    elements = [f'<text class="ink" x="20" y="{top + _BAR + 13}">{escape(label)}</text>']
    for index, (name, share) in enumerate((name, shares[name]) for name in runtimes if name in shares):
        y = top + 4 + _BAR * index
        width = round(min(share, _MAX_BAR) * _ONE)
        kind = "ours" if name == "ours" else "other"
        elements.append(f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{width}" height="{_BAR - 3}"/>')
        text = f"{runtimes[name]} {share:.2f}"
        elements.append(f'<text class="ink small" x="{_LEFT + width + 8}" y="{y + 10}">{text}</text>')
    return elements


def put(path: Path, mark: str, text: str) -> str:
    """The page with the text between its marks."""
    page = path.read_text()
    begins = f"<!-- HEADLINE {mark} -->\n"
    ends = "<!-- END HEADLINE -->"
    assert page.count(begins) == 1, f"{path} has no mark {begins.strip()}"
    return re.sub(f"({re.escape(begins)}).*?({re.escape(ends)})", lambda m: f"{m[1]}{text}\n{m[2]}", page, flags=re.S)


def wrapped(text: str) -> str:
    """Prose in lines as long as those of the pages."""
    return textwrap.fill(text, 150, break_long_words=False, break_on_hyphens=False)


def written() -> dict[Path, str]:
    """What each file has to say."""
    return {
        README: put(README, "sentence", "\n".join(map(wrapped, sentence().splitlines()))),
        PAGE: put(PAGE, "tables", tables()),
        PICTURE: draw(),
    }


def main() -> None:
    """Write the README's sentence, the page's tables and the chart."""
    for path, text in written().items():
        path.write_text(text)
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
