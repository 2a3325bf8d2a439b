"""Jobs that are commands: what a space file says, which combinations there are, how a trial runs, what is exported.

Nothing here imports TVM. The stages of such a job are those of any job: `stages/on_command.py` is what they ask.
"""
