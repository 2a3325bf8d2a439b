"""Upgrade the content of files of older versions to what `formats.py` says."""

from __future__ import annotations

from typing import Any


def reason(data: dict[str, Any]) -> dict[str, Any]:
    """Upgrade a control or state file of version 1, whose reason is a sentence."""
    return {**data, "reason": _reason_of(data["reason"])} if "reason" in data else data


def waits(data: dict[str, Any]) -> dict[str, Any]:
    """Upgrade a daemon file of version 1, whose reasons to wait are sentences."""
    found = data.get("waits")
    if not isinstance(found, dict):
        return data
    return {**data, "waits": {job: _reason_of(said) for job, said in found.items() if said}}


def _reason_of(said: Any) -> Any:
    return ({"kind": "unspecified", "wording": said} if said else None) if isinstance(said, str) else said
