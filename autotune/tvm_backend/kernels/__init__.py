"""Build, time and verify one scheduled tensor program."""
