"""Time a built library on a board, over TVM's RPC."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from tvm import rpc

from autotune.machine.boards import Lent
from autotune.tvm_backend.kernels.time_kernel import FILL, Runner
from autotune.tvm_backend.types import Kernel, RPCSession, RuntimeModule

_BIG_CORES = 1  # of the modes of TVM's thread pool


def open_session(lent: Lent, limit_s: float, threads: int) -> RPCSession:
    """Begin a session on a board. It waits for the board for as long as that takes.

    Args:
        lent: The board, which expects nobody else.
        limit_s: The seconds after which the board ends the session, so that a kernel that hangs does not keep it.
        threads: How many threads kernels run on.
    """
    session = rpc.connect(lent.host, lent.port, lent.word, session_timeout=limit_s)
    session.get_function("runtime.config_threadpool")(_BIG_CORES, threads)
    return session


def close_session(session: RPCSession) -> None:
    """End a session in order. TVM's server serves nobody any more after one that breaks off."""
    with contextlib.suppress(Exception):  # it may have broken off, with an error of any kind
        session.get_function("CloseRPCConnection")()


@dataclass
class BoardRunner(Runner):
    """Times libraries on the CPU of a board.

    Attributes:
        session: What `open_session` returned; `device` is its CPU.
    """

    session: RPCSession = None
    _loaded: dict[Path, RuntimeModule] = field(default_factory=dict)

    def load(self, library: Path) -> RuntimeModule:
        """Send a library to the board, unless it was the last one, and load it there."""
        if library not in self._loaded:
            self.session.upload(str(library))
            self._loaded = {library: self.session.load_module(library.name)}
        return self._loaded[library]

    def _fill(self) -> Kernel:
        return self.session.get_function(FILL)  # that here would send the values to the board
