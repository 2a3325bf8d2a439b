#!/usr/bin/env bash
# Build the wheel and the sdist, install each into a fresh virtual environment, and run it outside of the source tree.
# An argument is the folder that keeps both; by default they are built in a temporary one.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
dist=${1:-$work/dist}
mkdir -p "$dist"
dist=$(cd "$dist" && pwd)
unset PYTHONPATH

# A copy of what git knows: what lies around in the folder must not make a release work.
mkdir "$work/source"
git -C "$root" archive --format=tar HEAD | tar -x -C "$work/source"
"$python" -m venv "$work/build"
"$work/build/bin/pip" install --quiet --disable-pip-version-check build
"$work/build/bin/python" -m build --outdir "$dist" "$work/source" > "$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/autotune/version.py")
for file in "$dist/autotune_tvm-$version-py3-none-any.whl" "$dist/autotune_tvm-$version.tar.gz"; do
    "$python" -m venv "$work/fresh"
    "$work/fresh/bin/pip" install --quiet --disable-pip-version-check "$file"
    mkdir "$work/outside"
    cd "$work/outside"
    export PATH="$work/fresh/bin:$PATH"
    autotune --help > help.txt
    grep -q submit help.txt
    [ "$(autotune --version)" = "autotune $version" ]
    autotune doctor || { echo "$(basename "$file"): doctor finds something wrong" >&2; exit 1; }
    "$work/fresh/bin/python" - <<'PY'
from importlib.resources import files

import autotune
from autotune.tvm_backend.search.cost_model import prior

assert prior("llvm") is not None, "the prior is not in the package"
assert files("autotune.commands").joinpath("demo_cnn.onnx").is_file(), "the model of the demo is not in the package"
assert list(files("autotune.tvm_backend.export.writing").joinpath("cpp").iterdir()), "the C++ program is not in the package"
assert list(files("autotune.tvm_backend.export.writing").joinpath("program").iterdir()), "the C++ shim is not in it"
assert all(hasattr(autotune, name) for name in autotune.__all__)
PY
    cd "$root"
    rm -rf "$work/fresh" "$work/outside"
    echo "$(basename "$file"): fine"
done
