"""A convolution computed by Winograd's algorithm, from the command line to the exported library."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def model(convolution, tmp_path):
    return convolution(tmp_path / "layer.onnx", (1, 32, 24, 24), 32, tail=True)


@pytest.mark.slow
def test_a_convolution_by_winograd_is_tuned_verified_and_handed_over(user, model, tmp_path):
    user.ok("submit", model, "--trials", 4, "--trials-per-round", 4)
    user.ok("daemon", "run", "--drain")
    (job,) = user.status()
    assert (job["state"], job["trials_done"]) == ("done", 4)
    (task,) = (task for task in job["tasks"] if task["name"].startswith("winograd"))
    assert task["best_us"] > 0
    report = json.loads(user.ok("export", "last", "--output", tmp_path / "out", "--json"))
    assert report["largest_relative_error"] < 1e-4
    user.settle("tolerance = 1e-12\n")  # the last section of the file is [export]
    refused = user.run("export", "last", "--output", tmp_path / "exact")
    assert refused.returncode == 1
    assert "--no-winograd" in refused.stderr.splitlines()[-1]


def test_winograd_is_left_out_where_the_user_says_so(user, model):
    assert "winograd" in user.ok("submit", model, "--dry-run")
    user.ok("submit", model, "--no-winograd", "-q")
    (job,) = user.status()
    assert job["tasks"] and not any("winograd" in task["name"] for task in job["tasks"])
