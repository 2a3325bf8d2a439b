"""Known schedules: what did well on a task elsewhere, rebuilt for this target and this version of TVM."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from autotune.storage.formats import Candidate, Trial
from autotune.tvm_backend.search.shared_memory import postprocessors
from autotune.tvm_backend.search.space import to_candidate, tuning_record
from autotune.tvm_backend.search.tasks import program_hash


def rebuild(program: Any, target: Any, trials: Sequence[Trial], known: Collection[str]) -> Iterator[Candidate]:
    """Yield candidates with the decisions of trials, in order, each after the postprocessors of this target.

    A schedule that does not apply to the program any more is left out.

    Args:
        program: The tensor program of the task.
        target: TVM's target.
        trials: Trials of this program, or of one that differs little.
        known: Hashes of programs that must not be proposed.
    """
    accepting = postprocessors(program, target)
    seen = set(known)
    for trial in trials:
        schedule = _schedule(program, target, trial, accepting)
        if schedule is not None and (hash := program_hash(schedule.mod)) not in seen:
            seen.add(hash)
            yield _candidate(schedule, hash)


def _schedule(program: Any, target: Any, trial: Trial, accepting: Sequence[Callable[[Any], bool]]) -> Any:
    """Return the scheduled program; None where the schedule is refused."""
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule.database import Workload

    schedule = Schedule(program, seed=1, debug_mask="none", error_render_level="none")
    try:
        trace = tuning_record(trial, Workload(program), target).trace
        trace.apply_to_schedule(schedule, True)
        schedule.enter_postproc()
        valid = all(accepts(schedule) for accepts in accepting)
    except Exception:  # TVM raises many kinds; each says that the schedule does not fit
        return None
    return schedule if valid else None


def _candidate(schedule: Any, hash: str) -> Candidate:
    from tvm.s_tir.meta_schedule import MeasureCandidate
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    arguments = ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
    return to_candidate(MeasureCandidate(schedule, arguments), hash)
