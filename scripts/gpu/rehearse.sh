#!/usr/bin/env bash
# Rehearse scripts/gpu/prove.sh without a GPU: a fresh clone, no network, and the tests' stand-in in place of the driver,
# whose kernels are computed on the CPU. Its times are noise.
#
#   scripts/gpu/rehearse.sh [PARTS [CALL...]]     PARTS is what pack.sh made; by default build/gpu. Calls: a b c
#
# PYTHON is a Python with the packages that such a machine brings: onnx, onnxruntime, NumPy, SciPy, typer, rich, pytest and
# torch, which sees no GPU: `ceilings` must fail. Without PARTS it has TVM, too (tests/scripts/test_rehearse.py).
#   NETWORKS (two small ones)  TUNE_S (240)  CALL_S  FRESH (a new temporary folder; a clone that is there is used again)
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
made = StandIn.make(compile_libraries(folder, computes=True), folder / "gpus")
(folder / "environment").write_text("".join(f"export {name}='{value}'\n" for name, value in made.environment().items()))
PY
. "$fresh/stand-in/environment"
printf '[machine]\nlock_dir = "%s/locks"\n[measure]\nmin_repeat_ms = 1\ngpu_spin_up_ms = 1\n[build]\ntimeout_s = 60\n' "$fresh" \
    >build/gpu/results/workspace/autotune.toml
export PYTHON=$python PARTS=$packed SITE=$fresh/site KEEP=$fresh/kept.tar.gz
export NETWORKS=${NETWORKS:-mlp:fp16:32 tiny_cnn:tf32:48} TUNE_S=${TUNE_S:-240} CHECKED=${CHECKED:-mlp:fp16}
within=(unshare --net)
"${within[@]}" true 2>/dev/null || within=() # only root may

calls=("${@:2}")
[ ${#calls[@]} -gt 0 ] || calls=(a b c)
for call in "${calls[@]}"; do "${within[@]}" scripts/gpu/prove.sh "$call"; done
echo "== $(cat "$KEEP".* | wc -c) bytes are kept; not done: $(find build/gpu/results -name '*.part' -printf '%f ')"
