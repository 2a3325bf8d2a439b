"""The files of the last export are the result again only while nothing that they were made from has changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.commands.export import unchanged
from autotune.commands.export.request import request_of
from autotune.config import Config
from autotune.errors import DamagedFile
from autotune.processes.messages import ExportRequest
from autotune.settings import ExportSettings
from autotune.storage import formats
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.job_files import model_checksum
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog
from autotune.tvm_backend.export import ready_library
from autotune.tvm_backend.export.writing.files import (
    KERNELS,
    NETWORK,
    SOURCE,
    SOURCE_HEADER,
    SOURCE_STATIC,
    SUMS,
    WEIGHTS,
    checksums,
    edited,
)

CONTENT = {
    "run.py": b"print()",
    "model.so": b"\x7fELF a library",
    "cpp/main.cc": b"int main() {}",
    "report.json": json.dumps({"format": "autotune-report", "name": "net"}).encode(),
}


class Job:
    """A job with a model and an export of it, as far as files go."""

    def __init__(self, workspace: Workspace, paths: JobPaths) -> None:
        self.workspace = workspace
        self.paths = paths
        self.output = workspace.root / "lib"
        for name, content in CONTENT.items():
            (self.output / name).parent.mkdir(parents=True, exist_ok=True)
            (self.output / name).write_bytes(content)

    def request(self, config: Config, *inputs: Path) -> ExportRequest:
        return request_of(self.workspace, config, self.paths, self.spec, self.output, inputs)

    @property
    def spec(self) -> JobSpec:
        return formats.read(JobSpec, self.paths.spec)

    def made_from(self, request: ExportRequest | None = None, spec: JobSpec | None = None) -> str:
        asked = request or self.request(Config())
        return unchanged.made_from(self.workspace, self.paths, spec or self.spec, asked)

    def log(self, hash: str, time_us: float, task: int = 0) -> None:
        records = self.workspace.tuning_log(self.spec.target_key, self.spec.tasks[task].hash).records
        TuningLog(records).add([Trial(hash, [[], []], [], (time_us,), None, "j", 0, 0.0)])


@pytest.fixture
def job(workspace: Workspace, make_job: Callable[..., JobPaths]) -> Job:
    paths = make_job()
    paths.model.write_bytes(b"a model")
    size, crc = model_checksum(paths)
    formats.write(paths.spec, replace(formats.read(JobSpec, paths.spec), model_size=size, model_crc32=crc))
    return Job(workspace, paths)


@pytest.fixture
def exported(job: Job) -> Job:
    """The same after its export was remembered."""
    unchanged.remember(job.paths, job.made_from(), job.output)
    return job


def test_what_it_is_made_from_is_the_same_for_another_folder_and_with_slow_trials_more(job: Job) -> None:
    for number in range(8):
        job.log(f"c{number}", 10.0 + number)
    before = job.made_from()
    assert job.made_from(replace(job.request(Config()), output="/elsewhere", cpus=(7,))) == before
    job.log("slow", 100.0)
    assert job.made_from() == before


def test_what_it_is_made_from_is_another_once_anything_of_it_changes(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = tmp_path / "inputs.npz"
    inputs.write_bytes(b"one")
    asked = job.request(Config(), inputs)
    digests = [job.made_from(), job.made_from(asked)]
    inputs.write_bytes(b"two")
    digests += [
        job.made_from(asked),
        job.made_from(replace(asked, threads=7)),
        job.made_from(replace(asked, quick=True)),
    ]
    digests.append(job.made_from(job.request(Config(export=ExportSettings(tolerance=0.5)))))
    job.log("fast", 1.0)
    digests.append(job.made_from())
    job.log("faster", 0.5)
    digests.append(job.made_from())
    job.paths.plan.write_text("[plan]")
    digests += [job.made_from(), job.made_from(spec=replace(job.spec, winograd=True))]
    monkeypatch.setattr(ready_library, "compiler_digest", lambda: "another version")
    digests.append(job.made_from())
    monkeypatch.setattr(unchanged, "cpu_model", lambda: "another CPU")
    digests.append(job.made_from())
    monkeypatch.setattr(unchanged, "installed_version", lambda package: "another runtime")
    digests.append(job.made_from())
    assert len(set(digests)) == len(digests)


def test_a_damaged_model_is_refused_as_by_any_export(job: Job) -> None:
    job.paths.model.write_bytes(b"another")
    with pytest.raises(DamagedFile, match="submit the model again"):
        job.made_from()


def test_nothing_is_remembered_of_a_gpu(workspace: Workspace, make_job: Callable[..., JobPaths]) -> None:
    job = Job(workspace, make_job(target="cuda"))
    assert job.made_from() == ""
    unchanged.remember(job.paths, "", job.output)
    assert not job.paths.last_export.exists()
    assert unchanged.again(job.paths, "", job.output) is None


def test_the_same_folder_is_left_as_it_is(exported: Job) -> None:
    before = {path: path.stat().st_ino for path in exported.output.rglob("*")}
    report = unchanged.again(exported.paths, exported.made_from(), exported.output)
    assert report is not None and report["name"] == "net"
    assert {path: path.stat().st_ino for path in exported.output.rglob("*")} == before


def test_another_folder_gets_the_same_files(exported: Job, tmp_path: Path) -> None:
    (exported.output / "notes.txt").write_text("the user's own")
    other = tmp_path / "other"
    other.mkdir()
    assert unchanged.again(exported.paths, exported.made_from(), other) is not None
    assert {str(path.relative_to(other)): path.read_bytes() for path in other.rglob("*") if path.is_file()} == CONTENT
    assert sorted(path.name for path in other.iterdir()) == ["cpp", "model.so", "report.json", "run.py"]


def source(folder: Path, network: str) -> None:
    """Write a folder as an export with `source` does."""
    folder.mkdir(parents=True)
    texts = dict.fromkeys((*SOURCE_STATIC, SOURCE_HEADER, NETWORK), network)
    sums = {SUMS: checksums(texts), KERNELS: network, WEIGHTS: network}
    for name, content in (texts | sums).items():
        (folder / name).write_text(content)


@pytest.mark.parametrize("published", range(len(CONTENT) + 1))
def test_source_of_an_earlier_export_is_written_over_and_never_counts_as_edited(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: int
) -> None:
    source(job.output / SOURCE, "the network of now")
    (job.output / "report.json").write_text(json.dumps({"format": "autotune-report", "source": True}))
    digest = job.made_from()
    unchanged.remember(job.paths, digest, job.output)
    other = tmp_path / "other"
    source(other / SOURCE, "the network of before")
    publish = unchanged.publish_file
    left = iter(range(published))

    def publish_some(temporary: Path, final: Path) -> None:
        if next(left, None) is None:
            raise OSError("no space left")
        publish(temporary, final)

    monkeypatch.setattr(unchanged, "publish_file", publish_some)
    done = unchanged.again(job.paths, digest, other)
    assert not edited(other / SOURCE) and (done is not None) == (published == len(CONTENT))
    if done is not None:
        files = [path.relative_to(job.output) for path in job.output.rglob("*") if path.is_file()]
        assert len(files) == len(CONTENT) + len(SOURCE_STATIC) + 5
        assert all((other / file).read_bytes() == (job.output / file).read_bytes() for file in files)


@pytest.mark.parametrize("name", list(CONTENT))
@pytest.mark.parametrize("how", ["changed", "gone"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_of_an_export_that_is_not_as_it_was_written_nothing_is_taken(
    exported: Job, tmp_path: Path, name: str, how: str, elsewhere: bool
) -> None:
    (exported.output / name).unlink() if how == "gone" else (exported.output / name).write_bytes(CONTENT[name] + b" ")
    output = tmp_path / "other" if elsewhere else exported.output
    output.mkdir(exist_ok=True)
    before = sorted(output.rglob("*"))
    assert unchanged.again(exported.paths, exported.made_from(), output) is None
    assert sorted(output.rglob("*")) == before


def test_a_note_that_somebody_else_wrote_or_that_is_damaged_is_not_followed(
    exported: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = exported.made_from()
    last = formats.read(unchanged.LastExport, exported.paths.last_export)
    planted = tmp_path / "planted"
    exported.output.rename(planted)
    formats.write(exported.paths.last_export, replace(last, folder=str(planted)))
    exported.output.mkdir()
    assert unchanged.again(exported.paths, digest, exported.output) is None
    exported.paths.last_export.write_text("{")
    assert unchanged.again(exported.paths, digest, exported.output) is None
    planted.rename(tmp_path / "unused")
    formats.write(exported.paths.last_export, last)
    exported.output.rmdir()
    (tmp_path / "unused").rename(exported.output)
    assert unchanged.again(exported.paths, digest, exported.output) is not None
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    assert unchanged.again(exported.paths, digest, exported.output) is None
