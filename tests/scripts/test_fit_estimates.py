"""The costs of the estimates for GPUs are those that their fit gives, and rank what it has not seen."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from autotune.tvm_backend.search.occupancy import NEST_COSTS
from autotune.tvm_backend.search.tensor_cores import TENSOR_COSTS

SCRIPT = Path(__file__).parents[2] / "scripts/gpu/fit_estimates.py"


@pytest.mark.slow
def test_the_costs_are_those_of_the_fit_and_the_first_choice_of_a_network_it_has_not_seen_is_good():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True, timeout=600)
    for kind, costs in (("on tensor cores", TENSOR_COSTS), ("others", NEST_COSTS)):
        (numbers,) = re.findall(rf"^{kind}: (.*)$", done.stdout, re.MULTILINE)
        printed = {name: float(value) for name, value in re.findall(r"(\w+)=(\S+?)(?:,|$)", numbers)}
        assert printed == {name: pytest.approx(value) for name, value in asdict(costs).items()}
    unseen = re.findall(r"left out .*: (.*)$", done.stdout, re.MULTILINE)
    assert len(unseen) == 4 and all(float(value) <= 1.3 for value in unseen)
