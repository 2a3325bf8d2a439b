"""Who can change a file or folder: only this user, or somebody else, too."""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
from pathlib import Path

_ROOT = 0


def owner_name(uid: int) -> str:
    """Return the name of a user; their number where they have none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def is_trusted_owner(uid: int) -> bool:
    """Return whether a user is this one, or the one who can do everything anyway."""
    return uid in (os.geteuid(), _ROOT)


def opening(path: Path, status: os.stat_result, *, but_own_group: bool = False) -> str:
    """Return why others may write to a file or folder, with the remedy; empty if they may not.

    Args:
        status: What `stat` says of it.
        but_own_group: Whether a group that only its owner is in may write, as umask 002 lets it.
    """
    by_group = bool(status.st_mode & stat.S_IWGRP) and not (but_own_group and _is_own_group(status))
    if not (by_group or status.st_mode & stat.S_IWOTH):
        return ""
    return f"others may write to {path}; run: chmod go-w {shlex.quote(str(path))}"


def intruder(path: Path) -> str:
    """Say who else than this user and root could have put a file or folder there; empty if nobody could.

    All folders above it count: who may write to one can put another in the place of what is below.

    Raises:
        OSError: It is not there.
    """
    whole = Path(os.path.realpath(path))
    for place in (whole, *whole.parents):
        status = os.stat(place)
        if not is_trusted_owner(status.st_uid):
            return f"{place} belongs to {owner_name(status.st_uid)}"
        keeps_names = place != whole and status.st_mode & stat.S_ISVTX  # only owners move what is in it
        if not keeps_names and (open_to := opening(place, status, but_own_group=True)):
            return open_to
    return ""


def _is_own_group(status: os.stat_result) -> bool:
    """Return whether the group of a file is its owner's alone, as where each user has a group of the same name."""
    try:
        owner = pwd.getpwuid(status.st_uid)
        group = grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return (owner.pw_gid, owner.pw_name) == (group.gr_gid, group.gr_name) and set(group.gr_mem) <= {owner.pw_name}
