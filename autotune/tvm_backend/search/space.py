"""The design space of a task: its sketches, and schedules that are rebuilt from recorded traces."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Any

from autotune.errors import DamagedFile
from autotune.storage.formats import Candidate, Trial
from autotune.tvm_backend.sanitize import check_trace
from autotune.tvm_backend.search.block_names import with_names_of

_MOST_ARGUMENTS = 64
_QUIET = logging.getLogger("autotune.tvm")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False
_QUIET.setLevel(logging.CRITICAL)


def tune_context(program: Any, target: Any, *, strategy: Any = None, seed: int = 1, threads: int = 1) -> Any:
    """Make a TuneContext with MetaSchedule's default rules for the target. It takes about 3 ms.

    Args:
        strategy: TVM's search strategy, where the context is to search.
        seed: Of the random state.
        threads: Of the search. With more than one, results are not reproducible.
    """
    from tvm.s_tir import meta_schedule as ms

    from autotune.tvm_backend.search import schedule_rules  # noqa: F401  some blocks name its schedule rules

    return ms.TuneContext(
        program,
        target=target,
        space_generator="post-order-apply",
        search_strategy=strategy,
        rand_state=seed,
        num_threads=threads,
        logger=_QUIET,
    )


def is_too_wide(program: Any) -> bool:
    """Return whether a kernel has more than 64 arguments, as one that joins hundreds of tensors.

    MetaSchedule needs minutes to find schedules for it, and to apply one.
    """
    return len(program["main"].params) > _MOST_ARGUMENTS


def design_space(program: Any, target: Any) -> list[Any]:
    """Return the sketches of a program: schedules whose sampling instructions are the knobs.

    There are none where a rule of MetaSchedule fails, as some do on reductions over an axis of extent 1. There are
    none either for a program that `is_too_wide`.
    """
    if is_too_wide(program):
        return []
    try:
        return list(tune_context(program, target).generate_design_space())
    except ValueError:  # a check inside TVM
        return []


def tuning_record(item: Candidate | Trial, workload: Any, target: Any) -> Any:
    """Make TVM's tuning record of a candidate or a trial. The time of a failed trial is 1e10 seconds, as in TVM.

    Raises:
        DamagedFile: Its trace does more than schedule.
    """
    from tvm.s_tir import ScheduleError
    from tvm.s_tir.meta_schedule.database import TuningRecord

    try:
        check_trace(item.trace)
    except ValueError as error:
        raise DamagedFile(f"the trace of candidate {item.hash} is refused: {error}") from error
    seconds: list[float] = []
    if isinstance(item, Trial):
        seconds = [time / 1e6 for time in item.times_us] or [1e10]
    try:
        trace = TuningRecord.from_json([item.trace, seconds, None, item.args], workload).trace
    except ScheduleError:  # it may come from a model whose blocks have other names
        named = with_names_of(item.trace, workload.mod)
        trace = TuningRecord.from_json([named, seconds, None, item.args], workload).trace
    return TuningRecord(trace, workload, seconds or None, target, None)


def replay(items: Sequence[Candidate | Trial], program: Any, target: Any) -> list[Any]:
    """Rebuild TVM's measure candidates (schedule and argument shapes) from traces. It takes about 1.4 ms each."""
    from tvm.s_tir.meta_schedule.database import Workload

    workload = Workload(program)
    return [tuning_record(item, workload, target).as_measure_candidate() for item in items]


def plain_trace(trace: Any) -> Any:
    """Return a trace without postprocessing in TVM's JSON form, made of Python's containers and numbers only."""
    return _plain(trace.as_json(True))


def _plain(value: Any) -> Any:
    if isinstance(value, (str, int, float)) or value is None:
        return value
    if hasattr(value, "items"):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "__len__"):
        return [_plain(item) for item in value]
    return _plain(value.value)


def before_postprocessing(trace: Any) -> list[Any]:
    """Return the instructions of a trace in JSON form, up to where its postprocessing begins."""
    return list(itertools.takewhile(lambda item: item[0] != "EnterPostproc", trace[0]))


def sampled(trace: Any) -> list[Any]:
    """Return the decisions of the sampling instructions of a trace in JSON form, in order.

    Raises:
        IndexError, KeyError, TypeError, ValueError: It is not a trace, or one of its decisions is missing.
    """
    decided = {int(index): decision for index, decision in trace[1]}
    return [decided[at] for at, item in enumerate(trace[0]) if str(item[0]).startswith("Sample")]


def to_candidate(measure_candidate: Any, hash: str) -> Candidate:
    """Make a candidate of a schedule that the search found.

    Args:
        measure_candidate: TVM's, with the schedule and the argument shapes.
        hash: Of the scheduled program.
    """
    # A tuning record keeps index maps, as in the schedules for tensor cores, as objects. A trace writes them out.
    trace, args = measure_candidate.sch.trace, measure_candidate.args_info
    return Candidate(hash, _plain(trace.as_json()), [_plain(item.as_json()) for item in args])
