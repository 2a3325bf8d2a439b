"""Python imports this at its start in every process that has this folder on PYTHONPATH; nothing else does."""

from autotune.commands.selftest.points import arm

arm()
