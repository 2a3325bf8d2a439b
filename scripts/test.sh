#!/usr/bin/env bash
# Set up and pass every check: style, types, import directions, tests.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh '.[dev]'
export PATH="$PWD/.venv/bin:$PATH"

ruff check .
ruff format --check .
mypy
lint-imports
pytest -n auto --dist worksteal "$@"
