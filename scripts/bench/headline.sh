#!/usr/bin/env bash
# The figures of the front page, on this machine: make or fetch the models, tune, export and race them, and write the
# result file, the table of docs/explanation/performance.md, the chart and the sentence of the README.
# Arguments go to headline.py; what was measured at this commit is kept, so that it can be ended and started again.
set -euo pipefail
cd "$(dirname "$0")/../.."

scripts/setup.sh '.[bench]'
export PATH="$PWD/.venv/bin:$PATH"
python scripts/bench/headline.py build/headline "$@"
python scripts/docs/write_headline.py
