#!/usr/bin/env python
"""Time two exports of one model by turns, each in a process of its own, and print how long the second takes.

    python scripts/bench/compare_exports.py BEFORE AFTER --turns 21

Both are called on inputs of the first, as users call them: of several sets of shapes, the second runs the one for these
inputs, which are padded where none has their sizes. The ratio is that of the second to the first within a turn: its
median, and its range. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from exports import Export

import autotune
from autotune.tvm_backend.export.timing import timed_process
from autotune.tvm_backend.export.timing.comparison import TIMINGS, RuntimeComparison, ratios

_LOADED = "loaded"  # the runtime that this script adds to those of `timed_process`, for the processes that it starts
_PROCESS = "--process"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs=2, type=Path, metavar="EXPORT")
    parser.add_argument("--turns", type=int, default=21)
    options = parser.parse_args()
    before, after = map(Export.read, options.folders)
    exports = {"before": before, "after": after}
    runtimes = {name: replace(export.library, runtime=_LOADED) for name, export in exports.items()}
    program = (str(Path(__file__).resolve()), _PROCESS)
    with RuntimeComparison(runtimes, before.inputs, before.arrays(), before.threads, program) as comparison:
        times = comparison.time(options.turns * TIMINGS)
    shares = ratios(times["after"], times["before"])
    for export, name in ((before, "before"), (after, "after")):
        print(f"{export.folder.name}: {times[name].median_ms:.2f} ms")
    print(
        f"{statistics.median(shares):.3f} of the time ({min(shares):.2f} to {max(shares):.2f} in {len(shares)} turns)"
    )
    return 0


def loaded(request: Mapping[str, Any], arrays: timed_process.Arrays) -> timed_process.Run:
    """Return what runs an export on these arrays, once for each call."""
    model = autotune.load(Path(request["model"]).parent, int(request["threads"]))

    def run() -> list[Any]:
        outputs = model(**arrays)
        return list(outputs) if isinstance(outputs, tuple) else [outputs]

    return run


if __name__ == "__main__":
    if sys.argv[1:] == [_PROCESS]:
        timed_process.PACKAGES[_LOADED] = ()
        timed_process.RUNTIMES[_LOADED] = loaded
        timed_process.main()
    else:
        sys.exit(main())
