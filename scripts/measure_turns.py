#!/usr/bin/env python
"""Measure how certain a ratio of two runtimes is, by the way in which their processes take turns.

    python scripts/measure_turns.py EXPORT --turns 16

A library that `autotune export` wrote is compared with ONNX Runtime in two ways, by turns: in processes that follow
each other, and in processes that take turns of a tenth of a second, as `export` does it. A row has the median of the
ratios, their quartiles and their range.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from comparison.exports import Export

from autotune.tvm_backend.export.timing.comparison import TIMINGS, Runtime, RuntimeComparison, ratios

OURS, THEIRS = "ours", "theirs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path, metavar="EXPORT")
    parser.add_argument("--turns", type=int, default=16)
    options = parser.parse_args()
    following, alternating = compared(Export.read(options.export), options.turns)
    print("| processes | median | quartiles | range |\n|---|---|---|---|")
    print(row("follow each other", following))
    print(row("take turns of a tenth of a second", alternating))
    return 0


def compared(export: Export, turns: int) -> tuple[list[float], list[float]]:
    """Return the ratios of both ways, one for each turn."""
    runtimes = {OURS: export.library, THEIRS: Runtime("onnxruntime", export.model)}
    following, alternating = list[float](), list[float]()
    with RuntimeComparison(runtimes, export.inputs, export.arrays(), export.threads) as comparison:
        for _ in range(turns):
            ours = comparison.time(TIMINGS, without={THEIRS})[OURS]
            theirs = comparison.time(TIMINGS, without={OURS})[THEIRS]
            following.append(ours.median_ms / theirs.median_ms)
            both = comparison.time(TIMINGS)
            alternating += ratios(both[OURS], both[THEIRS])
    return following, alternating


def row(name: str, found: Sequence[float]) -> str:
    least, low, middle, high, most = np.quantile(found, [0, 0.25, 0.5, 0.75, 1])
    return f"| {name} | {middle:.3f} | {low:.2f} to {high:.2f} | {least:.2f} to {most:.2f} |"


if __name__ == "__main__":
    sys.exit(main())
