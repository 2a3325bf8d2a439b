"""Knows how long stages take: feeds the scarce device, looks a round ahead, and spends slots where they pay most.

Of all that could use a free CPU, the first that there is:
1. a job that starves, or that would miss its deadline;
2. where the work that is left ends no sooner than a job's own longest chain, that job: its end is the end of all;
3. for a device that is scarce (as much is left for it as for the CPUs) and short of batches, the job that brings it
   most measuring for the least CPU time;
4. the round that has begun, then the job whose next round promises most latency saved per second.
"""

from __future__ import annotations

import math

from autotune.planning.board import Board
from autotune.planning.offers import Lane, Offer, Rank, Step
from autotune.planning.policy import Policy
from autotune.planning.urgency import AGING_S, must_start_by, turn
from autotune.planning.view import StageView
from autotune.planning.work import ORDER, Work

_WORTH, _CHAIN, _FEED, _MUST = range(4)
# Jobs whose turns are this close count as equals, and what they gain decides.
_SAME_TURN_S = AGING_S / 8
# A chain is critical when this many times its length is as long as everything that is left.
_CHAIN_CAUTION = 2.0
# A device is scarce when what is left for it takes at least this share of what is left for the CPUs.
_SCARCE = 0.8
# Seconds of measuring begun for each device, as a multiple of the time that a round takes to reach it.
_BEGUN_RATIO = 3.0
_ROUNDS_PER_CPU = 3


class Rule(Policy):
    """The default."""

    name = "predictive"
    orders = 4
    rounds_per_task = 2
    forecasts = True

    def ranks(self, work: Work, stage: StageView, step: Step, board: Board) -> tuple[Rank, ...]:
        forecast, view = work.forecast, work.view
        at, id = ORDER[stage.kind], view.id
        bucket = turn(view)[0] // _SAME_TURN_S
        worth = board.worth(work, stage) if step == "begin" else 0.0
        need_s = max(forecast.chain_ms, forecast.cpu_ms // len(board.machine.cpus)) / 1000
        feed = forecast.cpu_ms / max(1, forecast.device_ms)
        return (
            (step == "begin", bucket, -worth, at, id),
            (-forecast.chain_ms, at, id),
            (at if step == "begin" else 0, feed, at, id),
            (must_start_by(view, need_s), at, id),
        )

    def cost(self, work: Work, stage: StageView, board: Board) -> float:
        # The job's mean, not the task's own cost: a budget is in trials, so that within a job what counts is the gain
        # of a trial; a task that compiles slowly would starve.
        count = work.view.trials_per_round
        build = work.seconds("build", board.estimates, count)
        return max(1e-3, build + work.seconds("measure", board.estimates, count))

    def measure(self, kind: str, board: Board) -> Offer | None:
        return (
            _measured(board, kind, _MUST, board.now)
            or _measured(board, kind, _CHAIN, -_horizon_ms(board) / _CHAIN_CAUTION)
            or _measured(board, kind, _WORTH)
        )

    def prepare(self, board: Board) -> Offer | None:
        kinds = _open_lanes(board)
        return (
            _pick(board, _MUST, kinds, board.now)
            or _pick(board, _CHAIN, kinds, -_horizon_ms(board) / _CHAIN_CAUTION)
            or _pick(board, _FEED, [kind for kind in kinds if _hungry(board, board.lanes[kind])])
            or _pick(board, _WORTH, kinds)
        )

    def fill(self, board: Board) -> Offer | None:
        return _soon_over(board, board.top("proceed"), board.top("begin", _open_lanes(board)))


def _open_lanes(board: Board) -> list[str]:
    return [kind for kind in board.lanes if _room(board, board.lanes[kind])]


def _soon_over(board: Board, *offers: Offer | None) -> Offer | None:
    until = board.busy_until()
    return next((offer for offer in offers if offer is not None and board.ends_at(offer) <= until), None)


def _pick(board: Board, order: int, begin_for: list[str], most: float = math.inf) -> Offer | None:
    """The least of rounds that go on and rounds that may begin, if its rank begins with `most` at most."""
    lanes = begin_for if order == _FEED else None
    offers = (board.top("proceed", lanes, order), board.top("begin", begin_for, order))
    found = min((offer for offer in offers if offer), key=lambda offer: offer.ranks[order], default=None)
    return found if found is not None and found.ranks[order][0] <= most else None


def _measured(board: Board, kind: str, order: int, most: float = math.inf) -> Offer | None:
    offer = board.top("measure", (kind,), order)
    return offer if offer is not None and offer.ranks[order][0] <= most else None


def _cpu_left_ms(board: Board) -> float:
    return sum(lane.cpu_ms for lane in board.lanes.values()) / len(board.machine.shared_cpus)


def _device_left_ms(board: Board, lane: Lane) -> float:
    return lane.device_ms / max(1, len(board.machine.kinds.get(lane.kind, ())))


def _horizon_ms(board: Board) -> float:
    """How long everything that is left takes at least, with every resource always busy."""
    return max(_cpu_left_ms(board), *(_device_left_ms(board, lane) for lane in board.lanes.values()), 0.0)


def _lead_ms(board: Board, lane: Lane) -> float:
    search = board.estimates.seconds("search", lane.kind, (), 16)
    return 1000 * (search + board.estimates.seconds("build", lane.kind, (), 16))


def _hungry(board: Board, lane: Lane) -> bool:
    """Whether a scarce device would run dry before a round that begins now reaches it."""
    devices = len(board.machine.kinds.get(lane.kind, ()))
    short = lane.supply_ms < devices * _lead_ms(board, lane)
    return short and _device_left_ms(board, lane) >= _SCARCE * _cpu_left_ms(board)


def _room(board: Board, lane: Lane) -> bool:
    """Whether a round for this kind of device may begin: enough to keep it fed, not so many that searches go blind."""
    if board.rounds_begun >= _ROUNDS_PER_CPU * len(board.machine.shared_cpus):
        return False
    devices = len(board.machine.kinds.get(lane.kind, ()))
    if not devices:
        return True  # nothing to keep fed: what can be prepared, is
    return lane.begun_ms <= _BEGUN_RATIO * devices * _lead_ms(board, lane) or not board.running
