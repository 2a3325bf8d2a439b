"""The contract suites: tests that every search strategy must pass, every runner of stages and every device, for pytest.

A strategy of your own is tested by a subclass in one of your test files:

    from autotune.testing import StrategyContract
    from mypackage.hill import HillClimbing

    class TestHillClimbing(StrategyContract):
        strategy = HillClimbing

Each promise of `autotune.strategies.strategy` is one test, with each sampler: new, valid and different configurations;
the same batch for the same view and seed, also after a restart; spaces of one configuration, and spaces that are used
up; no trials, and only failed ones. `Landscape`, the task that they run on, is there for tests of your own.

A runner of stages is tested in the same way by a subclass of `StageRunnerContract` that makes it in a fixture. Each
promise of `autotune.workers.stage_runner` is one test.

A kind of device is tested by a subclass of `DeviceContract` that makes a job for it in a fixture. Each promise of
`autotune.devices.device` and of `autotune.stages.bench` is one test.

pytest must be installed. Only a device that exists needs TVM.
"""

from __future__ import annotations

from autotune.testing.devices import DeviceContract, DeviceJob
from autotune.testing.stage_runners import StageRunnerContract
from autotune.testing.strategies import Landscape, StrategyContract, make_space

__all__ = ["DeviceContract", "DeviceJob", "Landscape", "StageRunnerContract", "StrategyContract", "make_space"]
