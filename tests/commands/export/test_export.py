"""What `export` refuses before it compiles anything, and what it says when it is done."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune.commands.export.export import export, registrable
from autotune.commands.export.export_options import ExportOptions
from autotune.config import Config
from autotune.errors import BadInput, BadState, Busy
from autotune.storage.locks import sole_writer
from autotune.storage.model_digest import ModelDigest
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.quantisation import Quantisation


@pytest.mark.parametrize(
    ("target", "options", "says"),
    [
        ("cuda", {"source": True}, "^--source is for CPUs; 0001-net was tuned for cuda$"),
        (
            "llvm",
            {"untuned": True, "quick": True},
            "^--untuned times the untuned model, and --quick times nothing",
        ),
        ("llvm", {"threads": "auto", "frozen": True}, "^--threads auto times the library, and --frozen times nothing"),
        ("llvm", {"threads": 0}, "^--threads 0: give auto, or a number from 1 to "),
        ("cuda", {"threads": 1}, "^--threads is for the CPUs of this machine$"),
        ("llvm", {"retime": True, "quick": True}, "^--retime times the best kernels again, and --quick times nothing"),
    ],
)
def test_options_that_contradict_the_job_or_each_other_are_refused(
    workspace: Workspace, make_job: Callable[..., JobPaths], target: str, options: dict[str, bool], says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        export(workspace, Config(), make_job(target=target), workspace.root / "out", print, ExportOptions(**options))
    assert not (workspace.root / "out").exists()


def test_source_that_the_user_has_edited_is_not_written_over(
    workspace: Workspace, make_job: Callable[..., JobPaths]
) -> None:
    mine = workspace.root / "out" / "source" / "network.cpp"
    mine.parent.mkdir(parents=True)
    mine.write_text("edited")
    with pytest.raises(BadInput, match=r"out/source/network.cpp was edited .*; give a new folder"):
        export(workspace, Config(), make_job(), workspace.root / "out", print, ExportOptions(source=True))
    assert mine.read_text() == "edited"


def test_of_two_exports_to_one_folder_the_second_is_refused(
    workspace: Workspace, make_job: Callable[..., JobPaths]
) -> None:
    output = workspace.root / "out"
    output.mkdir()
    with sole_writer(output), pytest.raises(Busy, match=f"another process writes to {output}; wait for it"):
        export(workspace, Config(), make_job(), output, print)
    assert not list(output.iterdir())


@pytest.mark.parametrize(
    ("cost", "drop", "says"),
    [
        (
            {"error": 0.04, "agreement": 0.97},
            0.03,
            "^0001-net in int8 gives another top-1 answer .* for 3.0% of the 200 calibration .*--max-drop allows 2.0%",
        ),
        # answers that were wrong may change
        (
            {"error": 0.04, "agreement": 0.9, "right": 0.71, "right_before": 0.72},
            0.01,
            "in int8 is less often right, by 1.0% of the 200 .*--max-drop allows 0.0%",
        ),
        (
            {"error": 0.04, "agreement": 0.9, "score": -11.0, "score_before": -10.0},
            0.1,
            "in int8 scores -11 by the command of --accuracy, 10.0% less than the -10 in float32; .* allows 9.0%",
        ),
    ],
)
def test_a_quantised_model_that_lost_too_much_is_not_exported(
    workspace: Workspace, make_job: Callable[..., JobPaths], cost: dict[str, float], drop: float, says: str
) -> None:
    quantisation = Quantisation(samples=200, **cost)
    assert quantisation.drop == pytest.approx(drop) and quantisation.within(drop + 0.01)
    paths = make_job(precision="int8", max_drop=drop - 0.01, quantisation=quantisation)
    with pytest.raises(BadState, match=says):
        export(workspace, Config(), paths, workspace.root / "out", print)


def test_only_a_library_that_programs_would_run_is_registered(make_job: Callable[..., JobPaths]) -> None:
    digest = ModelDigest(1, "ab")
    assert registrable(make_job(digest=digest)) == digest
    with pytest.raises(BadInput, match="0002-gpu was tuned for something else"):
        registrable(make_job(id=2, name="gpu", target="cuda", digest=digest))
    with pytest.raises(BadInput, match="without a digest; submit it again"):
        registrable(make_job(id=3, name="old"))
