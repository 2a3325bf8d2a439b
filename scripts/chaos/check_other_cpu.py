"""Tune a small network for boards with another CPU, export it, and run the library there.

python scripts/chaos/check_other_cpu.py PYTHON [--model tiny_cnn] [--trials 16] [--triple aarch64-linux-gnu]

PYTHON is a Python with TVM for that CPU that runs on this machine, such as the one that `board_in_qemu.sh` makes. It
plays the board. It takes two minutes, and needs a linker for that CPU in PATH and `pip install 'autotune[rpc]'`.
"""

from __future__ import annotations

import argparse
import json
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from boards import Lab, lab

from autotune.api.job import Job
from autotune.api.queue import tune
from autotune.storage.paths import Workspace
from autotune.tvm_backend.linker import architecture, linker_for

_MAKE = Path(__file__).parents[1] / "models/make_models.py"
_ELF = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_SETTINGS = """[machine]
lock_dir = "{folder}/locks"
[measure]
timeout_s = 60.0
repeats = 1
min_repeat_ms = 20
[devices.board]
kind = "rpc"
tracker = "{tracker}"
key = "box"
target = '{{"kind": "llvm", "mtriple": "{triple}", "mcpu": "{cpu}", "num-cores": 1}}'
request_timeout_s = 60
"""


def check(options: argparse.Namespace, folder: Path, here: Lab) -> dict[str, Any]:
    workspace = Workspace(folder / "workspace")
    for made in (workspace.jobs, workspace.logs):
        made.mkdir(parents=True)
    given = {"triple": options.triple, "cpu": options.cpu, "tracker": here.tracker}
    workspace.config.write_text(_SETTINGS.format(folder=folder, **given))
    here.start_other(options.python)
    make = [sys.executable, _MAKE, options.model, "--output", folder]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    _await_board(here)
    started = time.time()
    model = folder / f"{options.model}.onnx"
    job = tune(model, target="board", trials=options.trials, workspace=workspace.root)
    reached = job.progress()
    found = {"state": reached.state, "trials": reached.trials, "seconds": round(time.time() - started)}
    return {**found, **_exported(options.python, job, folder / "lib", here)}


def _await_board(here: Lab) -> None:
    while not here.free():
        time.sleep(0.5)


def _exported(python: str, job: Job, lib: Path, here: Lab) -> dict[str, Any]:
    job.export(lib)
    report = json.loads((lib / "report.json").read_text())
    (machine,) = struct.unpack_from("<H", (lib / "model.so").read_bytes(), 18)
    _await_board(here)
    outputs = {}
    for where, command in (("over RPC", [sys.executable, lib / "run.py"]), ("there", [python, lib / "run.py", "here"])):
        outputs[where] = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    error = report["largest_relative_error"]
    return {
        "library": _ELF.get(machine, machine),
        "largest_relative_error": error,
        "latency": report["latency"],
        **outputs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="the command of the board's Python")
    parser.add_argument("--model", default="tiny_cnn", help="one of make_models.py")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--triple", default="aarch64-linux-gnu")
    parser.add_argument("--cpu", default="cortex-a72")
    options = parser.parse_args()
    linker = linker_for(options.triple)
    if linker is None:
        parser.error(f"there is no linker for {architecture(options.triple)} in PATH; see docs/guides/boards.md")
    with tempfile.TemporaryDirectory() as name, lab(Path(name)) as here:
        print(json.dumps({"linker": " ".join(linker), **check(options, Path(name), here)}, indent=1))


if __name__ == "__main__":
    main()
