"""The four stages of a round: search, build, measure, train.

Each is a function `run(stage) -> summary`. It is idempotent, and publishes the next stage file.
"""
