"""Watch the steps of this process. Python imports this module at its start if the folder is on PYTHONPATH."""

from autotune.commands.selftest.points import arm

arm()
