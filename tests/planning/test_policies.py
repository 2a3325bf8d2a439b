"""Policies by name, and what distinguishes each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune import config
from autotune.errors import ConfigError
from autotune.planning import policies
from autotune.planning.planner import plan
from autotune.planning.policies import predictive
from autotune.planning.queues import DeviceQueues
from autotune.planning.view import JobView, Kind, MachineResources, RunningView, StageId, StagePlan, StageView, TaskView

FOUR = MachineResources((0, 1, 2, 3), ("cpu", "cuda:0", "cuda:1"))


def job(id: int, *kinds: Kind, device: str = "cuda", done: int = 4, **more: Any) -> JobView:
    """A job with a task for each kind of stage."""
    tasks = tuple(TaskView(f"{id}/{n}", 1, done, (100.0,) * done) for n in range(len(kinds)))
    stages = tuple(StageView(StageId(id, n, 1), kind, 4 * (kind != "search")) for n, kind in enumerate(kinds))
    return JobView(id, device, tasks, stages, 400, 4, 0, 0.01, **more)


def started(chosen: StagePlan) -> list[tuple[int, int, Kind]]:
    return [(start.stage.id.job, start.stage.id.task, start.stage.kind) for start in chosen.starts]


def planned(name: str, *jobs: JobView, running: tuple[RunningView, ...] = (), now: float = 0.0) -> StagePlan:
    return plan(jobs, running, FOUR, policies.get(name), now=now)


class TestNames:
    def test_each_is_found_and_knows_its_name(self) -> None:
        assert all(policies.get(name).name == name for name in policies.POLICIES)

    def test_another_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no policy 'fifo'; there are sequential, "):
            policies.get("fifo")

    def test_the_settings_know_the_same(self, tmp_path: Path) -> None:
        file = tmp_path / "autotune.toml"
        for name in policies.POLICIES:
            file.write_text(f'[daemon]\npolicy = "{name}"\n')
            assert config.load_config(file).daemon.policy == name
        file.write_text('[daemon]\npolicy = "fifo"\n')
        with pytest.raises(ConfigError, match=r":2: 'policy' in \[daemon\] must be one of predictive, "):
            config.load_config(file)
        assert config.Config().daemon.policy == policies.DEFAULT


class TestSequential:
    def test_one_stage_at_a_time(self) -> None:
        assert started(planned("sequential", job(1, "search", "search"), job(2, "search"))) == [(1, 0, "search")]

    def test_a_round_begun_ends_before_another_begins(self) -> None:
        assert started(planned("sequential", job(1, "search"), job(2, "build"))) == [(2, 0, "build")]


class TestUncoordinated:
    def test_every_job_runs_one_round_and_nobody_waits(self) -> None:
        chosen = planned("uncoordinated", *(job(id, "search", "search") for id in range(9)))
        assert started(chosen) == [(id, 0, "search") for id in range(9)]
        assert not any(start.lease for start in chosen.starts)

    def test_devices_are_shared_evenly(self) -> None:
        chosen = planned("uncoordinated", *(job(id, "measure") for id in range(4)))
        assert sorted(start.device for start in chosen.starts) == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]

    def test_a_device_we_lack_is_not_given(self) -> None:
        assert planned("uncoordinated", job(1, "measure", device="rocm")).starts == ()


class TestDevices:
    def test_any_free_device_of_the_kind_will_do(self) -> None:
        chosen = planned("interleave", *(job(id, "measure") for id in range(3)))
        assert [start.device for start in chosen.starts] == ["cuda:0", "cuda:1"]

    def test_cpus_set_aside_measure_while_others_build(self) -> None:
        machine = MachineResources((0, 1, 2, 3), ("cpu",), measure_cpus=(2, 3))
        jobs = [job(1, "measure", "build", device="cpu"), job(2, "measure", "build", device="cpu")]
        chosen = plan(jobs, [], machine, policies.get("interleave"))
        assert [(start.stage.kind, start.cpus) for start in chosen.starts] == [
            ("measure", (2, 3)), ("build", (0,)), ("build", (1,)),
        ]  # fmt: skip


class TestPredictive:
    def test_the_next_round_of_a_task_is_searched_while_one_is_measured(self) -> None:
        ahead = JobView(
            1, "cuda", (TaskView("k", 1, 4, (9.0,) * 4),),
            (StageView(StageId(1, 0, 1), "measure", 4), StageView(StageId(1, 0, 2), "search")), 400, 4, 0, 0.01,
        )  # fmt: skip
        assert started(planned("predictive", ahead)) == [(1, 0, "measure"), (1, 0, "search")]
        assert started(planned("interleave", ahead)) == [(1, 0, "measure")]

    def test_without_the_device_rounds_are_prepared_all_the_same(self) -> None:
        chosen = planned("predictive", job(1, *["measure"] * 30, "search", device="rocm"))
        assert started(chosen) == [(1, 30, "search")]

    def test_several_tasks_of_a_job_start_at_once(self) -> None:
        assert len(planned("predictive", job(1, "search", "search", "search")).starts) == 3

    def test_a_job_that_would_miss_its_deadline_goes_first(self) -> None:
        jobs = [job(1, *["search"] * 4), job(2, *["search"] * 4, deadline=1000.0)]
        assert {id for id, _, _ in started(planned("predictive", *jobs, now=800.0))} == {2}

    def test_a_job_that_starves_goes_first(self) -> None:
        jobs = [job(1, *["build"] * 9, served_at=1e6), job(2, "search", submitted_at=100.0)]
        assert (2, 0, "search") in started(planned("predictive", *jobs, now=1e6))

    @pytest.mark.parametrize(("devices", "left_ms"), [(0, 600), (1, 600), (2, 300)])
    def test_devices_share_the_work_that_is_left_for_them(self, devices: int, left_ms: float) -> None:
        totals = DeviceQueues("cuda", devices, 1, lambda _: False)
        totals.device_ms = 600
        assert predictive._device_left_ms(totals) == left_ms

    def test_no_stage_starts_that_would_not_end_in_time(self) -> None:
        policy = policies.get("predictive")
        jobs = [job(1, "search", "train")]
        chosen = plan(jobs, [], FOUR, policy, now=0.0, closes_at=3.0)
        assert started(chosen) == [(1, 1, "train")]
