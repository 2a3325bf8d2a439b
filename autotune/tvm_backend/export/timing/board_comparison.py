"""Run and time the libraries of a whole model on a board, each in a session of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import relax

from autotune.device_settings import BoardSettings
from autotune.errors import BoardProblem, WorkerError
from autotune.machine import boards
from autotune.machine.boards import Lent
from autotune.processes.isolate import isolated_call
from autotune.storage.scratch import scratch_folder
from autotune.tvm_backend.export import runners
from autotune.tvm_backend.export.host_tensors import tensors_of
from autotune.tvm_backend.export.timing import timed_process
from autotune.tvm_backend.export.timing.comparison import RuntimeTimes
from autotune.tvm_backend.kernels.time_on_board import close_session, open_session
from autotune.tvm_backend.types import RPCSession

# What a board has to send, run and time a library, in seconds.
_LIMIT_S = 600.0
_PROCESSES = 2
_TIMING_MS = 100
_SAVED = "autotune_timed"


@dataclass(frozen=True)
class BoardComparison:
    """The libraries of a model on a board.

    Attributes:
        libraries: The files by name.
        function: The function that is run.
        arrays: Its inputs.
        threads: How many threads the board uses.
        timings: How many timings each library gets at least.
    """

    board: BoardSettings
    libraries: Mapping[str, Path]
    function: str
    arrays: runners.Arrays
    threads: int
    timings: int

    def outputs(self, name: str) -> runners.Arrays:
        """Return the outputs of a library.

        Raises:
            BoardProblem: No board was free, or it did not begin a session.
            WorkerError: The library does not run there.
        """
        with scratch_folder("board") as folder:
            outputs = Path(folder) / "outputs.npy"
            self._session(name, self.libraries[name], 1, outputs)
            return timed_process.load(outputs)

    def time(self) -> dict[str, RuntimeTimes]:
        """Time the libraries, by turns.

        Returns:
            The times by library.

        Raises:
            BoardProblem: No board was free, or it did not begin a session.
            WorkerError: A library does not run there.
        """
        times = {name: RuntimeTimes() for name in self.libraries}
        per_process = -(-self.timings // _PROCESSES)
        for _ in range(_PROCESSES):
            for name, library in self.libraries.items():
                times[name].timings_ms.append(tuple(self._session(name, library, per_process, None)))
        return times

    def _session(self, name: str, library: Path, timings: int, outputs: Path | None) -> list[float]:
        lent = boards.request(self.board)
        try:
            outcome = isolated_call(lambda: self._time(lent, library, timings, outputs), limit_s=_LIMIT_S)
        except WorkerError as error:
            raise BoardProblem(f"the board at {lent} cannot be used: {error}") from error
        if outcome.kind != "ok":
            raise WorkerError(f"{name} cannot run on the board at {lent}: {outcome.kind}: {outcome.reason}")
        return [float(item) for item in outcome.value]

    def _time(self, lent: Lent, library: Path, timings: int, outputs: Path | None) -> list[float]:
        session = open_session(lent, _LIMIT_S, self.threads)
        try:
            return self._time_in(session, library, timings, outputs)
        finally:
            close_session(session)

    def _time_in(self, session: RPCSession, library: Path, timings: int, outputs: Path | None) -> list[float]:
        """Run a library on a board; return its timings in milliseconds, as the board takes them."""
        session.upload(str(library))
        device = session.cpu(0)
        machine = relax.VirtualMachine(session.load_module(library.name), device)
        tensors = [tvm.runtime.tensor(array, device=device) for array in self.arrays]
        machine.set_input(self.function, *tensors)
        machine.invoke_stateful(self.function)
        if outputs is not None:
            timed_process.save(outputs, [tensor.numpy() for tensor in tensors_of(machine.get_outputs(self.function))])
        machine.save_function(self.function, _SAVED, *tensors, include_return=False)
        evaluator = machine.time_evaluator(_SAVED, device, number=1, repeat=timings, min_repeat_ms=_TIMING_MS)
        return [float(seconds) * 1e3 for seconds in evaluator().results]
