"""A folder for locks that other processes do not see is noticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.machine import leases
from autotune.machine.leases import private_reason

LOCKS = Path("/tmp/autotune-locks")
TMPFS = "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n30 27 0:31 / /tmp rw - tmpfs tmpfs rw"
DISK = "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"


@pytest.fixture(autouse=True)
def on_the_machine_itself(monkeypatch):
    monkeypatch.setattr(leases, "_in_container", lambda root: False)


def tree(plant, own, first=DISK):
    return plant({"proc/self/mountinfo": own, "proc/1/mountinfo": first})


@pytest.mark.parametrize(
    ("own", "first"),
    [
        (DISK, DISK),
        (TMPFS, TMPFS),
        (f"{DISK}\n90 27 254:0 /tmp/autotune-locks /tmp/autotune-locks rw - ext4 /dev/vda rw", DISK),
        # the last of two mounts at one place counts
        (f"{DISK}\n90 27 0:40 / /tmp rw - tmpfs one rw\n91 90 0:31 / /tmp rw - tmpfs two rw", TMPFS),
    ],
)
def test_what_all_see_at_the_same_place_is_shared(plant, own: str, first: str):
    assert private_reason(LOCKS, tree(plant, own, first)) == ""


def test_a_system_without_mountinfo_says_nothing(plant):
    assert private_reason(LOCKS, plant({"proc/version": ""})) == ""


def test_private_tmp_of_systemd(plant):
    own = f"{DISK}\n90 27 254:0 /tmp/systemd-private-1f-night.service-x/tmp /tmp rw - ext4 /dev/vda rw"
    reason = private_reason(LOCKS, tree(plant, own))
    assert reason == "/tmp is private to this process and those it starts (systemd's PrivateTmp, or unshare)"
    assert private_reason(Path("/var/lock/autotune"), tree(plant, own)) == "", "a folder elsewhere is shared"


class TestContainer:
    @pytest.fixture(autouse=True)
    def inside(self, monkeypatch):
        monkeypatch.setattr(leases, "_in_container", lambda root: True)

    OVERLAY = "600 500 0:55 / / rw - overlay overlay rw,lowerdir=/a"

    @pytest.mark.parametrize(
        ("mount", "reason"),
        [
            ("", "/tmp/autotune-locks is inside this container only"),
            ("\n601 600 0:60 / /tmp rw - tmpfs tmpfs rw", "/tmp is inside this container only"),
            ("\n601 600 254:0 /tmp/autotune-locks /tmp/autotune-locks rw - ext4 /dev/vda rw", ""),
        ],
    )
    def test_only_a_folder_from_outside_is_shared(self, plant, mount: str, reason: str):
        both = f"{self.OVERLAY}{mount}"
        assert private_reason(LOCKS, tree(plant, both, both)) == reason


def test_a_process_with_a_real_private_tmp_notices(tmp_path):
    """In a mount namespace of its own, as systemd makes one."""
    needed = (Path(sys.executable), Path(sys.prefix), Path(leases.__file__))
    if any(Path("/tmp") in path.resolve().parents or Path("/tmp") in path.parents for path in needed):
        pytest.skip("Python or autotune lies in /tmp, where a private one hides it")
    ask = "from pathlib import Path; from autotune.machine.leases import private_reason as p;"
    code = f"{ask} print(p(Path('/tmp/autotune-locks')))"
    script = f'mount -t tmpfs none /tmp && exec {sys.executable} -c "{code}"'
    alone = subprocess.run(["unshare", "-m", "bash", "-c", script], capture_output=True, text=True, check=False)
    if "unshare" in alone.stderr or "mount" in alone.stderr:
        pytest.skip("may not mount a file system here")
    assert alone.stdout.startswith("/tmp is private to this process"), alone.stderr
