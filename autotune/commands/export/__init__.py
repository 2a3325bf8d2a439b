"""Export a job: what is asked for, what is refused, and what is said in the end."""
