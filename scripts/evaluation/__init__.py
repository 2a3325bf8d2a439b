"""The parts of `scripts/evaluate_scheduler.py`."""
