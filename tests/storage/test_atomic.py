"""Files and folders appear whole or not at all, whatever fails or kills the writer."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import BadInput, DamagedFile, DiskProblem, NewerFormat
from autotune.storage import atomic
from autotune.storage.atomic import (
    check_output,
    publish_bytes,
    publish_folder,
    publish_json,
    read_json,
    remove,
    remove_temporaries,
    write_all,
)

from .deaths import killed_at_call


def refuse(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    def call(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, name, call)


def occupy(path: Path, existing: str) -> None:
    if existing == "file":
        path.write_bytes(b"mine")
    elif existing == "dangling link":
        path.symlink_to("nowhere")
    else:
        path.mkdir()
        if existing == "full folder":
            (path / "mine").touch()


class TestPublishBytes:
    def test_a_file_is_replaced_whole_and_readable_as_umask_says(self, tmp_path: Path) -> None:
        publish_bytes(tmp_path / "file", b"one")
        publish_bytes(tmp_path / "file", b"two")
        assert (tmp_path / "file").read_bytes() == b"two"
        assert os.listdir(tmp_path) == ["file"]
        before = os.umask(0o027)
        try:
            publish_bytes(tmp_path / "file", b"data")
        finally:
            os.umask(before)
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640

    def test_killed_at_any_system_call_leaves_the_old_content_or_the_new(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        call = 1
        seen = set()
        path.write_bytes(b"old content")
        while killed_at_call(call, lambda: publish_bytes(path, b"new content")):
            seen.add(path.read_bytes())
            path.write_bytes(b"old content")
            call += 1
        assert call > 7
        assert seen == {b"old content", b"new content"}

    def test_the_content_is_durable_before_the_name_and_the_name_before_the_return(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[str] = []
        fsync = os.fsync
        replace = os.replace

        def noted_fsync(descriptor: int) -> None:
            folder = os.path.isdir(f"/proc/self/fd/{descriptor}")
            calls.append("sync folder" if folder else "sync file")
            fsync(descriptor)

        def noted_replace(source: Path, target: Path) -> None:
            calls.append("replace")
            replace(source, target)

        monkeypatch.setattr(os, "fsync", noted_fsync)
        monkeypatch.setattr(os, "replace", noted_replace)
        publish_bytes(tmp_path / "file", b"data")
        assert calls == ["sync file", "replace", "sync folder"]

    @pytest.mark.parametrize("name", ["write", "fsync", "replace"])
    def test_a_full_disk_leaves_the_old_file_and_no_temporary(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        path = tmp_path / "file"
        publish_bytes(path, b"old")
        refuse(monkeypatch, name, errno.ENOSPC)
        with pytest.raises(DiskProblem, match=f"cannot write {path}: no space left on device"):
            publish_bytes(path, b"new")
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["file"]

    def test_an_interrupt_leaves_no_temporary(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(_: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(DiskProblem, match="no such file or directory"):
            publish_bytes(tmp_path / "no" / "file", b"data")
        monkeypatch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            publish_bytes(tmp_path / "file", b"new")
        assert os.listdir(tmp_path) == []

    def test_everything_is_written_when_the_system_takes_little_at_a_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = os.write
        monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
        publish_bytes(tmp_path / "file", b"0123456789")
        assert (tmp_path / "file").read_bytes() == b"0123456789"


class TestJson:
    def test_what_was_published_is_read_and_its_bytes_depend_on_the_payload_alone(self, tmp_path: Path) -> None:
        payload = {"b": [1, 2.5, None], "a": {"ü": "\udcff"}}
        publish_json(tmp_path / "x.json", "job", 3, payload)
        assert read_json(tmp_path / "x.json", "job", 3) == payload
        publish_json(tmp_path / "x", "job", 1, {"b": {"d": 1, "c": 2}, "a": 0})
        publish_json(tmp_path / "y", "job", 1, {"a": 0, "b": {"c": 2, "d": 1}})
        assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()
        assert (tmp_path / "x").read_text() == ('{"format": "job", "version": 1, "a": 0, "b": {"c": 2, "d": 1}}\n')

    @pytest.mark.parametrize("payload", [{"x": float("nan")}, {"format": 1}, {"version": 1}])
    def test_what_could_not_be_read_back_is_not_written(self, tmp_path: Path, payload: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"JSON|format"):
            publish_json(tmp_path / "x", "job", 1, payload)
        assert os.listdir(tmp_path) == []

    def test_what_is_no_file_is_told_as_such_and_keeps_nobody_waiting(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            read_json(tmp_path / "x", "job", 1)
        with pytest.raises(DamagedFile, match="is a folder"):
            read_json(tmp_path, "job", 1)
        os.mkfifo(tmp_path / "f.json")
        with pytest.raises(DamagedFile, match="it is a pipe"):
            read_json(tmp_path / "f.json", "job", 1)
        (tmp_path / "loop").symlink_to("loop")
        with pytest.raises(DiskProblem, match="cannot read"):
            read_json(tmp_path / "loop", "job", 1)

    def test_an_earlier_version_is_read_and_a_later_one_is_refused_naming_both(self, tmp_path: Path) -> None:
        publish_json(tmp_path / "x", "job", 1, {"a": 0})
        assert read_json(tmp_path / "x", "job", 2) == {"a": 0}
        publish_json(tmp_path / "x", "job", 7, {})
        with pytest.raises(NewerFormat, match=r"x has version 7 .* up to version 2"):
            read_json(tmp_path / "x", "job", 2)

    @pytest.mark.parametrize(
        ("content", "cause"),
        [
            (b"", "Expecting value"),
            (b'{"format": "job", "vers', "Unterminated"),
            (b"\xff\xfe\xff", "UTF-8"),
            (b"[]", "it holds a JSON list"),
            (b'{"format": "log", "version": 1}', "format is 'log' instead of 'job'"),
            (b'{"format": "job"}', "version is None"),
            (b'{"format": "job", "version": true}', "version is True"),
            (b'{"format": "job", "version": 0}', "version is 0"),
            (b"[" * 100_000, "nested too deeply"),
        ],
    )
    def test_a_damaged_file_is_named_with_the_cause(self, tmp_path: Path, content: bytes, cause: str) -> None:
        path = tmp_path / "x.json"
        path.write_bytes(content)
        with pytest.raises(DamagedFile, match=cause) as caught:
            read_json(path, "job", 1)
        assert str(path) in str(caught.value)


class TestPublishFolder:
    @pytest.fixture
    def prepared(self, tmp_path: Path) -> Path:
        prepared = tmp_path / ".tmp-job"
        (prepared / "stages").mkdir(parents=True)
        (prepared / "spec").write_bytes(b"spec")
        (prepared / "stages" / "one").write_bytes(b"one")
        (prepared / "dangling").symlink_to("nowhere")
        return prepared

    def test_it_appears_with_all_it_holds(self, tmp_path: Path, prepared: Path) -> None:
        publish_folder(prepared, tmp_path / "job")
        assert (tmp_path / "job" / "stages" / "one").read_bytes() == b"one"
        assert os.listdir(tmp_path) == ["job"]

    def test_each_file_and_folder_is_durable_before_the_name(
        self, tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[str] = []
        fsync = os.fsync

        def noted(descriptor: int) -> None:
            synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", noted)
        publish_folder(prepared, tmp_path / "job")
        inside = {".tmp-job/spec", ".tmp-job/stages/one", ".tmp-job/stages", ".tmp-job"}
        assert set(synced[:-1]) == inside
        assert synced[-1] == "."

    @pytest.mark.parametrize("existing", ["empty folder", "full folder", "file", "dangling link"])
    def test_it_replaces_nothing(self, tmp_path: Path, prepared: Path, existing: str) -> None:
        final = tmp_path / "job"
        occupy(final, existing)
        before = final.lstat()
        with pytest.raises(FileExistsError):
            publish_folder(prepared, final)
        assert prepared.is_dir() and final.lstat() == before

    def test_it_does_not_replace_what_came_in_the_last_moment(
        self, tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rename = os.rename
        for existing in ("full folder", "file", "dangling link"):
            final = tmp_path / existing

            def late(source: Path, target: Path, existing: str = existing) -> None:
                occupy(target, existing)
                rename(source, target)

            monkeypatch.setattr(os, "rename", late)
            with pytest.raises(FileExistsError):
                publish_folder(prepared, final)
            assert prepared.is_dir()

    def test_a_full_disk_leaves_it_unpublished(
        self, tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refuse(monkeypatch, "fsync", errno.ENOSPC)
        with pytest.raises(DiskProblem, match="cannot publish"):
            publish_folder(prepared, tmp_path / "job")
        assert os.listdir(tmp_path) == [".tmp-job"]

    def test_killed_at_any_system_call_it_is_all_there_or_not_there(self, tmp_path: Path) -> None:
        call = 1
        while True:
            prepared = tmp_path / f".tmp-{call}"
            final = tmp_path / f"{call}"
            prepared.mkdir()
            (prepared / "spec").write_bytes(b"spec")
            killed = killed_at_call(call, lambda p=prepared, f=final: publish_folder(p, f))  # type: ignore[misc]
            assert prepared.exists() != final.exists()
            if final.exists():
                assert (final / "spec").read_bytes() == b"spec"
            if not killed:
                break
            call += 1
        assert call > 8


class TestRemove:
    def test_the_file_is_gone_durably(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").touch()
        synced: list[Path] = []
        monkeypatch.setattr(atomic, "sync_folder", synced.append)
        remove(tmp_path / "file")
        assert os.listdir(tmp_path) == [] and synced == [tmp_path]
        remove(tmp_path / "file")  # as good as removed
        refuse(monkeypatch, "unlink", errno.EROFS)
        with pytest.raises(DiskProblem, match="cannot remove .*read-only"):
            remove(tmp_path / "file")


class TestSweepTemporaries:
    def test_only_old_temporaries_are_deleted_and_a_missing_folder_holds_none(self, tmp_path: Path) -> None:
        for name in [".tmp-old", ".tmp-new", "old"]:
            (tmp_path / name).touch()
        (tmp_path / ".tmp-folder").mkdir()
        (tmp_path / ".tmp-folder" / "file").touch()
        long_ago = time.time() - 3700
        for name in [".tmp-old", "old", ".tmp-folder"]:
            os.utime(tmp_path / name, (long_ago, long_ago))
        swept = remove_temporaries(tmp_path)
        assert sorted(swept) == [tmp_path / ".tmp-folder", tmp_path / ".tmp-old"]
        assert sorted(os.listdir(tmp_path)) == [".tmp-new", "old"]
        assert remove_temporaries(tmp_path / "no") == []

    def test_the_target_of_a_link_is_not_touched(self, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "file").touch()
        link = tmp_path / ".tmp-link"
        link.symlink_to(outside)
        os.utime(link, (0, 0), follow_symlinks=False)
        assert remove_temporaries(tmp_path) == [link]
        assert (outside / "file").exists()

    def test_a_temporary_of_a_killed_writer_is_recognised(self, tmp_path: Path) -> None:
        killed_at_call(2, lambda: publish_bytes(tmp_path / "file", b"data"))
        (leftover,) = tmp_path.iterdir()
        os.utime(leftover, (0, 0))
        assert remove_temporaries(tmp_path) == [leftover]

    def test_what_is_not_ours_to_delete_is_left_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / ".tmp-theirs").touch()
        os.utime(tmp_path / ".tmp-theirs", (0, 0))
        refuse(monkeypatch, "unlink", errno.EPERM)
        assert remove_temporaries(tmp_path) == []


def test_write_all_writes_nothing_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    monkeypatch.setattr(os, "write", lambda _, data: written.append(bytes(data)) or len(data))
    write_all(1, b"")
    assert written == []
    write_all(1, b"some")
    assert written == [b"some"]


@pytest.mark.parametrize("name", [".", "..", "folder", "pipe", "/", "/dev/null"])
def test_what_is_no_file_is_not_replaced_by_one_that_a_user_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    os.mkfifo("pipe")
    with pytest.raises(BadInput, match="is not a file; give another path"):
        check_output(Path(name))


def test_a_file_that_a_user_wants_may_be_there_and_needs_a_folder(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    check_output(tmp_path / "old")
    check_output(tmp_path / "new")
    with pytest.raises(DiskProblem, match="no such file or directory"):
        check_output(tmp_path / "nowhere" / "new")
