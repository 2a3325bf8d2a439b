"""scripts/gpu/rates.py: how close jobs came to what building and measuring allow."""

from __future__ import annotations

import pytest

from autotune.errors import BadState
from autotune.storage.journal import StageDone


@pytest.fixture(scope="module")
def rates(load_script):
    return load_script("rates").rates


def stage(kind, began, seconds, cpus=(0,), device="", **summary):
    return StageDone(kind=kind, began=1e9 + began, seconds=seconds, cpus=cpus, device=device, summary=summary)


def test_the_rate_is_compared_with_the_scarcer_of_cpus_and_devices(rates):
    stages = [
        stage("search", 0, 4),
        stage("build", 4, 12, cpus=(1,), built=10),
        stage("measure", 16, 4, device="cuda:0", measured=9, failed=1),
    ]
    assert rates(stages) == (
        "10 trials in 20 s: 0.50 a second; CPUs (2) could prepare 1.25, devices (1) measure 2.50; 40% of the lesser"
    )


def test_jobs_without_trials_are_refused(rates):
    with pytest.raises(BadState, match="have measured nothing"):
        rates([stage("search", 0, 4)])
