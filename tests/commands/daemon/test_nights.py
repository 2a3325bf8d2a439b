"""Entries for cron and units for systemd: right about paths and the environment, put in and taken out exactly."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from autotune.cli import app
from autotune.commands.daemon import nights
from autotune.commands.daemon.nights import Nights
from autotune.errors import BadInput, BadState, DaemonRunning, TimedOut
from autotune.storage.paths import Workspace

# What the real ones do with `-l`, `-r`, `-` and `--user`: a table in a file, and a note of every call.
CRONTAB = """#!/bin/sh
table="$(dirname "$0")/table"
case "$1" in
-l) if [ -f "$table" ]; then cat "$table"; else echo "no crontab for user" >&2; exit 1; fi ;;
-r) rm "$table" ;;
-) cat > "$table" ;;
esac
"""
SYSTEMCTL = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
"""
OTHERS = b"MAILTO=me\n# \xe9t\xe9 in Latin-1, and a line of another system\r\n5 4 * * 0 backup --all\n# no newline"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tools"
    folder.mkdir()
    for name, text in (("crontab", CRONTAB), ("systemctl", SYSTEMCTL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return folder


@pytest.fixture(params=["plain", 'it\'s 100% "quoted" $HOME'])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path / request.param)
    workspace.root.mkdir()
    return workspace


def run(workspace: Workspace, *words: str) -> Result:
    return CliRunner().invoke(app, ["--workspace", str(workspace.root), "daemon", *words])


@pytest.mark.parametrize("name", ["ends with a backslash\\", "ends with a blank "])
@pytest.mark.parametrize("system", ["cron", "systemd"])
def test_a_path_whose_end_would_be_misread_is_refused(tools: Path, tmp_path: Path, name: str, system: str) -> None:
    (tmp_path / name).mkdir()
    refused = run(Workspace(tmp_path / name), "install", system, "--window", "22:00-07:00")
    assert isinstance(refused.exception, BadInput) and "rename it" in str(refused.exception)


def install(workspace: Workspace, system: str, window: str = "22:00-07:00") -> None:
    done = run(workspace, "install", system, "--window", window, "--write")
    assert done.exit_code == 0, done.output


class TestCron:
    def test_an_entry_runs_the_daemon_of_the_workspace_in_an_empty_environment(self, place: Workspace) -> None:
        """What cron hands to the shell is run, with a Python that says what it was called with."""
        wanted = Nights.of(place, "22:00-07:00", 5.0)
        place.logs.mkdir()
        fake = place.root.parent / "python"
        fake.write_text('#!/bin/sh\necho "$AUTOTUNE_WORKSPACE|$PWD|$*"; command -v sh >/dev/null && echo "$PATH"\n')
        fake.chmod(0o755)
        lines = nights.cron_entries(wanted).splitlines()[1:-1]
        for line, start in zip(lines, ("0 22 * * * ", "@reboot "), strict=True):
            command = line.removeprefix(start).replace(r"\%", "%").replace(shlex.quote(sys.executable), str(fake), 1)
            subprocess.run(["/bin/sh", "-c", command], env={}, cwd="/", check=True)
        said = place.daemon_log.read_text().splitlines()
        assert said[0] == said[2]
        assert said[0] == f"{place.root}|{place.root}|-m autotune daemon run --window 22:00-07:00 --until 07:00"
        assert str(Path(sys.executable).parent) in said[1].split(":") and "/usr/bin" in said[1].split(":")

    def test_the_daemon_starts_in_that_environment(self, workspace: Workspace) -> None:
        wanted = Nights.of(workspace, "22:00-07:00", 5.0)
        words = [*wanted.command[:3], "status", "--json"]
        done = subprocess.run(words, env=dict(wanted.environment), cwd="/", capture_output=True, text=True, check=True)
        assert '"jobs": []' in done.stdout

    def test_percent_signs_are_escaped_and_a_line_that_cron_would_cut_off_is_refused(self, tmp_path: Path) -> None:
        place = Workspace(tmp_path / "100%")
        lines = nights.cron_entries(Nights.of(place, "22:00-07:00", 5.0)).splitlines()[1:-1]
        assert lines and all("%" not in line.replace(r"\%", "") for line in lines)
        long = Workspace(tmp_path / "/".join(["long" * 40] * 2))
        with pytest.raises(BadInput, match="longer than cron reads"):
            nights.cron_entries(Nights.of(long, "22:00-07:00", 5.0))

    @pytest.mark.parametrize("others", [b"", OTHERS, OTHERS + b"\n"])
    def test_what_is_put_in_is_taken_out_exactly(self, place: Workspace, tools: Path, others: bytes) -> None:
        table = tools / "table"
        if others:
            table.write_bytes(others)
        shown = run(place, "install", "cron", "--window", "22:00-07:00")
        assert "@reboot" in shown.stdout and "nothing was installed" in shown.stderr
        assert table.exists() == bool(others)
        install(place, "cron")
        assert table.read_bytes().startswith(others) and b"0 22 * * *" in table.read_bytes()
        assert run(place, "uninstall", "cron").exit_code == 0
        assert table.read_bytes() == OTHERS + b"\n" if others else not table.exists()

    def test_a_second_window_replaces_the_first_and_leaves_other_workspaces_alone(
        self, place: Workspace, workspace: Workspace, tools: Path
    ) -> None:
        install(workspace, "cron")
        other = (tools / "table").read_text()
        install(place, "cron")
        install(place, "cron", "01:30-05:00")
        text = (tools / "table").read_text()
        assert "30 1 * * *" in text and text.count("@reboot") == 2 and other in text
        assert run(place, "uninstall", "cron").exit_code == 0
        assert (tools / "table").read_text() == other

    def test_where_there_is_nothing_to_take_out_the_workspace_is_named_in_full(
        self, place: Workspace, tools: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(place.root)
        for system in ("cron", "systemd"):
            done = run(Workspace(Path()), "uninstall", system)
            assert isinstance(done.exception, BadState) and f"for {place.root}" in str(done.exception)
        assert not (tools / "table").exists()

    def test_a_crontab_that_was_edited_in_between_is_left_alone(self, workspace: Workspace, tools: Path) -> None:
        install(workspace, "cron")
        broken = "".join((tools / "table").read_text().splitlines(keepends=True)[:-1])
        (tools / "table").write_text(broken)
        for words in (["uninstall", "cron"], ["install", "cron", "--window", "1:00-2:00", "--write"]):
            done = run(workspace, *words)
            assert isinstance(done.exception, BadInput) and "crontab -e" in str(done.exception)
        assert (tools / "table").read_text() == broken


class TestSystemd:
    def test_units_are_put_in_and_taken_out(self, place: Workspace, tools: Path, tmp_path: Path) -> None:
        folder = tmp_path / "config" / "systemd" / "user"
        folder.mkdir(parents=True)
        (folder / "other.timer").write_text("")
        install(place, "systemd")
        name = nights.unit_name(place)
        assert {path.name for path in folder.iterdir()} == {"other.timer", f"{name}.timer", f"{name}.service"}
        assert run(place, "uninstall", "systemd").exit_code == 0
        assert [path.name for path in folder.iterdir()] == ["other.timer"]
        assert (tools / "calls").read_text().splitlines() == [
            "--user daemon-reload",
            f"--user enable --now {name}.timer",
            f"--user disable --now {name}.timer",
            "--user daemon-reload",
        ]

    @pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
    def test_systemd_finds_nothing_wrong_with_them(self, place: Workspace, tools: Path, tmp_path: Path) -> None:
        install(place, "systemd")
        units = sorted(map(str, (tmp_path / "config" / "systemd" / "user").iterdir()))
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
        words = ["systemd-analyze", "--user", "--man=no", "verify", *units]
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert [line for line in done.stderr.splitlines() if nights.unit_name(place) in line] == []
        assert "Failed to initialize" not in done.stderr

    def test_a_service_escapes_its_words_and_a_night_that_ends_early_is_no_failure(self, tmp_path: Path) -> None:
        text = nights.service(Nights.of(Workspace(tmp_path / 'a%b"c'), "22:00-07:00", 5.0))
        assert f'"AUTOTUNE_WORKSPACE={tmp_path}/a%%b\\"c"' in text
        assert f'WorkingDirectory={tmp_path}/a%%b"c' in text
        assert "TimeoutStopSec=35" in text
        (line,) = [line for line in text.splitlines() if "Success" in line]
        fine = {DaemonRunning.exit_code, TimedOut.exit_code, 128 + signal.SIGTERM}
        assert set(map(int, line.partition("=")[2].split())) == fine


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["install", "launchd", "--window", "22:00-07:00"], "give cron or systemd"),
        (["install", "cron", "--window", "ten"], "--window: 'ten' is no window"),
    ],
)
def test_what_is_wrong_is_named(workspace: Workspace, words: list[str], wrong: str) -> None:
    assert wrong in str(run(workspace, *words).exception)


@pytest.mark.parametrize(("system", "program"), [("cron", "crontab"), ("systemd", "systemctl")])
def test_a_machine_without_it_says_what_needs_neither_and_writes_nothing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, program: str
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for words in (["install", system, "--window", "22:00-07:00", "--write"], ["uninstall", system]):
        said = str(run(workspace, *words).exception)
        assert f"{program} is not installed" in said and "`autotune daemon start --window 22:00-07:00`" in said
    shown = run(workspace, "install", system, "--window", "22:00-07:00")
    assert shown.exit_code == 0 and f"{program} is not installed" in shown.stderr
    assert not (tmp_path / "config").exists()


def test_a_path_that_is_no_text_has_no_units(tmp_path: Path, tools: Path) -> None:
    workspace = Workspace(Path(os.fsdecode(bytes(tmp_path) + b"/\xff")))
    workspace.root.mkdir()
    assert "there are no units" in str(run(workspace, "uninstall", "systemd").exception)
    assert "cannot be written" in str(run(workspace, "install", "systemd", "--window", "1:00-2:00").exception)
