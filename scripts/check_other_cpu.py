"""Tune a small network for boards with another CPU, export it, and run the library there.

python scripts/check_other_cpu.py PYTHON [--model tiny_cnn] [--trials 16] [--triple aarch64-linux-gnu]

PYTHON is a Python with TVM for that CPU that runs on this machine, such as the one that `scripts/board_in_qemu.sh`
makes. It plays the board. It takes two minutes, and needs a linker for that CPU in PATH and
`pip install 'autotune[rpc]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from break_cluster import free_port

from autotune.api.queue import tune
from autotune.config import load_config
from autotune.errors import BoardProblem
from autotune.machine import boards
from autotune.storage.paths import Workspace
from autotune.tvm_backend.linker import architecture, linker_for

_SCRIPTS = Path(__file__).parent
_HOST, _KEY = "127.0.0.1", "box"
_ELF = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_SETTINGS = """[machine]
lock_dir = "{folder}/locks"
[measure]
timeout_s = 60.0
repeats = 1
min_repeat_ms = 20
[devices.board]
kind = "rpc"
tracker = "{host}:{port}"
key = "{key}"
target = '{{"kind": "llvm", "mtriple": "{triple}", "mcpu": "{cpu}", "num-cores": 1}}'
request_timeout_s = 60
"""


@contextmanager
def running(log: Path, *command: str) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def check(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    workspace, port = Workspace(folder / "workspace"), free_port()
    for made in (workspace.jobs, workspace.logs):
        made.mkdir(parents=True)
    given = {"triple": options.triple, "cpu": options.cpu, "host": _HOST, "port": port, "key": _KEY}
    workspace.config.write_text(_SETTINGS.format(folder=folder, **given))
    here = ("--host", _HOST, "--port")
    with ExitStack() as stack:
        tracker = (sys.executable, "-m", "tvm.exec.rpc_tracker", *here, str(port), "--port-end", str(port + 1))
        stack.enter_context(running(folder / "tracker.out", *tracker))
        # --once, as the board's Python may not be able to start itself again: it is a script that starts an emulator
        server = (options.python, str(_SCRIPTS / "board_server.py"), "--once", *here, str(free_port()))
        stack.enter_context(running(folder / "board.out", *server, "--tracker", f"{_HOST}:{port}", "--key", _KEY))
        board = load_config(workspace.config).boards["board"]
        while not _free(board):
            time.sleep(0.5)
        make = [sys.executable, _SCRIPTS / "make_models.py", options.model, "--output", folder]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        model = folder / f"{options.model}.onnx"
        started = time.time()
        job = tune(model, target="board", trials=options.trials, workspace=workspace.root)
        found = {"state": job.progress().state, "trials": job.progress().trials, "seconds": time.time() - started}
        return {**found, **_exported(options.python, job, folder / "lib", board)}


def _free(board: Any) -> bool:
    with suppress(BoardProblem):
        return boards.counts(board).free > 0
    return False


def _exported(python: str, job: Any, lib: Path, board: Any) -> dict[str, Any]:
    job.export(lib)
    report = json.loads((lib / "report.json").read_text())
    (machine,) = struct.unpack_from("<H", (lib / "model.so").read_bytes(), 18)
    while not _free(board):
        time.sleep(0.5)
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
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps({"linker": " ".join(linker), **check(options, Path(name))}, indent=1))


if __name__ == "__main__":
    main()
