"""Whatever the workload: nothing is over-committed, nothing starves, every job ends, a seed always gives one plan."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.planning.policies import POLICIES, get
from autotune.planning.scenario import Duration, Scenario, SimulatedJob
from autotune.planning.simulator import SimulatedClock, Simulation, simulate
from autotune.planning.view import Kind, MachineResources, RunningView, StageId, Start, device_kind

LEASING = [name for name in POLICIES if get(name).leases]
PLAIN: dict[Kind, Duration] = {
    "search": Duration(10), "build": Duration(15), "measure": Duration(3), "train": Duration(1),
}  # fmt: skip


def job(id: int = 1, device: str = "cuda", tasks: int = 2, trials: int = 64, **more: Any) -> SimulatedJob:
    return SimulatedJob(id, f"job{id}", device, tasks, trials, more.pop("seconds", PLAIN), **more)


@st.composite
def scenarios(draw: Any) -> Scenario:
    """A machine of a few CPUs and devices, with up to six jobs that come one after another."""
    cpus = draw(st.integers(1, 6))
    devices = ("cpu", *(f"cuda:{n}" for n in range(draw(st.integers(1, 3)))))
    aside = tuple(range(cpus - draw(st.integers(0, cpus - 1)), cpus))
    jobs = []
    for id in range(1, draw(st.integers(1, 6)) + 1):
        means = {kind: Duration(draw(st.integers(1, 30)), draw(st.sampled_from([0.0, 0.6]))) for kind in PLAIN}
        deadline = draw(st.sampled_from([None, None, 300.0]))
        jobs.append(
            job(
                id, draw(st.sampled_from(["cuda", "cpu"])), draw(st.integers(1, 5)), draw(st.integers(1, 200)),
                seconds=means, priority=draw(st.integers(0, 2)), deadline=deadline,
                submitted_at=draw(st.sampled_from([0.0, 0.0, 50.0])),
            )
        )  # fmt: skip
    return Scenario(MachineResources(tuple(range(cpus)), devices, aside), tuple(jobs), draw(st.integers(0, 9)))


class Watch:
    """Looks at everything that runs whenever a stage starts."""

    def __init__(self, scenario: Scenario, rounds_per_task: int) -> None:
        self.scenario = scenario
        self.rounds_per_task = rounds_per_task
        self.kinds = {job.id: job.device for job in scenario.jobs}
        self.trials: Counter[int] = Counter()
        self.starts: list[tuple[float, Start]] = []

    def __call__(self, now: float, start: Start, running: dict[StageId, RunningView]) -> None:
        self.starts.append((now, start))
        items = list(running.values())
        machine = self.scenario.machine
        cpus = [cpu for item in items for cpu in item.cpus]
        assert len(cpus) == len(set(cpus)) and set(cpus) <= set(machine.cpus)
        devices = [item.device for item in items if item.kind == "measure"]
        assert len(devices) == len(set(devices)) and set(devices) <= set(machine.devices)
        for item in items:
            self._check(item)
        per_task = Counter((item.id.job, item.id.task) for item in items)
        assert max(per_task.values()) <= self.rounds_per_task
        self.trials[start.stage.id.job] += start.count

    def _check(self, item: RunningView) -> None:
        machine = self.scenario.machine
        if item.kind == "measure":
            assert device_kind(item.device) == self.kinds[item.id.job]
            assert item.device != "cpu" or item.cpus == machine.cpu_device
        else:
            assert len(item.cpus) == 1 and not item.device and item.cpus[0] in machine.shared_cpus


class TestRandomWorkloads:
    @pytest.mark.parametrize("name", LEASING)
    @settings(max_examples=12, deadline=None)
    @given(scenario=scenarios())
    def test_nothing_is_over_committed_and_every_job_ends(self, name: str, scenario: Scenario) -> None:
        watch = Watch(scenario, get(name).rounds_per_task)
        outcome = Simulation(scenario, get(name), watch=watch).run()
        assert set(outcome.completions) == {job.id for job in scenario.jobs}
        assert watch.trials == {job.id: job.trials for job in scenario.jobs}
        assert outcome.makespan >= outcome.bound * (1 - 1e-9)
        for name, count in outcome.counts.items():
            spent = outcome.busy[name] + sum(outcome.idle.get(name, {}).values())
            assert spent == pytest.approx(count * outcome.makespan)

    @pytest.mark.parametrize("name", POLICIES)
    @settings(max_examples=3, deadline=None)
    @given(scenario=scenarios())
    def test_the_same_seed_is_the_same_plan(self, name: str, scenario: Scenario) -> None:
        assert simulate(scenario, get(name), record=True) == simulate(scenario, get(name), record=True)

    @settings(max_examples=6, deadline=None)
    @given(scenario=scenarios())
    def test_uncoordinated_ends_too_and_takes_no_lease(self, scenario: Scenario) -> None:
        starts: list[Start] = []
        outcome = Simulation(scenario, get("uncoordinated"), watch=lambda _, start, __: starts.append(start)).run()
        assert set(outcome.completions) == {job.id for job in scenario.jobs}
        assert starts and not any(start.lease for start in starts)

    @pytest.mark.parametrize("name", ["interleave", "predictive"])
    def test_an_old_job_is_served_whatever_keeps_coming(self, name: str) -> None:
        slow = {kind: Duration(6 * duration.mean) for kind, duration in PLAIN.items()}
        stream = [job(id, seconds=slow, priority=1, submitted_at=120.0 * id) for id in range(2, 250)]
        scenario = Scenario(MachineResources((0, 1), ("cpu", "cuda:0")), (job(1, trials=32, seconds=slow), *stream))
        watch = Watch(scenario, 2)
        completions = Simulation(scenario, get(name), watch=watch).run().completions
        assert completions[1] < 5 * 3600 < max(completions.values())


class TestKnownOutcomes:
    def test_one_job_alone(self) -> None:
        alone = Scenario(MachineResources((0,), ("cpu", "cuda:0")), (job(tasks=1, trials=32),))
        assert simulate(alone, get("sequential")).makespan == 2 * (10 + 15 + 3 + 1)

    def test_looking_ahead_hides_measuring_behind_the_next_round(self) -> None:
        alone = Scenario(MachineResources((0, 1), ("cpu", "cuda:0")), (job(tasks=1, trials=64),))
        assert simulate(alone, get("predictive")).makespan == simulate(alone, get("predictive")).bound == 4 * 25 + 4
        assert simulate(alone, get("interleave")).makespan == 4 * 29

    def test_one_job_alone_keeps_its_device_busy(self) -> None:
        slow = PLAIN | {"measure": Duration(60)}
        alone = Scenario(
            MachineResources(tuple(range(8)), ("cpu", "cuda:0")), (job(tasks=1, trials=1600, seconds=slow),)
        )
        assert simulate(alone, get("predictive")).utilisation("cuda") > 0.95

    def test_twenty_jobs_on_four_devices_end_near_the_lower_bound(self) -> None:
        lengths = [(4, 9, 2), (20, 6, 5), (9, 30, 3), (12, 12, 9)]
        jobs = tuple(
            job(id, tasks=4 + id % 7, trials=320 + 16 * id, seconds=_lengths(*lengths[id % 4])) for id in range(1, 21)
        )
        machine = MachineResources(tuple(range(32)), ("cpu", *(f"cuda:{n}" for n in range(4))))
        outcome = simulate(Scenario(machine, jobs, 1), get("predictive"))
        assert outcome.makespan <= 1.05 * outcome.bound

    @pytest.mark.parametrize(("name", "timed"), [("sequential", False), ("interleave", False), ("predictive", True)])
    def test_only_a_policy_that_goes_by_times_sizes_batches_by_them(self, name: str, timed: bool) -> None:
        def counts(build_s: float) -> list[int]:
            seconds = PLAIN | {"build": Duration(build_s)}
            alone = Scenario(MachineResources((0,), ("cpu", "cuda:0")), (job(tasks=6, trials=192, seconds=seconds),))
            watch = Watch(alone, 2)
            Simulation(alone, get(name), watch=watch).run()
            return [start.count for _, start in watch.starts if start.stage.kind == "search"]

        assert (counts(2.0) != counts(500.0)) == timed

    def test_devices_that_are_scarce_are_kept_busy(self) -> None:
        jobs = tuple(job(id, tasks=8, trials=640, seconds=_lengths(10, 15, 12)) for id in range(1, 21))
        machine = MachineResources(tuple(range(32)), ("cpu", *(f"cuda:{n}" for n in range(4))))
        assert simulate(Scenario(machine, jobs, 1), get("predictive")).utilisation("cuda") >= 0.95

    def test_unleased_stages_slow_each_other_down(self) -> None:
        clock = SimulatedClock()
        clock.add_capacity("CPUs", 2.0)
        for number in range(4):
            clock.start("CPUs", StageId(number, 0, 0), 10.0)
        assert clock.next_end() == 20.0
        assert [clock.pop().job for _ in range(4)] == [0, 1, 2, 3] and clock.now == pytest.approx(20.0)


def _lengths(search: float, build: float, measure: float) -> dict[Kind, Duration]:
    means: dict[Kind, float] = {"search": search, "build": build, "measure": measure, "train": 1.0}
    return {kind: Duration(mean, 0.3) for kind, mean in means.items()}


def test_each_stage_takes_as_long_as_one_of_the_samples_by_chance() -> None:
    sampled = job(seconds=PLAIN | {"search": Duration(5.0, samples=(1.0, 9.0))})
    scenario = Scenario(MachineResources((0,)), (sampled,), seed=5)
    assert {scenario.seconds(sampled, 0, round, "search", 8) for round in range(20)} == {1.0, 9.0}
