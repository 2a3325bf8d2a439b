"""The parts of `scripts/bench/evaluate_scheduler.py`."""
