#!/usr/bin/env bash
# Make the virtual environment .venv and install autotune into it; arguments go to pip, such as '.[dev]'.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
"$python" - <<'PY' || { echo "setup: autotune needs Python 3.11 to 3.13; set PYTHON to one" >&2; exit 2; }
import sys
sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PY

[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable "${1:-.}"
