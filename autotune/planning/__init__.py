"""Decide which stages start next, and when jobs will end.

Everything here is pure: no file, no process, no clock of its own and no TVM. The way of a decision:

- `view` holds the frozen picture that a caller gives: jobs, their stages, what runs, the machine.
- `planner` compares the picture with the last one and updates its `planner_state`, which is kept between
  two plans.
- `scheduler` pairs ready stages (`queues`) with free CPUs and devices (`resources`), as the `policy` picks them.
- `planner` also forecasts when jobs will end. `simulator` plays whole scenarios with the same state and scheduler.
"""
