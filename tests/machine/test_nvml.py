"""What NVML says of a GPU, asked through nvidia-ml-py, of a stand-in for the driver's library."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.machine.gpus import GpuSample, gpu_disturbance, without_own

from .. import cuda_stand_in

needs_stand_in = pytest.mark.skipif(
    shutil.which("gcc") is None or importlib.util.find_spec("pynvml") is None, reason="no gcc, or no nvidia-ml-py"
)
QUIET = GpuSample({}, 1980, 0)

MEASURE = """
import json, sys
from autotune.machine.gpus import GpuCounters
from autotune.stages.guard import Guard, GpuWatcher

counters = GpuCounters.open(sys.argv[1])
if counters is None:
    raise SystemExit(print(json.dumps(None)))
guard = Guard(GpuWatcher(counters).begin, 2, 10.0, lambda s: None)
found = [guard.measure(lambda: [10.0]) for _ in range(int(sys.argv[2]))]
print(json.dumps([[item.again, item.disturbed] for item in found]))
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(cuda_stand_in.compile_libraries(tmp_path_factory.mktemp("cuda_libraries")))


@pytest.fixture
def measured(libraries: Path, tmp_path: Path) -> Callable[..., Any]:
    """Measures in a process of its own, while NVML says what a test wants; returns what the guard found."""

    def measure(*samples: tuple[int, int, int, int], count: int = 1, uuid: str = "GPU-1", **variables: str) -> Any:
        stand_in = cuda_stand_in.StandIn.make(libraries, tmp_path / "gpus")
        stand_in.seen(*samples)
        environment = {**os.environ, **stand_in.environment(), **variables}
        command = [sys.executable, "-c", MEASURE, uuid, str(count)]
        return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)

    return measure


@needs_stand_in
def test_a_measurement_beside_another_process_is_made_again_until_it_is_gone(measured: Callable[..., Any]) -> None:
    busy = (1980, 0, 4711, 60)
    idle = (1980, 0, 4711, 0)
    gone = (1980, 0, 0, 0)
    assert measured(gone, busy, idle, gone) == [[1, ""]]
    assert measured(busy) == [[2, "other processes used 60% of the GPU"]]
    assert measured(idle) == [[0, ""]], "a process that only waits disturbs nobody"


@needs_stand_in
def test_where_the_driver_tells_no_use_another_process_is_enough(measured: Callable[..., Any]) -> None:
    assert measured((1980, 0, 4711, -1)) == [[2, "1 other process had work on the GPU"]]
    assert measured((1980, 0, 0, -1)) == [[0, ""]]


@needs_stand_in
def test_in_a_container_the_process_itself_is_not_taken_for_another(measured: Callable[..., Any]) -> None:
    assert measured((1980, 0, 0, 0), AUTOTUNE_CUDA_HOST_PID="31337") == [[0, ""]]
    assert measured((1980, 0, 4711, 60), AUTOTUNE_CUDA_HOST_PID="31337")[0][1] == "other processes used 60% of the GPU"


@needs_stand_in
def test_a_clock_that_is_held_down_or_falls_is_noted(measured: Callable[..., Any]) -> None:
    assert (
        measured((1980, 0, 0, 0), (1200, 0x20, 0, 0))[0][1] == "the clock of the GPU was held down by its temperature"
    )
    assert measured((1980, 0, 0, 0), (900, 0, 0, 0))[0][1] == "the clock of the GPU fell from 1980 to 900 MHz"
    assert measured((345, 0x1, 0, 0), (1980, 0, 0, 0)) == [[0, ""]], "it only woke up"


@needs_stand_in
def test_without_the_gpu_or_the_library_nothing_is_watched(measured: Callable[..., Any]) -> None:
    assert measured((1980, 0, 0, 0), uuid="MIG-1") is None
    assert measured((1980, 0, 0, 0), LD_LIBRARY_PATH="") is None


def test_a_power_cap_is_normal_work_and_so_is_the_clock_that_it_leaves() -> None:
    capped = GpuSample({}, 1200, 0x4)
    assert gpu_disturbance(QUIET, capped, 1980) == ""
    assert gpu_disturbance(QUIET, GpuSample({}, 1200, 0x1), 1980) != ""


def test_a_clock_may_be_a_fifth_lower_than_the_highest_that_was_seen() -> None:
    assert gpu_disturbance(QUIET, GpuSample({}, 1585, 0), 1980) == ""
    assert gpu_disturbance(QUIET, GpuSample({}, 1583, 0), 1980) == "the clock of the GPU fell from 1980 to 1583 MHz"


def test_an_unknown_process_number_of_our_own_is_that_of_the_busiest() -> None:
    assert without_own({1: 20, 2: 70}, own=1) == {2: 70}
    assert without_own({1: 20, 2: 70}, own=3) == {1: 20}
    assert without_own({}, own=3) == {}
