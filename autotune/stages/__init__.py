"""The four stages of a round. Each is `run(stage) -> summary`, idempotent, and publishes the next stage file."""
