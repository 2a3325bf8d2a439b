#!/usr/bin/env bash
# Build the documentation as a site in build/site; a link that leads nowhere is an error. Arguments go to mkdocs.
set -euo pipefail
cd "$(dirname "$0")/../.."

scripts/setup.sh '.[docs]'
export NO_MKDOCS_2_WARNING=1  # a note on another project
exec .venv/bin/mkdocs build --strict "$@"
