"""What became of a model: the row of a table, and the file of rows that a later run goes on from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from zoo.listed import Listed

_HEAD = (
    "model",
    "kind",
    "from",
    "licence",
    "shapes",
    "outcome",
    "tasks",
    "s",
    "untuned ms",
    "tuned ms",
    "ONNX Runtime or LiteRT",
)


@dataclass(frozen=True)
class Row:
    """How far a model came. `stage` is the step that it failed at, or empty; `reason` is the one line that says why.

    `seconds` is the time of all steps, the latencies are milliseconds of one run.
    """

    name: str
    stage: str = ""
    reason: str = ""
    tasks: int = 0
    trials: int = 0
    seconds: float = 0.0
    error: float | None = None
    untuned_ms: float | None = None
    tuned_ms: float | None = None
    onnxruntime_ms: float | None = None
    litert_ms: float | None = None


def read(path: Path) -> dict[str, Row]:
    """The rows of a file, the last of each model; a line that was cut off is left out."""
    columns = {field.name for field in fields(Row)}
    rows = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        rows[record["name"]] = Row(**{key: value for key, value in record.items() if key in columns})
    return rows


def append(path: Path, row: Row) -> None:
    """Keep a row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def markdown(models: Iterable[Listed], rows: dict[str, Row]) -> str:
    """The table of the models that have a row."""
    lines = ["| " + " | ".join(_HEAD) + " |", "|---" * len(_HEAD) + "|"]
    for model in models:
        if model.name in rows:
            lines.append("| " + " | ".join(_cells(model, rows[model.name])) + " |")
    return "\n".join(lines)


def _cells(model: Listed, row: Row) -> list[str]:
    outcome = f"{row.stage}: {row.reason}" if row.stage else "imported"
    outcome = outcome if row.error is None else f"verified, error {row.error:.0e}"
    reference_ms = row.litert_ms if row.onnxruntime_ms is None else row.onnxruntime_ms
    times = ["" if value is None else f"{value:.2f}" for value in (row.untuned_ms, row.tuned_ms, reference_ms)]
    source = f"{model.package} {model.version}".strip()
    shapes = "<br>".join((*model.inputs, *model.values))
    counts = [str(row.tasks) if row.tasks else "", f"{row.seconds:.0f}"]
    return [model.name, model.kind, source, model.licence, shapes, outcome.replace("|", "/"), *counts, *times]
