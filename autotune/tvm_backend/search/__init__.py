"""The design space of a task, the cost model, and the search for candidates."""
