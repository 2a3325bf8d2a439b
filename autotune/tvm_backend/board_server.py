#!/usr/bin/env python
"""Lend a board to a tracker over TVM's RPC, again and again, even after a kernel has crashed.

    python board_server.py --tracker 127.0.0.1:9190 --key rk3588

It needs TVM and nothing else of autotune: copy it to the board. `python -m tvm.exec.rpc_server` does the same until a
session breaks off, because its kernel crashed or its client was killed; from then on it serves nobody, and does not
end either.

RPC has no authentication: whoever reaches the port can run code here. So it listens on the loopback address, unless
--host says otherwise.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time

_PAUSE_S = 1.0
_PORTS = 100


def main() -> None:
    """Start a server, and another one whenever it has ended."""
    options = _options()
    if options.once:
        _serve(options)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        server = subprocess.Popen([sys.executable, __file__, "--once", *sys.argv[1:]])
        try:
            server.wait()
        finally:
            server.kill()
        time.sleep(_PAUSE_S)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tracker", required=True, metavar="HOST:PORT")
    parser.add_argument("--key", required=True, help="what the boards of this kind are called at the tracker")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, default=9090, help="the first port to try")
    parser.add_argument("--custom-addr", help="the address that the tracker tells others, if it is not --host")
    parser.add_argument("--once", action="store_true", help="end when the server does")
    return parser.parse_args()


def _serve(options: argparse.Namespace) -> None:
    """Serve until the thread that waits for sessions ends, which is where TVM's own command goes on without it."""
    from tvm.rpc.server import PopenRPCServerState

    host, _, port = options.tracker.rpartition(":")
    state = PopenRPCServerState(
        options.host,
        options.port,
        options.port + _PORTS,
        tracker_addr=(host, int(port)),
        key=options.key,
        custom_addr=options.custom_addr,
    )
    state.thread.join()


if __name__ == "__main__":
    main()
