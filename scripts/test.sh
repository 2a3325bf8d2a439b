#!/usr/bin/env bash
# Set up and pass every check: style, types, import directions, spelling, tests.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh '.[dev,docs]'
export PATH="$PWD/.venv/bin:$PATH"
unset PYTHONDONTWRITEBYTECODE # thousands of processes would compile the package again

ruff check .
ruff format --check .
mypy
lint-imports
codespell
pytest -n "$(($(nproc) + 3))" --dist worksteal "$@" # more than there are CPUs: daemons wait more than they compute
if [ $# -eq 0 ]; then # a cluster needs the machine for itself
  if python -c 'import ray' 2> /dev/null; then
    pytest tests/workers/cluster/test_ray.py
  else
    echo "RAY IS NOT INSTALLED: nothing has tested the cluster; pip install 'autotune[ray]'" >&2
  fi
fi
