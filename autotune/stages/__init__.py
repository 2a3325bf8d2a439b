"""What a stage of a round does: search, build, measure, train, and now and then compile and confirm.

Each is a function `run(stage) -> summary`. It is idempotent, and publishes the next stage file.
"""
