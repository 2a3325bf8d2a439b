#!/usr/bin/env bash
# Rehearse scripts/gpu/prove.sh without a GPU: a fresh clone, no network, and the tests' stand-in in place of the driver.
#
#   MACHINE=FOLDER scripts/gpu/rehearse.sh [PARTS [VERB...]]     PARTS is what pack.sh made; by default build/gpu
#
# MACHINE has the Python packages that such a machine brings: onnx, onnxruntime, NumPy, pytest. PYTHON is its Python 3.12.
# The stand-in computes nothing: checks are off, and `tests` and every export must fail. What must not fail is all the
# rest: steps start and find their files, a part that was cut off goes on, ResNet-18 spends its budget on cubins.
# VERBs are those of prove.sh; by default all, with B cut off after CUT_S seconds and called again.
#   TRIALS (32)  CUT_S (60)  PART_S (560)  FRESH (a new temporary folder; a clone that is there is used again)
set -uo pipefail
cd "$(dirname "$0")/../.."

packed=$(realpath "${1:-build/gpu}") python=${PYTHON:-python3.12} fresh=${FRESH:-$(mktemp --directory)}
[ -d "$fresh/repository" ] || git clone --quiet --no-hardlinks . "$fresh/repository"
cd "$fresh/repository" || exit
mkdir -p "$fresh/stand-in" build/gpu/results/workspace
"$python" - "$fresh/stand-in" <<'PY'
import sys
from pathlib import Path

sys.path.insert(0, "tests")
from cuda_stand_in import StandIn, compile_libraries

folder = Path(sys.argv[1])
made = StandIn.make(compile_libraries(folder), folder / "gpus")
(folder / "environment").write_text("".join(f"export {name}='{value}'\n" for name, value in made.environment().items()))
PY
. "$fresh/stand-in/environment"
printf '[measure]\nverify = false\nmin_repeat_ms = 1\ngpu_spin_up_ms = 1\n' >build/gpu/results/workspace/autotune.toml
export PYTHON=$python PYTHONPATH=$MACHINE SITE=$fresh/site TRIALS=${TRIALS:-32} KEEP=$fresh/kept.tar.gz
prove() { unshare --net scripts/gpu/prove.sh "$@"; }

prove_unpack() {
    for part in compiler rest; do  # one transfer after the other
        rm -rf build/gpu/compiler build/gpu/rest
        cp -r "$packed/$part" build/gpu/
        prove unpack
    done
}

for verb in "${@:2}"; do
    if [ "$verb" = unpack ]; then prove_unpack; else prove "$verb"; fi
done
if [ $# -lt 2 ]; then
    prove_unpack
    prove A
    PART_S=${CUT_S:-60} prove B
    prove B
    prove C
    prove tables
fi
results=build/gpu/results
echo "== $(cat "$KEEP" 2>/dev/null | wc -c) bytes are kept; not done: $(ls $results | grep '\.part$' | tr '\n' ' ')"
