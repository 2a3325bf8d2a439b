"""The only importer of tvm: models, tasks, design spaces, builds, runs and compiled libraries."""
