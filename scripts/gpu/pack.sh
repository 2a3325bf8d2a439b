#!/usr/bin/env bash
# Pack what scripts/gpu/prove.sh needs on a machine with a GPU and without network: x86-64 Linux, Python 3.12.
#
#   scripts/gpu/pack.sh [FOLDER]        by default build/gpu; some five minutes
#
# It leaves two files in FOLDER, together some 60 MB. pip asks the package index for wheels of that Python, whatever the one
# here is. The machine brings torch, onnx, onnxruntime, NumPy, SciPy, typer, rich, filelock, psutil, nvidia-ml-py, pytest, and CUDA.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=${1:-build/gpu}
python=${PYTHON:-python3}
wheels=$folder/wheels site=$folder/site
packages=(
    apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1 xgboost-cpu msgspec tomli
    onnx2torch # with which torch runs ONNX models, to compare
)

rm -rf "$wheels"
mkdir -p "$wheels"
platforms=()
for glibc in 39 35 34 31 28 27 26 24 17 12 5; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
for name in manylinux2014 manylinux2010 manylinux1 linux; do platforms+=(--platform "${name}_x86_64"); done
for package in "${packages[@]}"; do
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
        --implementation cp --abi cp312 --abi abi3 --abi none "${platforms[@]}" --dest "$wheels" "$package"
done

rm -rf "$site"
"$python" - "$wheels" "$site" <<'PY'
import sys, zipfile
from pathlib import Path

for wheel in sorted(Path(sys.argv[1]).glob("*.whl")):  # dist-info folders stay: check_versions() reads them
    zipfile.ZipFile(wheel).extractall(sys.argv[2])
PY
for name in 3rdparty web src include; do rm -rf "$site/tvm/$name"; done
find "$site" -name tests -type d -prune -exec rm -rf {} +
xz --x86 --lzma2=preset=9e,dict=512MiB --stdout "$site/tvm/lib/libtvm_compiler.so" >"$folder/libtvm_compiler.so.xz"
rm "$site/tvm/lib/libtvm_compiler.so"
tar --create --directory "$site" . | xz --x86 --lzma2=preset=9e --stdout >"$folder/site.tar.xz"
rm -rf "$site"
du --bytes "$folder"/*.xz
[ "$(cat "$folder"/*.xz | wc -c)" -le $((64 << 20)) ] || { echo "pack.sh: that is more than the 64 MiB that can be carried" >&2; exit 1; }
