"""Decide which stages start next, and when jobs will end.

Everything here is pure: no file, no process, no clock of its own and no TVM. The way of a decision:

- `view` holds the frozen picture that a caller gives: jobs, their stages, what runs, the machine.
- The daemon's dispatcher asks the `planner` and starts what it says. The `planner` compares the picture with the last
  and updates its `planner_state`, which is kept between two plans.
- A `policy` says which ready stage (`queues`) is next. The `allocator` gives it free CPUs or a device (`resources`).
- `planner` also forecasts when jobs will end. `simulator` plays whole scenarios with the same state and allocator.
"""
