"""What every kind of device keeps, as a class of tests."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

from autotune import devices
from autotune.config import Config, load_config
from autotune.devices import Device
from autotune.errors import MachineProblem, WorkerError
from autotune.machine.disturbance import Quiet
from autotune.planning.view import device_kind
from autotune.processes.messages import RunStage
from autotune.stages import build, measure, search
from autotune.stages.bench import Bench, OpenDevice, Timer
from autotune.stages.stage import Stage
from autotune.storage.formats import Candidate, Kind
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths, Workspace

_BATCH = 3


@dataclass(frozen=True)
class DeviceJob:
    """A job for the device that is tested, with one task, whose round 0 is at its search. It has several schedules.

    Attributes:
        workspace: Its workspace, with the settings of the device.
        paths: The job.
        measured_on: The name of the device, such as `cuda:0`.
    """

    workspace: Workspace
    paths: JobPaths
    measured_on: str

    @property
    def config(self) -> Config:
        """The settings."""
        return load_config(self.workspace.config)

    @property
    def device(self) -> Device:
        """The half of the device that knows no TVM."""
        return devices.of_job(read_spec(self.paths), self.config)

    def stage(self, kind: Kind) -> Stage:
        """Return round 0 as a worker loads it when it is at a kind of stage."""
        on = self.measured_on if kind == "measure" else ""
        request = RunStage(0, self.paths.folder.name, 0, 0, kind, (0,), 60.0, count=_BATCH, device=on)
        return Stage.load(self.workspace, self.config, request)


class DeviceContract:
    """Subclass it as `TestYours` and override `job`, a fixture that makes a job for the device on this machine.

    What is tested are the promises of `autotune.devices.device.Device` and of `autotune.stages.bench.Bench`.
    """

    @pytest.fixture
    def job(self) -> DeviceJob:
        """Make the job. Its `target_key` is that of the device, and whatever `Bench.load` imports is loaded."""
        raise NotImplementedError

    def built(self, job: DeviceJob) -> Bench:
        """Search and build round 0; return what its measurement asks of the device."""
        search.run(job.stage("search"))
        build.run(job.stage("build"))
        return job.stage("measure").bench

    def test_every_name_says_what_device_it_is(self, job: DeviceJob) -> None:
        names = type(job.device).lent(job.config)
        assert job.measured_on in names and len(set(names)) == len(names)
        assert {devices.named(name) for name in names} == {type(job.device)}

    def test_a_job_is_measured_on_a_kind_of_device_that_is_lent(self, job: DeviceJob) -> None:
        assert device_kind(job.measured_on) == job.device.kind()

    def test_no_two_devices_share_a_lease(self, job: DeviceJob) -> None:
        names = type(job.device).lent(job.config)
        locks = [devices.lease_names(job.config, (), name) for name in names]
        assert len({tuple(lock) for lock in locks}) == len(names)
        assert all(re.fullmatch(r"[A-Za-z0-9_.:-]+", name) for lock in locks for name in lock), "they are file names"

    def test_the_key_of_its_logs_is_the_same_for_the_same_target(self, job: DeviceJob) -> None:
        spec = read_spec(job.paths)
        target = json.loads(json.dumps(dict(reversed(spec.target.items()))))
        others = (value for name, value in vars(job.device).items() if name != "target")
        again = type(job.device)(target, *others)
        assert again.log_kinds() == job.device.log_kinds()
        assert spec.target_key in [kind.key for kind in again.log_kinds()]

    def test_a_job_of_this_device_is_at_home_and_one_of_another_is_not(self, job: DeviceJob) -> None:
        key = job.device.log_kind().key
        job.device.check_here(key)
        if job.device.exists:
            with pytest.raises(MachineProblem):
                job.device.check_here(key[:-1] + ("1" if key.endswith("0") else "0"))

    def test_a_measurement_may_take_as_long_as_all_of_its_candidates(self, job: DeviceJob) -> None:
        for candidates in (1, 8, 64):
            limit_s = job.device.measure_limit_s(job.config, candidates)
            assert limit_s > candidates * job.config.measure.timeout_s

    def test_a_device_that_works_is_fit_and_is_tried_under_one_key(self, job: DeviceJob) -> None:
        bench = job.stage("measure").bench
        bench.check_job()
        bench.check()
        assert bench.fitness_key == job.stage("measure").bench.fitness_key

    def test_a_round_ends_with_a_time_for_every_candidate(self, job: DeviceJob) -> None:
        candidates = self.built(job).stage.file.candidates
        assert len({candidate.hash for candidate in candidates}) == len(candidates) > 1
        assert [candidate.failure for candidate in candidates] == [None] * len(candidates)
        stage = job.stage("measure")
        told = measure.run(stage)
        assert (told["measured"], told["failed"]) == (len(candidates), 0)
        times = {trial.hash: trial.median_us or 0.0 for trial in stage.log().trials()}
        assert set(times) == {candidate.hash for candidate in candidates}
        assert min(times.values()) > 0

    def test_what_is_excluded_or_pending_is_not_proposed(self, job: DeviceJob) -> None:
        bench = job.stage("search").bench
        first, _ = bench.propose([], ())
        second, _ = bench.propose(first[:1], {candidate.hash for candidate in first[1:]})
        assert first and not {candidate.hash for candidate in first} & {candidate.hash for candidate in second}

    def test_a_failure_is_that_of_one_candidate_and_each_is_reported_in_order(self, job: DeviceJob) -> None:
        bench = self.built(job)
        candidates = bench.stage.file.candidates
        runs = list(bench.results(candidates, None, _fails_at(candidates[-1]), []))
        assert [candidate.hash for candidate, _ in runs] == [candidate.hash for candidate in candidates]
        kinds = [outcome.kind for _, outcome in runs]
        assert kinds == ["ok"] * (len(candidates) - 1) + ["error"]

    def test_a_guard_returns_the_times_that_were_taken(self, job: DeviceJob) -> None:
        assert job.stage("measure").bench.guard(Quiet()).measure(lambda: [2.0, 3.0]).times == [2.0, 3.0]


def _fails_at(bad: Candidate) -> Any:
    def timer(device: OpenDevice) -> Timer:
        def timed(candidate: Candidate) -> dict[str, Any]:
            if candidate.hash == bad.hash:
                raise WorkerError("it fails")
            return {"times": device.time(candidate, None)}

        return timed

    return timer
