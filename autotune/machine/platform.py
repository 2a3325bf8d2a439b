"""The platforms that autotune runs on."""

from __future__ import annotations

import os
import platform

from autotune.errors import MachineProblem

_TESTED = ("Linux", "x86_64")
_OVERRIDE = "AUTOTUNE_UNTESTED_PLATFORM"


def check_platform() -> None:
    """Refuse a platform that autotune was never tested on.

    TVM's wheels for Linux on aarch64 install, but nothing has shown that the kernels which autotune makes there are
    right or fast.

    Raises:
        MachineProblem: This is not Linux on x86-64, and the user has not said to go on regardless.
    """
    here = (platform.system(), platform.machine())
    if here != _TESTED and os.environ.get(_OVERRIDE) != "1":
        raise MachineProblem(
            f"autotune is tested on Linux on x86-64 only, and this is {here[0]} on {here[1]};"
            f" set {_OVERRIDE}=1 to try it regardless"
        )
