"""Reading ``autotune.toml``: defaults, what is refused, and on which line."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from write_settings_page import settings

from autotune.config import Config, load_config
from autotune.device_settings import BoardSettings, DeviceSettings
from autotune.errors import ConfigError, DiskProblem


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("autotune.toml")


def refusal(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return str(caught.value)


def test_a_missing_or_empty_file_means_defaults(path: Path) -> None:
    assert load_config(path) == Config()
    path.write_text("# nothing\n")
    assert load_config(path) == Config()


def test_a_setting_replaces_its_default_and_no_other(path: Path) -> None:
    path.write_text("[job]\ntrials = 7\n[measure]\ntimeout_s = 3\n")
    config = load_config(path)
    assert config.job == dataclasses.replace(Config().job, trials=7)
    assert config.measure == dataclasses.replace(Config().measure, timeout_s=3.0)
    assert type(config.measure.timeout_s) is float, "a whole number is taken for a number"
    assert config.build == Config().build


def test_all_cpus_are_lent_and_locks_are_shared_unless_the_settings_say_otherwise(path: Path) -> None:
    assert Config().machine.usable_cpus == len(os.sched_getaffinity(0))
    assert Config().machine.lock_folder == Path("/tmp/autotune-locks")
    path.write_text("machine.cpu_slots = 1\nmachine.lock_dir = '/var/lock/at'\n")
    machine = load_config(path).machine
    assert (machine.usable_cpus, machine.lock_folder) == (1, Path("/var/lock/at"))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("\n" * 10 + "[job]\ntrails = 3\n", "12: unknown key 'trails' in [job]; did you mean 'trials'?"),
        ("[job]\nzzz = 3\n", "2: unknown key 'zzz' in [job]"),
        ("[job]\ntrials = 1\n\n[serch]\npopulation = 2\n", "4: unknown section [serch]; did you mean 'search'?"),
        ("\nfoo = 1\n", "2: unknown key 'foo'"),
        ("job = 3\n", "1: 'job' must be a section, not a whole number"),
        ("[[job]]\n", "1: 'job' must be a section, not a list"),
        ("[job]\ntrials = \n", "2: invalid value"),
    ],
)
def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_name(path: Path, text: str, fault: str) -> None:
    assert refusal(path, text) == f"autotune.toml:{fault}"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("job.trials = 0", "'trials' in [job] must be a whole number, at least 1, or auto, not 0"),
        ("job.trials_per_round = true", "'trials_per_round' in [job] must be a whole number, not true or false"),
        ("job.trials_per_round = 1.0", "'trials_per_round' in [job] must be a whole number, not a number"),
        ("job.trials_per_round = {a = 1}", "'trials_per_round' in [job] must be a whole number, not a section"),
        ("job.min_gain = 2020-01-01", "'min_gain' in [job] must be a number, not a date or time"),
        ("machine.lock_dir = 3", "'lock_dir' in [machine] must be text, not a whole number"),
        ("job.trials_per_round = 0", "'trials_per_round' in [job] must be at least 1, not 0"),
        ("search.epsilon = 1.5", "'epsilon' in [search] must be at most 1, not 1.5"),
        ("build.timeout_s = nan", "'timeout_s' in [build] must be a finite number below 2^63, not nan"),
        ("daemon.poll_s = 1e18", "'poll_s' in [daemon] must be at most 1000000000, not 1e+18"),
        ("machine.simulated_cpus = 10001", "'simulated_cpus' in [machine] must be at most 10000, not 10001"),
        (
            "machine.lock_dir = '~no-such-user/locks'",
            "'lock_dir' in [machine]: there is no home folder for '~no-such-user/locks'",
        ),
    ],
)
def test_a_wrong_value_is_refused(path: Path, line: str, fault: str) -> None:
    assert refusal(path, f"\n{line}\n") == f"autotune.toml:2: {fault}"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("job.trials = 5\njob.trails = 3\n", 2),
        ('[job]\n"tra\\u0069ls2" = 3\n', 2),
        ('"job" . "trails" = 3\n', 1),
        ("\njob = {trials = 4, trails = 3}\n", 2),
        ("[ job ]\n# trails = 1\n\n   trails=3 # why\n", 4),
        ("[job]\nx = '''\ntrails = 1\n'''\n", 2),
        ("machine.lock_dir = '''\n[job]\ntrails = 1\n'''\n[job]\ntrails = 1\n", 6),
        ("[job]\ntrails = [\n 1,\n\n 2]\n", 2),
        ("[job]\r\ntrials = 3\r\ntrails = 3\r\n", 3),
        ("[job]\n[job.trails]\na = 1\n", 2),
        ("[job]\ntrails = 3", 2),
    ],
)
def test_the_line_is_right_however_the_key_is_spelled(path: Path, text: str, line: int) -> None:
    path.write_bytes(text.encode())
    with pytest.raises(ConfigError, match=rf"^autotune\.toml:{line}: unknown key '"):
        load_config(path)


def test_what_cannot_be_read_as_text_is_refused_and_a_pipe_keeps_nobody_waiting(path: Path) -> None:
    path.write_bytes(b"[job]\n# \xff\n")
    with pytest.raises(ConfigError, match=r"^autotune\.toml:2: not UTF-8 text$"):
        load_config(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DiskProblem, match="cannot read autotune.toml: it is a pipe or a device"):
        load_config(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(DiskProblem, match="cannot read autotune.toml"):
        load_config(path)


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def test_every_setting_is_described_and_its_default_is_accepted(path: Path) -> None:
    described = settings()
    needed = {"key": "box", "target": "{}"}
    lines = [f"{s.section}.{s.key} = {_toml(s.default or needed.get(s.key, s.default))}" for s in described]
    path.write_text("\n".join(lines))
    boards = {"BOARD": BoardSettings(key="box", target="{}")}
    assert load_config(path) == Config(devices={"NAME": DeviceSettings()}, boards=boards)
    assert all(setting.doc and "\n" not in setting.doc for setting in described)
    assert len(described) == sum(
        len(dataclasses.fields(getattr(Config(), section.name)))
        for section in dataclasses.fields(Config)
        if section.name not in ("devices", "boards")
    ) + len(dataclasses.fields(DeviceSettings)) + len(dataclasses.fields(BoardSettings))


def test_a_number_below_its_bound_is_refused_for_every_numeric_setting(path: Path) -> None:
    for setting in settings():
        if not isinstance(setting.default, (bool, str)):
            kind = 'devices.BOARD.kind = "rpc"\n' if setting.section == "devices.BOARD" else ""
            assert "must be at least" in refusal(path, f"{kind}{setting.section}.{setting.key} = -1\n")


BOARD = '[devices.phone]\nkind = "rpc"\nkey = "rk3588"\n'
TARGET = """target = '{"kind": "llvm", "num-cores": 4}'\n"""


def test_boards_are_sections_of_devices(path: Path) -> None:
    path.write_text(BOARD + TARGET + '[devices.gpu]\nkind = "simulated"\n')
    config = load_config(path)
    assert set(config.devices) == {"gpu"} and config.boards["phone"].description["num-cores"] == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOARD, "1: [devices.phone] needs a target"),
        (BOARD + "target = 'llvm'\n", "4: 'target' in [devices.phone] must be an object in JSON"),
        (BOARD + TARGET + "speed = 2.0\n", "5: unknown key 'speed' in [devices.phone]"),
        (BOARD + TARGET + 'tracker = "lab"\n', "5: 'tracker' in [devices.phone] must be HOST:PORT, not 'lab'"),
        (BOARD.replace("phone", "cuda") + TARGET, "1: [devices.cuda]: boards need another name"),
        (BOARD.replace("rk3588", "a b") + TARGET, "3: 'key' in [devices.phone] must be letters, digits"),
        ("[boards.phone]\ncount = 2\n", "1: unknown section [boards]"),
    ],
)
def test_wrong_sections_of_boards_are_refused(path: Path, text: str, said: str) -> None:
    assert refusal(path, text).startswith(f"autotune.toml:{said}")


def test_measurements_must_leave_a_cpu_for_other_stages(path: Path) -> None:
    text = "[machine]\ncpu_slots = 2\nmeasure_cpus = 2\n"
    assert refusal(path, text).startswith("autotune.toml:3: 'measure_cpus' in [machine] must leave a CPU for other")
    path.write_text("[machine]\ncpu_slots = 2\nmeasure_cpus = 1\n")
    assert load_config(path).machine.measure_cpus == 1


class TestDevices:
    def test_each_has_a_section_of_its_own_name(self, path: Path) -> None:
        path.write_text('[devices.gpu0]\nkind = "simulated"\nmeasure_s = 2\n[devices.big-one]\nkind = "simulated"\n')
        devices = load_config(path).devices
        assert list(devices) == ["gpu0", "big-one"]
        assert (devices["gpu0"].measure_s, devices["gpu0"].build_s) == (2.0, 15.0)

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            ("[devices.a]\nbuild_s = 1\n", '1: [devices.a] needs a kind: "simulated" or "rpc"'),
            ("[devices.a]\nkind = 'cuda'\n", "2: 'kind' in [devices.a] must be simulated or rpc, not 'cuda'"),
            (
                "[devices.a]\nkind = 'simulated'\nbuild = 1\n",
                "3: unknown key 'build' in [devices.a]; did you mean 'build_s'?",
            ),
            (
                "[devices.a]\nkind = 'simulated'\n[devices.b]\nkind = 'simulated'\nspeed = 0\n",
                "5: 'speed' in [devices.b] must be at least 0.001, not 0",
            ),
            (
                "[devices.a]\nkind = 'simulated'\ntrials = 'no.jsonl'\n",
                "3: 'trials' in [devices.a]: there is no file no.jsonl",
            ),
            ("devices = 3\n", "1: 'devices' must be sections [devices.NAME], not a whole number"),
            ("[devices]\ngpu0 = 3\n", "2: 'gpu0' in [devices] must be a section [devices.NAME], not a whole number"),
            (
                "[devices.'a:b']\nkind = 'simulated'\n",
                "1: [devices.a:b]: use up to 32 letters, digits, dashes and underscores",
            ),
            ("[device.a]\n", "1: unknown section [device]; did you mean 'devices'?"),
        ],
    )
    def test_what_is_wrong_is_refused_with_its_line(self, path: Path, text: str, fault: str) -> None:
        assert refusal(path, text) == f"autotune.toml:{fault}"


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 300_000])
def test_a_number_that_python_does_not_read_or_write_has_its_line(tmp_path: Path, number: str) -> None:
    path = tmp_path / "autotune.toml"
    path.write_text(f"[job]\n# a comment\ntrials = {number}\n")
    with pytest.raises(ConfigError, match=r"autotune.toml:3: .*whole number of more than 4,200 digits"):
        load_config(path)


def test_a_file_of_settings_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "autotune.toml"
    path.write_text("# x\n" * 600_000)
    with pytest.raises(DiskProblem, match="larger than 2 MiB"):
        load_config(path)


def test_a_long_key_is_not_repeated_in_full(tmp_path: Path) -> None:
    path = tmp_path / "autotune.toml"
    path.write_text(f"{'k' * 5000} = 1\n")
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    assert len(str(refused.value)) < 400
