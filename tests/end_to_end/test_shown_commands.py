"""Every command that README, CONTRIBUTING and docs/ show is run by a test, or stands here with where or why not.

A command counts as run if a page's script runs the same verb with at least the same options.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..docs.conftest import PAGES, ROOT, commands, name
from .guide_runs import GUIDES
from .test_guides import bare, chosen, command_lines, script

HOURS = "minutes to hours of measuring"
RAY = "it breaks a cluster for minutes"
# The beginning of a command: the test that runs it, or why none does.
ELSEWHERE = {
    "autotune daemon run --until": "tests/end_to_end/test_daemon_hours.py",
    "autotune daemon run --policy": "tests/end_to_end/test_daemon_hours.py starts the daemon with it",
    "autotune retry JOB --here": "tests/faults/test_machine.py",
    "autotune retry vgg16 --here": "tests/faults/test_machine.py",
    "autotune retune all": "tests/commands/test_retune.py has what it does",
    "autotune retry JOB": "tests/faults/test_no_times.py",
    "autotune trials export FILE JOB --format t4": "tests/commands/test_t4_file.py",
    "autotune export resnet18 --output lib --frozen": "tests/end_to_end/test_tuning.py",
    "autotune submit model.pt2": "tests/end_to_end/test_pytorch.py",
    "autotune submit hand_landmark.tflite": "tests/end_to_end/test_tflite.py",
    "autotune submit MODEL.tflite": "tests/end_to_end/test_tflite.py",
    "podman build": "it needs podman",
    "python scripts/chaos/fuzz_files.py t1 --count": "tests/scripts/test_fuzz_files.py, with fewer",
    "python scripts/chaos/fuzz_plans.py --count 0 --read": "tests/scripts/test_fuzz_plans.py, with fewer",
    "python scripts/chaos/fuzz_models.py": "tests/scripts/test_fuzz_models.py",
    "python scripts/chaos/fuzz_traces.py": "tests/scripts/test_fuzz_traces.py",
    "python scripts/chaos/fuzz_trials.py": "tests/scripts/test_fuzz_trials.py",
    "scripts/bench/headline.sh": HOURS,
    "python scripts/gpu/bench_gpu.py": "tests/scripts/test_bench_gpu.py, as far as it needs no GPU",
    "python scripts/gpu/check_schedules.py": "tests/cuda_stand_in; with five kinds it takes minutes",
    "python scripts/gpu/forecast.py": "tests/scripts/test_forecast.py",
    "python scripts/chaos/kill.py": "tests/scripts/kills/test_kill.py plays two rounds of it",
    "python scripts/chaos/cluster.py": RAY,
    "python scripts/bench/": HOURS,
    "python scripts/models/make_models.py": "tests/scripts/test_make_models.py",
    "python scripts/models/model_zoo.py": "tests/scripts/test_model_zoo.py; with models it takes hours",
    "python scripts/chaos/soak.py": "tests/scripts/test_soak.py; it takes half an hour",
    "python scripts/docs/write_screenshots.py": "it needs a browser and a tuned workspace; its pictures are looked at",
    "scripts/test.sh": "it runs these tests",
    "python scripts/models/train_prior.py": "tests/scripts/test_train_prior.py",
}
SHOWN = [
    pytest.param(command, id=f"{name(page)}: {command}")
    for page in PAGES
    if name(page) != "CHANGELOG.md" and "reference/commands" not in name(page)
    for command in dict.fromkeys(commands(page))
]


def form(line: str) -> tuple[str, frozenset[str]] | None:
    """The verb of a command line of autotune, and the options. None for other programs."""
    if not line.startswith("autotune "):
        return None
    words = line.split()[1:]
    verb = " ".join(words[: 2 if words[0] in ("daemon", "trials") else 1])
    return verb, frozenset(word.split("=")[0] for word in words if re.match(r"--[a-z]", word))


def run_lines() -> list[str]:
    """The commands that the scripts of the pages run, one for each part between `;`, `&&` and the like."""
    texts = [script(guide) for guide in GUIDES] + ["\n".join(command_lines("docs/getting-started.md"))]
    lines = [bare(line) for text in texts for line in text.splitlines() if not line.startswith("echo ")]
    parts = [part.strip() for line in lines for part in re.split(r"[;|&(){}]", line)]
    parts = [re.sub(r'^.*"\$TOOLS/autotune"', "autotune", part) for part in parts]
    return [re.sub(r"^(\w+=\S* )+", "", " ".join(part.split())) for part in parts if part]


def is_run(line: str, lines: list[str]) -> bool:
    if " ".join(line.split()) in lines:
        return True
    shown = form(line)
    forms = [form(ran) for ran in lines]
    return shown is not None and any(ran and ran[0] == shown[0] and shown[1] <= ran[1] for ran in forms)


@pytest.mark.parametrize("line", SHOWN)
def test_a_command_is_run_or_a_reason_says_why_not(line: str) -> None:
    line = re.sub(r"^\w+=\$\((.*)\)$", r"\1", line)
    assert chosen(ELSEWHERE, line) is not None or is_run(line, run_lines())


def test_a_command_that_no_test_runs_is_found() -> None:
    lines = run_lines()
    assert is_run("autotune export JOB --output lib", lines)
    assert not is_run("autotune export JOB --everything", lines)
    assert not is_run("autotune daemon frobnicate", lines)
    assert not is_run("python scripts/no_such.py", lines)


def test_no_reason_is_of_a_command_that_no_page_shows() -> None:
    lines = [str(item.values[0]) for item in SHOWN]
    assert [key for key in ELSEWHERE if not any(line.startswith(key) for line in lines)] == []


def test_the_tests_that_run_a_command_name_it() -> None:
    for key, reason in ELSEWHERE.items():
        parsed = form(key)
        words = [*parsed[0].split(), *parsed[1]] if parsed else [Path(key.split()[-1]).stem]
        for test in re.findall(r"tests/\S+\.py", reason):
            assert [word for word in words if word not in (ROOT / test).read_text()] == [], test
