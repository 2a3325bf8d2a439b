"""The real daemon on simulated devices, beside what the simulator says of the same scenario."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from autotune.commands.submit.publish import Submission, publish
from autotune.config import load_config
from autotune.options import TuningOptions
from autotune.planning import policies
from autotune.planning.scenario import Duration, Scenario, SimulatedJob
from autotune.planning.simulator import simulate
from autotune.planning.view import Kind, MachineResources
from autotune.processes.messages import ImportAnswer
from autotune.storage.formats import SIMULATED, TaskSpec
from autotune.storage.paths import Workspace

from . import workspaces

SEED = 7
_CPUS = 40
_BATCH = 16
_UNIFORM: dict[Kind, float] = {"search": 10.0, "build": 15.0, "measure": 3.0, "train": 1.0}
_KINDS_OF_JOBS: tuple[tuple[str, int, dict[Kind, float]], ...] = (
    ("convolutions", 6, {"search": 10.0, "build": 15.0, "measure": 3.0, "train": 1.0}),
    ("transformer", 4, {"search": 6.0, "build": 9.0, "measure": 6.0, "train": 1.0}),
    ("winograd", 3, {"search": 12.0, "build": 40.0, "measure": 2.0, "train": 1.5}),
    ("small", 2, {"search": 4.0, "build": 5.0, "measure": 5.0, "train": 0.5}),
)


def uniform(devices: int, jobs: int, trials: int) -> Scenario:
    """Equal jobs with the stage times of a GPU."""
    seconds = {kind: Duration(mean) for kind, mean in _UNIFORM.items()}
    queued = (SimulatedJob(n + 1, f"net-{n + 1}", SIMULATED, 6, trials, seconds, _BATCH) for n in range(jobs))
    return Scenario(_machine(devices), tuple(queued), SEED)


def mixed(devices: int, jobs: int, trials: int) -> Scenario:
    """Jobs of four kinds in turn, whose stages vary in length."""
    queued = []
    for number in range(jobs):
        name, tasks, means = _KINDS_OF_JOBS[number % len(_KINDS_OF_JOBS)]
        seconds = {kind: Duration(mean, 0.3) for kind, mean in means.items()}
        queued.append(SimulatedJob(number + 1, f"{name}-{number + 1}", SIMULATED, tasks, trials, seconds, _BATCH))
    return Scenario(_machine(devices), tuple(queued), SEED)


def _machine(devices: int) -> MachineResources:
    return MachineResources(tuple(range(_CPUS)), tuple(f"{SIMULATED}:gpu{index}" for index in range(devices)))


def run(work: Path, speed: float, trials: int) -> list[dict[str, Any]]:
    """All scenarios of this part: the one that is judged at full speed, the others `speed` times as fast."""
    plans: list[tuple[str, Scenario, str, float]] = [("judged", uniform(2, 6, trials), "predictive", 1.0)]
    for name, make in (("uniform", uniform), ("mixed", mixed)):
        plans += [(name, make(count, 8, trials), "predictive", speed) for count in (1, 2, 3, 4)]
        plans.append((name, make(2, 8, trials), "interleave", speed))
        plans.append((name, make(2, 8, trials), "sequential", 2 * speed))  # it takes longest
    return [measure(work / f"devices-{index:02}", *plan) for index, plan in enumerate(plans)]


def measure(root: Path, name: str, scenario: Scenario, policy: str, speed: float) -> dict[str, Any]:
    """Run a scenario with the real daemon and with the simulator. All seconds are those of full speed."""
    devices = len(scenario.machine.devices)
    print(f"{name}: {len(scenario.jobs)} jobs, {devices} devices, {policy}, speed {speed:g}", flush=True)
    workspace = workspaces.make(root, _settings(root, scenario, speed))
    for job in scenario.jobs:
        _publish(workspace, job)
    drained = workspaces.drain(workspace, policy)
    ran = workspaces.stages(workspace)
    end = max(stage.begin + stage.seconds for stage in ran)
    working = (end - min(stage.begin for stage in ran)) * speed
    busy = sum(stage.seconds for stage in ran if stage.kind == "measure") * speed
    predicted = simulate(scenario, policies.get(policy))
    return {
        "name": name,
        "policy": policy,
        "devices": devices,
        "cpus": len(scenario.machine.cpus),
        "jobs": len(scenario.jobs),
        "speed": speed,
        "trials": [job["trials_done"] for job in workspaces.status(workspace)],
        "real_s": drained["wall_s"] * speed,
        "working_s": working,
        "utilisation": busy / (devices * drained["wall_s"] * speed),
        "daemon_cpu_share": drained["daemon_cpu_s"] / drained["wall_s"],
        "simulated_s": predicted.makespan,
        "simulated_utilisation": predicted.utilisation(SIMULATED),
        "bound_s": predicted.bound,
        "stages": [asdict(stage) for stage in ran],
    }


def _settings(root: Path, scenario: Scenario, speed: float) -> str:
    lines = ["[machine]", f'lock_dir = "{root}/locks"', f"simulated_cpus = {len(scenario.machine.cpus)}"]
    lines += ["[job]", "patience = 0", "min_gain = 0.0"]
    spread = scenario.jobs[0].seconds["build"].spread
    for device in scenario.machine.devices:
        lines += [
            f"[devices.{device.partition(':')[2]}]",
            'kind = "simulated"',
            f"speed = {speed}",
            f"spread = {spread}",
        ]
    return "\n".join(lines) + "\n"


def _publish(workspace: Workspace, job: SimulatedJob) -> None:
    target = {"kind": SIMULATED, **{f"{kind}_s": duration.mean for kind, duration in job.seconds.items()}}
    tasks = tuple(TaskSpec(f"task{n}", f"{job.id:08}{n:08}", 1 + n % 3, "1x8", 0.1, True) for n in range(job.tasks))
    answer = ImportAnswer(target, f"{SIMULATED}-{job.name}", (), tasks, (0,) * job.tasks)
    options = TuningOptions(
        target=SIMULATED, name=job.name, trials=job.trials, trials_per_round=job.trials_per_round, seed=SEED
    )
    publish(workspace, load_config(workspace.config), Submission(Path(job.name), options), answer)
