"""Watch the steps of this process. Python imports this module at its start if the folder is on PYTHONPATH."""

from kills.points import arm

arm()
