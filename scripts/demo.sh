#!/usr/bin/env bash
# From a fresh clone to a tuned ResNet-18: set up, make the model, submit it, run the queue, export, compare.
# TRIALS sets the budget; MODEL another network of scripts/models/make_models.py.
set -euo pipefail
cd "$(dirname "$0")/.."

model=${MODEL:-resnet18}
output=build/demo
scripts/setup.sh
export PATH="$PWD/.venv/bin:$PATH"

python scripts/models/make_models.py "$model" --output "$output"
job=$(autotune submit "$output/$model.onnx" --trials "${TRIALS:-400}" --quiet)
autotune daemon run --drain
autotune status "$job"
autotune export "$job" --output "$output/$model"
python "$output/$model/run.py" 2> >(grep -v "Scope Loaded" >&2)  # a warning of TVM for every constant
