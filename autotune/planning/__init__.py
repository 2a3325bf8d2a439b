"""Decide which stages start next, and when jobs will end.

Everything here is pure: no file, no process, no clock of its own and no TVM. The way of a decision:

- `view` holds the frozen picture that a caller gives: jobs, their stages, what runs, the machine.
- `planner` compares the picture with the last one and updates the `board`, the state kept between two plans.
- `scheduler` pairs ready stages (`queues`) with free CPUs and devices (`resources`), as the `policy` picks them.
- `forecast` says when jobs will end. `simulator` plays whole scenarios with the same board and scheduler.
"""
