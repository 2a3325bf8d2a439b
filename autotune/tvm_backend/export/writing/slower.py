"""Which kernels hold a library back that is slower than the model as submitted, and whether more trials may help."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

_SLOWER = 1.02  # times the reference's time. Processes differ by less.
_MOST = 3  # kernels that are named
_LIKELY = 0.5  # the part of its distance from the machine's limit that more trials may take off a kernel


def slower(
    reference: str, latencies: Mapping[str, Any], kernels: Sequence[Mapping[str, Any]], tunable: Collection[str]
) -> dict[str, Any] | None:
    """Return why a library is slower than the model as submitted; None if it is not, or that was not timed.

    Args:
        reference: The runtime of the model as submitted.
        latencies: The part of the report that is about latencies.
        kernels: The part of the report that is about kernels.
        tunable: The names of the tasks that trials can make faster.

    Returns:
        `than`, the reference; `ratio`, our time divided by its; `kernels`, the few that are furthest from what the
        machine allows, each with its `name`, its `share` of the model's time and `of_limit`, its speed as a part of
        what the machine allows, None where that is not known; `between`, the share of the time that is in no kernel;
        and `more_trials`, whether they may close the gap.
    """
    shares = latencies.get(f"share_of_{reference}")
    if not shares or shares[0] < _SLOWER:
        return None
    tuned_us = latencies["latency"]["tuned_ms"] * 1e3
    spare = {kernel["name"]: kernel["us"] - (kernel["least_us"] or 0.0) for kernel in kernels}
    furthest = sorted(kernels, key=lambda kernel: -spare[kernel["name"]])[:_MOST]
    gain_us = _LIKELY * sum(spare[kernel["name"]] for kernel in kernels if kernel["task"] in tunable)
    return {
        "than": reference,
        "ratio": shares[0],
        "kernels": [_described(kernel, tuned_us) for kernel in furthest],
        "between": max(0.0, 1 - sum(kernel["us"] for kernel in kernels) / tuned_us),
        "more_trials": gain_us >= tuned_us * (1 - 1 / shares[0]),
    }


def _described(kernel: Mapping[str, Any], tuned_us: float) -> dict[str, Any]:
    limit = None if kernel["least_us"] is None else min(1.0, kernel["least_us"] / kernel["us"])
    return {"name": kernel["name"], "share": kernel["us"] / tuned_us, "of_limit": limit}
