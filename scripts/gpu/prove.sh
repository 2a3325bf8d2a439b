#!/usr/bin/env bash
# Prove --target cuda on a machine with a GPU and without network, in parts of under ten minutes each.
#
#   scripts/gpu/prove.sh unpack   takes what scripts/gpu/pack.sh made, once for each transfer, in any order
#   scripts/gpu/prove.sh A        versions, clocks, and what torch reaches: products, ResNet-18 and 50
#   scripts/gpu/prove.sh B        compilers, doctor, the GPU's tests; an MLP and ResNet-18 from submit to export; two jobs at once;
#                                 ResNet-18 beside torch and ONNX Runtime, as far as they are installed
#   scripts/gpu/prove.sh C        ResNet-50, a BERT layer, a 4096-cubed product; ResNet-18 in fp16; all of them beside the others
#   scripts/gpu/prove.sh tables   prints what is there for docs/guides/gpus.md, and says what was not run
#
# Each step leaves RESULTS/STEP.txt; a part that is called again goes on after the last finished step. A step ends after
# at most PART_S seconds, less what its part has used, and daemons go on where they were killed.
#   PARTS (build/gpu)  RESULTS (build/gpu/results)  SITE (/tmp/autotune-gpu)  PART_S (560)  TRIALS (400)
set -uo pipefail
cd "$(dirname "$0")/../.."

parts=${PARTS:-build/gpu} results=${RESULTS:-build/gpu/results} site=${SITE:-/tmp/autotune-gpu}
deadline=$((SECONDS + ${PART_S:-560}))
trials=${TRIALS:-400}
python=${PYTHON:-python3}
steps_A=(versions clocks products networks)
steps_B=(compilers doctor tests mlp resnet18 pair bench_resnet18)
steps_C=(resnet50 bert_layer product resnet18_fp16 bench)
mkdir -p "$results/workspace"
[ -d "$site/packages" ] && export PYTHONPATH="$site/packages${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
autotune() { "$python" -m autotune --workspace "$results/workspace" "$@"; }

unpack() {
    mkdir -p "$site/packages/tvm/lib"
    [ -f "$parts/rest/site.tar.xz" ] && tar --extract --xz --directory "$site/packages" --file "$parts/rest/site.tar.xz"
    if [ -f "$parts/compiler/libtvm_compiler.so.xz" ]; then
        xz --decompress --stdout "$parts/compiler/libtvm_compiler.so.xz" >"$site/packages/tvm/lib/libtvm_compiler.so"
    fi
    for name in tvm/lib/libtvm_compiler.so tvm/__init__.py; do
        [ -s "$site/packages/$name" ] || echo "still missing: $name (the other transfer)"
    done
}

# step NAME COMMAND...: run it unless it is done; what it says is kept only if it succeeds in time
step() {
    local name=$1 left=$((deadline - SECONDS))
    shift
    [ -f "$results/$name.txt" ] && { echo "== $name: done before"; return 0; }
    [ "$left" -gt 10 ] || { echo "== $name: no time left in this part; call it again"; unfinished=1; return; }
    echo "== $name"
    # The command may be a function, which `timeout` cannot call.
    export -f autotune tune 2>/dev/null
    if results=$results python=$python trials=$trials timeout --kill-after=10 "$left" bash -c '"$@"' step "$@" >"$results/$name.part" 2>&1; then
        mv "$results/$name.part" "$results/$name.txt"
        cat "$results/$name.txt"
    else
        echo "   not finished (exit $?); the end of what it said:"
        tail -n 15 "$results/$name.part"
        unfinished=1
    fi
}

# tune NAME TRIALS [NETWORK PRECISION]: from submit to a verified export; a job that is there goes on
tune() {
    local name=$1 budget=$2 network=${3:-$1} precision=${4:-fp32} models=$results/models
    "$python" scripts/gpu/models.py "$network" --output "$models" || return
    autotune status "$name" >/dev/null 2>&1 ||
        autotune submit "$models/$network.onnx" --name "$name" --target cuda --precision "$precision" \
            --trials "$budget" --trials-per-round 16 || return
    autotune daemon run --drain || return
    autotune export "$name" --output "$results/$name" || return
    "$python" -c "import json, sys; r = json.load(open(sys.argv[1])); print(r['latency'], 'largest error', r['largest_relative_error'])" \
        "$results/$name/report.json"
}

pair() {
    tune_one() { autotune submit "$results/models/$1.onnx" --name "$1-again" --target cuda --trials 64 --fresh; }
    export -f tune_one
    step pair bash -c 'for name in mlp resnet18; do tune_one $name || exit; done
        "$python" scripts/gpu/utilisation.py --file "$results/utilisation.csv" -- "$python" -m autotune --workspace "$results/workspace" daemon run --drain'
}

part_A() {
    step versions bash -c 'nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv && "$python" -V || exit
        "$python" -m pip list 2>/dev/null | grep -iE "^(torch|onnx|numpy|cuda|nvidia|apache)"
        nvcc --version | tail -n 2'
    step clocks nvidia-smi --query-gpu=clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,power.draw --format=csv
    step products "$python" scripts/gpu/ceilings.py products
    step networks "$python" scripts/gpu/ceilings.py networks
}
part_B() {
    step compilers "$python" scripts/gpu/compilers.py
    step doctor autotune doctor
    step tests bash -c 'nvidia-smi -L && "$python" -m pytest -q -rs -p no:cacheprovider tests/gpu'  # else they are skipped
    step mlp tune mlp 32
    step resnet18 tune resnet18 "$trials"
    pair
    step bench_resnet18 "$python" scripts/bench_gpu.py resnet18 --workspace "$results/workspace"
}
part_C() {
    local name
    for name in resnet50 bert_layer product; do
        step "$name" tune "$name" "$trials"
    done
    step resnet18_fp16 tune resnet18-fp16 "$trials" resnet18 fp16
    step bench "$python" scripts/bench_gpu.py resnet50 bert_layer product resnet18-fp16 --workspace "$results/workspace"
}

tables() {
    local name missing=()
    for name in "${steps_A[@]}" "${steps_B[@]}" "${steps_C[@]}"; do
        if [ -f "$results/$name.txt" ]; then
            printf '\n### %s\n\n' "$name"
            sed 's/^/    /' "$results/$name.txt"
        else
            missing+=("$name")
        fi
    done
    [ ${#missing[@]} -eq 0 ] || printf '\nNot run: %s.\n' "$(IFS=,; echo "${missing[*]}" | sed 's/,/, /g')"
}

case ${1:-} in
unpack | tables) "$1" ;;
A | B | C)
    unfinished=0
    "part_$1"
    tables >"$results/tables.md"
    exit $unfinished
    ;;
*) sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
