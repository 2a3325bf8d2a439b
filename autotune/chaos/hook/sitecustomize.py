"""Python imports this at its start in every process that has this folder on PYTHONPATH; nothing else does."""

from autotune.chaos.points import arm

arm()
