"""Submit models: the options and their words, reading a model, and publishing a job for it."""
