"""The settings of a section `[devices.NAME]` in `autotune.toml`, declared as those in `settings.py`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from autotune.schema import at_least, text, whole_number


@dataclass(frozen=True)
class DeviceSettings:
    """A simulated device called NAME, for tests and for trying out policies.

    Stages for it take time but use no CPU. Jobs with `--target simulated` run on it. `search_s` to
    `train_s` are the mean durations of stages with a full batch.
    """

    kind: Annotated[
        Literal["simulated"], text("What the device is. It has no default: each device must say `simulated`.")
    ] = "simulated"
    search_s: Annotated[float, at_least(0.0, "The duration of a search, in seconds.")] = 10.0
    build_s: Annotated[float, at_least(0.0, "The duration of a build, in seconds.")] = 15.0
    measure_s: Annotated[float, at_least(0.0, "The duration of a measurement, in seconds.")] = 3.0
    train_s: Annotated[float, at_least(0.0, "The duration of a training, in seconds.")] = 1.0
    spread: Annotated[
        float,
        at_least(
            0.0,
            "The spread of durations: the standard deviation of their logarithm, which is close to the relative"
            " standard deviation while it is small. 0: all durations are the mean.",
        ),
    ] = 0.0
    speed: Annotated[float, at_least(0.001, "All durations are divided by this.")] = 1.0
    trials: Annotated[
        str,
        text(
            "The path of a tuning log, from the workspace. Measurements give the times that are in it. Empty: times"
            " are drawn at random."
        ),
    ] = ""


@dataclass(frozen=True)
class BoardSettings:
    """Boards, called NAME, that time candidates over TVM's RPC. See docs/guides/boards.md.

    Jobs for them are submitted with `--target NAME`.
    """

    kind: Annotated[
        Literal["rpc"], text("What the devices are. It has no default: a section of boards must say `rpc`.")
    ] = "rpc"
    tracker: Annotated[
        str,
        text("The address of TVM's RPC tracker.", r"^(\[[0-9a-fA-F:]+\]|[^\s:\[\]]+):[0-9]{1,5}\Z", "HOST:PORT"),
    ] = "127.0.0.1:9190"
    key: Annotated[
        str,
        text(
            "The key that the boards have at the tracker. It must be given.",
            r"^[A-Za-z0-9_.-]*\Z",
            "letters, digits, dots, dashes and underscores",
        ),
    ] = ""
    target: Annotated[
        str,
        text(
            "The target of the boards in JSON, of the kind `llvm`. Its `num-cores` is the number of threads that"
            " candidates run on. It must be given."
        ),
    ] = ""
    count: Annotated[
        int, whole_number(1, "The number of boards with this key that are used at the same time.", most=1000)
    ] = 1
    request_timeout_s: Annotated[
        float, at_least(0.1, "The time that a measurement waits for a free board, in seconds.")
    ] = 30.0
    retry_s: Annotated[
        float,
        at_least(
            0.1,
            "The time for which a board is set aside when it does not work, in seconds. It doubles, up to ten minutes,"
            " until the board works again.",
        ),
    ] = 30.0

    @property
    def description(self) -> dict[str, Any]:
        """Return the target as TVM takes it.

        Raises:
            ValueError: It is not an object in JSON.
        """
        return dict(json.loads(self.target))
