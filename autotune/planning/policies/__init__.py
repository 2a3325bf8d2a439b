"""The policies by name. Each is one file; `planning/policy.py` says what a policy is given and owes."""

from __future__ import annotations

from importlib import import_module

from autotune.planning.policy import Policy

# Name: module and class. To add a policy, write its file, and add its line here and its name in `settings.py`.
POLICIES: dict[str, str] = {
    "sequential": "autotune.planning.policies.sequential:Sequential",
    "uncoordinated": "autotune.planning.policies.uncoordinated:Uncoordinated",
    "interleave": "autotune.planning.policies.interleave:Interleave",
    "predictive": "autotune.planning.policies.predictive:Predictive",
}
DEFAULT = "predictive"


def get(name: str) -> Policy:
    """Return a policy by its name.

    Raises:
        ValueError: There is no policy of this name. The message lists those that there are.
    """
    if name not in POLICIES:
        raise ValueError(f"no policy {name!r}; there are {', '.join(POLICIES)}")
    module, _, cls = POLICIES[name].partition(":")
    policy: Policy = getattr(import_module(module), cls)()
    return policy
