"""Break it on purpose: kill processes at every durable step, and look at the order in which files become durable.

`points` runs inside the processes that are to die, `plan` says where, `run` starts them, kills, starts again and
judges, and `power` reads a recording of a run as a power cut would.
"""
