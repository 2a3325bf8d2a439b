"""Decide what runs next: pure functions of jobs, stages and free resources. Knows no file, no process, no TVM."""
