"""Jobs of commands: a candidate is a combination of values, and the user's commands build, measure and check it."""

from __future__ import annotations

import os
import stat
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import CommandMissing, DamagedFile, MachineProblem, WorkerError
from autotune.machine.disturbance import Quiet
from autotune.processes.children import ItemResult
from autotune.processes.isolate import isolated
from autotune.processes.keeper import Keeper
from autotune.stages import proposals
from autotune.stages.bench import Bench, OpenDevice, Timer
from autotune.stages.guard import Guard, Watch
from autotune.storage.confirmation import EntryTimes
from autotune.storage.device_kind import is_private, target_keys
from autotune.storage.formats import COMMAND, Candidate
from autotune.storage.job_files import is_own
from autotune.storage.paths import Workspace
from autotune.storage.scratch import check_executable, scratch_folder
from autotune.storage.seals import digest, file_digest
from autotune.storage.trees import TreeEntry, walk
from autotune.storage.tuning_log import TuningLog, trials_to_learn_from

if TYPE_CHECKING:
    from autotune.command_jobs.combinations import Combinations
    from autotune.command_jobs.trial import CommandTrial, TrialSettings
    from autotune.strategies.space import Measured
    from autotune.tvm_backend.kernels.verify import Reference

_TRIED_FIRST = 16  # of what is known elsewhere, while a task has fewer trials
_SPARE_S = 5.0  # for the end of a command that has taken too long


class CommandBench(Bench):
    """The machine that the user's commands run on. TVM is not loaded for it."""

    @classmethod
    def load(cls, workspace: Workspace) -> None:
        import scipy.cluster.vq  # noqa: F401

        import autotune.command_jobs.trial
        import autotune.strategies.samplers
        import autotune.tvm_backend.search.knob_score  # noqa: F401

    @cached_property
    def combinations(self) -> Combinations:
        """The combinations of the job's space.

        Raises:
            MachineProblem: Another user may have written the space.
            DamagedFile: It is not what was submitted.
        """
        from autotune.command_jobs.combinations import Combinations
        from autotune.command_jobs.space_copy import read_snapshot

        definition = read_snapshot(self.stage.paths)
        if definition.digest != self.stage.task.hash:
            raise DamagedFile(f"{self.stage.paths.space} is not the space that was submitted")
        if not is_own(self.stage.spec):
            spec = self.stage.paths.spec
            raise MachineProblem(f"its commands are not run: {spec} is not of this user's autotune; submit it again")
        return Combinations(definition)

    def check_job(self) -> None:
        _ = self.combinations
        check_executable(self.stage.paths.folder)
        self.device.check_here(self.stage.spec.target_key, self.stage.spec.machine)

    @property
    def fitness_key(self) -> str:
        return f"{self.stage.paths.folder.name}/{self.stage.task.hash}"

    def check(self, candidates: Sequence[Candidate] = ()) -> None:
        """Look for the programs that all candidates need."""
        from autotune.command_jobs.trial import missing_program

        if missing := missing_program(self.combinations.definition):
            purpose, program = missing
            raise CommandMissing(f"its {purpose} command needs {program!r}, which is not here; install it")

    def check_program(self) -> None:
        """Check the copies of the user's files, so that no candidate is blamed where one is damaged."""
        from autotune.command_jobs.space_copy import check_files

        check_files(self.stage.paths, self.combinations.definition)

    @property
    def reference_target(self) -> Mapping[str, Any] | None:
        return None

    def propose(
        self, pending: Sequence[Candidate], excluded: Collection[str]
    ) -> tuple[list[Candidate], dict[str, int]]:
        import numpy as np

        from autotune import strategies
        from autotune.strategies import samplers
        from autotune.strategies.space import Configuration, ValidConfiguration, View, first_valid
        from autotune.tvm_backend.search.knob_score import train_knob_score

        space = self.combinations.space
        taken = {candidate.hash for candidate in pending}.union(excluded)

        def validate(configurations: Sequence[Configuration]) -> list[ValidConfiguration | None]:
            allowed = space.allows(np.array(configurations)).tolist() if configurations else []
            return [
                ValidConfiguration(item, None) if fits and self._hash(item) not in taken else None
                for item, fits in zip(configurations, allowed, strict=True)
            ]

        trials = tuple(self._measured())
        configurations = filter(None, (self._configuration(candidate.trace) for candidate in pending))
        score = train_knob_score(space, trials)
        view = View(space, trials, score, validate, frozenset(configurations), reranks=False)
        tried_first = [
            item.configuration for item in first_valid(view, self._known_elsewhere(trials), self.stage.count)
        ]
        view = replace(view, pending=view.pending.union(tried_first))
        strategy = strategies.get(self.stage.spec.strategy)(view, proposals.seed_of(self.stage))
        settings = self.stage.config.search
        sampler = samplers.make(self.stage.spec.sampler, settings.epsilon, settings.synthesis)
        batch = tried_first + strategy.propose(self.stage.count - len(tried_first), sampler)
        counts = {"steps": strategy.steps, **({"known_elsewhere": len(tried_first)} if tried_first else {})}
        return [self._candidate(configuration) for configuration in batch], counts

    def _known_elsewhere(self, trials: Sequence[Measured]) -> list[tuple[int, ...]]:
        """Return the best combinations that other machines and workspaces have measured, while this one has few."""
        if len(trials) >= _TRIED_FIRST:
            return []
        workspace = self.stage.workspace
        keys = [key for key in target_keys(workspace) if key.startswith(COMMAND) and not is_private(key)]
        logs = [
            TuningLog(workspace.tuning_log(key, self.stage.task.hash).records)
            for key in keys
            if key != self.stage.spec.target_key
        ]
        best = [trial for log in logs for trial in log.fastest(_TRIED_FIRST)]
        return list(filter(None, (self._configuration(trial.trace) for trial in best)))

    def _measured(self) -> Iterator[Measured]:
        from autotune.strategies.space import Measured

        for trial in trials_to_learn_from(self.stage.log()):
            configuration = self._configuration(trial.trace)
            if configuration is not None:
                yield Measured(configuration, trial.median_us)

    def _configuration(self, trace: Any) -> tuple[int, ...] | None:
        """Return the configuration of a candidate or a trial; None if it is not of this space."""
        return self.combinations.configuration(trace.get("values")) if isinstance(trace, Mapping) else None

    def _hash(self, configuration: tuple[int, ...]) -> str:
        return self.combinations.definition.candidate_hash(self.combinations.values(configuration))

    def _candidate(self, configuration: tuple[int, ...]) -> Candidate:
        values = self.combinations.values(configuration)
        return Candidate(self.combinations.definition.candidate_hash(values), {"values": values}, [])

    def builder(self) -> Callable[[Candidate], str]:
        keeper = Keeper()

        def build(candidate: Candidate) -> str:
            self.trial(candidate, self.stage.artifacts / candidate.hash, keeper).build()
            return candidate.hash

        return build

    def trial(self, candidate: Candidate, folder: Path, keeper: Keeper) -> CommandTrial:
        """Return what runs the commands for a candidate.

        Raises:
            WorkerError: Its values are not a combination of the space.
        """
        from autotune.command_jobs.trial import CommandTrial

        configuration = self._configuration(candidate.trace)
        if configuration is None or self._hash(configuration) != candidate.hash:
            raise WorkerError("its values are not a combination of the space")
        values = self.combinations.values(configuration)
        return CommandTrial(self.combinations.definition, values, folder, self._settings, keeper)

    @property
    def _settings(self) -> TrialSettings:
        from autotune.command_jobs.trial import TrialSettings

        definition = self.combinations.definition
        config = self.stage.config
        measure_s = self.device.measure_timeout_s(config)
        gpu = self.stage.device.partition(":")[2] if definition.machine.gpu else ""
        return TrialSettings(
            files=self.stage.paths.files,
            cpus=self.stage.cpus[: definition.machine.cpus],
            gpu=gpu,
            build_s=self.device.build_timeout_s(config),
            measure_s=measure_s,
            check_s=(definition.check and definition.check.timeout_s) or measure_s,
        )

    def digest(self, library: Path) -> bytes:
        """Return a digest of the names and contents of the files of a trial's folder."""
        whole = b""
        for entry in walk(library):
            place = digest(f"{entry.depth}/{entry.name}".encode(errors="surrogateescape"))
            whole = digest(whole + place + _content(entry))
        return whole

    def is_lost(self, candidate: Candidate) -> bool:
        """Return whether its folder is gone; a command may have changed what is in it."""
        return not (self.stage.artifacts / candidate.library).is_dir()

    def open(self, truth: Reference | None) -> OpenDevice:
        return _OpenMachine(self, Keeper())

    def guard(self, quiet: Quiet) -> Guard:
        """Watch the CPUs; of a GPU nothing shows what disturbs it."""
        if self.combinations.definition.machine.gpu:
            return Guard.off()
        cpus = self._settings.cpus
        config = self.stage.config
        limit_s = self.device.measure_timeout_s(config) / 2
        return Guard(lambda: Watch.begin(cpus, quiet), config.measure.disturbed_again, limit_s)

    def results(
        self,
        candidates: Sequence[Candidate],
        truth: Reference | None,
        timer: Callable[[OpenDevice], Timer],
        lost: list[str],
    ) -> Iterator[tuple[Candidate, ItemResult]]:
        """Measure candidates. Each has processes of its own, so none suffers from another one."""
        settings = self._settings
        repeats = 1 + self.stage.config.measure.disturbed_again
        limit_s = repeats * settings.measure_s + settings.check_s + _SPARE_S
        return isolated(candidates, lambda: timer(self.open(truth)), limit_s=limit_s)

    def compile_model(self, library: Path) -> None:
        """Write down which candidate is the best; the command builds it where it is measured."""
        (best,) = self.stage.log().fastest(1)
        library.write_text(best.hash)

    def time_model(self, library: Path, tasks_ms: Sequence[float], processes: int, reference: bool) -> list[EntryTimes]:
        """Build the candidate again that was the best, and measure it, as often as asked for."""
        log = self.stage.log()
        (best,) = log.trials_of([entry for entry in log.entries() if entry.hash == library.read_text()])
        keeper = Keeper()
        try:
            with scratch_folder("confirm") as folder:
                trial = self.trial(Candidate(best.hash, best.trace, []), Path(folder, best.hash), keeper)
                trial.build()
                times = tuple(statistics.median(trial.measure(None)) / 1e3 for _ in range(processes))
                return [EntryTimes(self.stage.spec.all_entries[0].name, times, tasks_ms[0])]
        finally:
            keeper.close()

    def learn(self) -> int:
        """Return the number of trials: each search fits a model to them anew, which takes a tenth of a second."""
        return len(self.stage.log().entries())


def _content(entry: TreeEntry) -> bytes:
    """Return a digest of what a file holds, or where a link leads; nothing of all others."""
    if stat.S_ISREG(entry.status.st_mode):
        return file_digest(entry.name, entry.parent)
    if stat.S_ISLNK(entry.status.st_mode):
        return digest(os.fsencode(os.readlink(entry.name, dir_fd=entry.parent)))
    return b""


class _OpenMachine:
    """The machine, as one process measures candidates on it."""

    def __init__(self, bench: CommandBench, keeper: Keeper) -> None:
        self._bench = bench
        self._keeper = keeper

    def time(self, candidate: Candidate, best_us: float | None) -> list[float]:
        """Measure a candidate; see `CommandTrial.measure`."""
        return self._trial(candidate).measure(best_us)

    def verify(self, candidate: Candidate) -> float:
        """Run the check command; see `CommandTrial.check`."""
        if not self._bench.stage.config.measure.verify:
            return 0.0
        started = time.perf_counter()
        self._trial(candidate).check()
        return time.perf_counter() - started

    def _trial(self, candidate: Candidate) -> CommandTrial:
        return self._bench.trial(candidate, self._bench.stage.artifacts / candidate.library, self._keeper)
