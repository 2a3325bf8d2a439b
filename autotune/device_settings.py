"""The settings of a section `[devices.NAME]` in `autotune.toml`, declared as those in `settings.py`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from autotune.schema import at_least, text, whole_number


@dataclass(frozen=True)
class DeviceSettings:
    """A simulated device called NAME, for tests and for trying out policies.

    Stages for it take time but use no CPU. Jobs with `--target simulated` run on it. `search_s` to `train_s` are the
    mean seconds of stages with a full batch.
    """

    kind: Annotated[Literal["simulated"], text("It must be given.")] = "simulated"
    search_s: Annotated[float, at_least(0.0, "Seconds of a search.")] = 10.0
    build_s: Annotated[float, at_least(0.0, "Seconds of a build.")] = 15.0
    measure_s: Annotated[float, at_least(0.0, "Seconds of a measurement.")] = 3.0
    train_s: Annotated[float, at_least(0.0, "Seconds of a training.")] = 1.0
    open_s: Annotated[float, at_least(0.0, "Seconds until a process has opened the device.")] = 0.0
    spread: Annotated[
        float, at_least(0.0, "The standard deviation of the logarithm of durations. 0: all are the mean.")
    ] = 0.0
    speed: Annotated[float, at_least(0.001, "All durations are divided by it.")] = 1.0
    trials: Annotated[
        str, text("A tuning log, as a path from the workspace, whose times measurements give. Empty: random times.")
    ] = ""


@dataclass(frozen=True)
class BoardSettings:
    """Boards, called NAME, that time candidates over TVM's RPC. See docs/guides/boards.md.

    Jobs for them are submitted with `--target NAME`.
    """

    kind: Annotated[Literal["rpc"], text("It must be given.")] = "rpc"
    tracker: Annotated[
        str, text("The address of TVM's RPC tracker.", r"^(\[[0-9a-fA-F:]+\]|[^\s:\[\]]+):[0-9]{1,5}\Z", "HOST:PORT")
    ] = "127.0.0.1:9190"
    key: Annotated[
        str,
        text(
            "The boards' key at the tracker. It must be given.",
            r"^[A-Za-z0-9_.-]*\Z",
            "letters, digits, dots, dashes and underscores",
        ),
    ] = ""
    target: Annotated[
        str,
        text(
            "The boards' target in JSON, of the kind `llvm`. `num-cores` is the threads of a candidate. It must be"
            " given."
        ),
    ] = ""
    count: Annotated[int, whole_number(1, "How many of the boards are used at the same time.", most=1000)] = 1
    request_timeout_s: Annotated[float, at_least(0.1, "Seconds that a measurement waits for a free board.")] = 30.0
    retry_s: Annotated[
        float,
        at_least(
            0.1,
            "Seconds for which a board that fails is set aside. They double, up to ten minutes, until it works again.",
        ),
    ] = 30.0

    @property
    def description(self) -> dict[str, Any]:
        """Return the target as TVM takes it.

        Raises:
            ValueError: It is not an object in JSON.
        """
        return dict(json.loads(self.target))
