"""The daemon: it decides which stage runs next, and remembers how far each job is."""
