#!/usr/bin/env bash
# Set up and pass every check: style, types, import directions, spelling, tests.
#
#   scripts/test.sh                    every behaviour once
#   scripts/test.sh --all              the slow tests, too: all instruction sets, long faults, many seeds, GPUs rehearsed
#   scripts/test.sh --slow [MINUTES]   the slow tests alone; what has not begun after so many minutes is skipped and named
#
# Other arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

marks="not slow"
limit=()
case "${1-}" in
  --all) marks="" && shift ;;
  --slow)
    marks="slow" && shift
    if [[ "${1-}" =~ ^[0-9]+$ ]]; then limit=(--minutes "$1") && shift; fi
    ;;
esac

scripts/setup.sh '.[dev,docs,ray]'
export PATH="$PWD/.venv/bin:$PATH"
unset PYTHONDONTWRITEBYTECODE # thousands of processes would compile the package again

if [ "$marks" != slow ]; then
  ruff check .
  ruff format --check .
  mypy
  lint-imports
  codespell
fi
# More processes than there are CPUs: daemons wait more than they compute.
pytest -m "$marks" -n "$(($(nproc) + 3))" --dist worksteal "${limit[@]}" "$@"
if [ $# -eq 0 ]; then # a cluster needs the machine for itself
  pytest -m "$marks" "${limit[@]}" tests/workers/cluster/test_ray.py
fi
echo "scripts/test.sh: all passed in $((SECONDS / 60)) min $((SECONDS % 60)) s"
