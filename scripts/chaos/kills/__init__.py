"""The kill scenario: what is killed where, and what must hold afterwards.

`plan` chooses at which steps processes are killed. `points` runs inside the processes and kills them there. `run`
starts the processes, starts them again after they were killed, and checks the result. `power` checks the recorded order
of a run's steps: it finds what a power failure could lose. `subject` has the queues, and `enqueue` submits their jobs.
"""
