#!/usr/bin/env python
"""Run a command and record every half second how busy the first GPU is, as NVML sees it.

python scripts/gpu/utilisation.py --file build/gpu/results/utilisation.csv -- autotune daemon run --drain
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pynvml


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a command and record the GPU's utilisation.")
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    started = time.monotonic()
    rows = []
    process = subprocess.Popen(options.command)
    while process.poll() is None:
        busy = pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu
        clock = pynvml.nvmlDeviceGetClockInfo(gpu, 1)
        rows.append((time.monotonic() - started, busy, clock))
        time.sleep(0.5)
    lines = ["seconds,busy_percent,sm_mhz", *(f"{at:.1f},{busy},{clock}" for at, busy, clock in rows)]
    options.file.write_text("\n".join(lines) + "\n")
    mean = statistics.mean(busy for _, busy, _ in rows)
    print(f"the GPU was busy {mean:.0f}% of {rows[-1][0]:.0f} s, see {options.file}")
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
