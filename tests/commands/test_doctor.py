"""What `doctor` says of boards, and that what it cannot find out does not keep it from the rest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune.commands import doctor
from autotune.commands.doctor import Finding
from autotune.config import load_config
from autotune.machine.gpus import CudaDevice
from autotune.storage.paths import Workspace

from ..rpc_lab import Lab


@pytest.fixture
def say(workspace: Workspace, lab: Lab) -> Callable[[], list[Finding]]:
    workspace.config.write_text(workspace.config.read_text() + lab.section())
    return lambda: doctor._boards(load_config(workspace.config))


def test_a_tracker_is_asked_for_its_boards(say: Callable[[], list[Finding]], lab: Lab) -> None:
    (finding,) = say()
    assert not finding.ok and not finding.fatal and "knows no board with the key 'box'" in finding.text
    lab.start_server()
    lab.await_boards(1)
    (finding,) = say()
    assert finding.ok and finding.text.endswith(f"1 boards at the tracker 127.0.0.1:{lab.port}, 1 free")


def test_a_tracker_that_others_can_reach_is_warned_of(workspace: Workspace, lab: Lab) -> None:
    text = lab.section().replace("127.0.0.1", "0.0.0.0")
    workspace.config.write_text(workspace.config.read_text() + text)
    warning, answer = doctor._boards(load_config(workspace.config))
    assert not warning.ok and not warning.fatal and "no authentication" in warning.text
    assert "knows no board" in answer.text


def test_without_boards_there_is_nothing_to_say(workspace: Workspace) -> None:
    assert doctor._boards(load_config(workspace.config)) == doctor._boards(None) == []


def test_a_tvm_that_was_never_tested_and_versions_that_clash_do_not_hide_the_rest(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU is tried out with TVM."""
    monkeypatch.setattr(doctor, "cuda_devices", lambda: [CudaDevice(0, "H200", "sm_90", "")])
    monkeypatch.setattr("autotune.tvm_backend.load.installed_version", lambda package: "0.0")
    monkeypatch.setattr(doctor, "clashes", lambda pinned: ["a needs b", "c needs d"])
    findings = doctor.examine(workspace)
    (clash,) = [finding for finding in findings if "a needs b; c needs d" in finding.text]
    assert clash.fatal and not clash.ok
    assert sum("0.0" in finding.text and not finding.ok for finding in findings) == 2
    assert "no daemon is running" in findings[-1].text
