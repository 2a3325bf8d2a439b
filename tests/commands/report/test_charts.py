"""The charts of a report, as SVG."""

from __future__ import annotations

import pytest

from autotune.commands.references import KernelFacts, Limits
from autotune.commands.report import charts

LIMITS = Limits(gflops=200.0, gb_per_s=40.0)


def kernel(rate: float) -> KernelFacts:
    return KernelFacts("conv", None, 1, us=100.0, gflop=0.05, bytes=10**6, least_us=60.0, rate=rate)


@pytest.mark.parametrize(("rates", "several"), [((1.0, 1.0), False), ((1.0, 4.0), True)])
def test_kernels_of_several_precisions_have_a_roof_for_each(rates: tuple[float, ...], several: bool) -> None:
    pytest.importorskip("matplotlib")
    drawn = charts.roofline([kernel(rate) for rate in rates], LIMITS)
    assert ("by the precision" in drawn) == several


def test_a_label_that_would_lie_over_that_of_a_faster_trial_is_left_out() -> None:
    assert charts._Axis.of_times([10.0, 10.1, 20.0]).labels() == [("10", 1.0), ("20", 0.0)]
