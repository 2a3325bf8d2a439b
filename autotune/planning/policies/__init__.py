"""The policies by name. Each is one file with a class `Rule`; see `planning/policy.py` for what it owes."""

from __future__ import annotations

from importlib import import_module

from autotune.planning.policy import Policy

# To add a policy, write its file and name it here: it can be chosen, simulated and tested from then on.
POLICIES: dict[str, str] = {
    "sequential": "autotune.planning.policies.sequential",
    "uncoordinated": "autotune.planning.policies.uncoordinated",
    "interleave": "autotune.planning.policies.interleave",
    "predictive": "autotune.planning.policies.predictive",
}
DEFAULT = "predictive"


def get(name: str) -> Policy:
    """A policy by its name.

    Raises:
        ValueError: there is none of this name; says which there are.
    """
    if name not in POLICIES:
        raise ValueError(f"no policy {name!r}; there are {', '.join(POLICIES)}")
    policy: Policy = import_module(POLICIES[name]).Rule()
    return policy
