#!/usr/bin/env bash
# Prove --target cuda on a machine with a GPU and without network, in parts of under ten minutes each.
#
#   scripts/gpu/prove.sh unpack   takes what scripts/gpu/pack.sh made, once for each transfer, in any order
#   scripts/gpu/prove.sh A        versions, clocks, and what torch reaches: products, ResNet-18 and 50
#   scripts/gpu/prove.sh B        compilers, doctor, the GPU's tests; an MLP and ResNet-18 from submit to export; two jobs at once;
#                                 ResNet-18 beside torch and ONNX Runtime, as far as they are installed
#   scripts/gpu/prove.sh C        ResNet-50, a BERT layer, a 4096-cubed product; ResNet-18 in fp16 and TF32; all of them beside
#                                 the others; four jobs at once; a prior from all of these trials
#   scripts/gpu/prove.sh tables   prints what is there for docs/guides/gpus.md, and says what was not run
#
# Each step leaves RESULTS/STEP.txt; a part that is called again goes on after the last finished step. A step ends after
# at most PART_S seconds, less what its part has used, and daemons go on where they were killed. KEEP names a file that
# each part leaves its results and trials in: as PARTS/rest/kept.tar.gz, `unpack` brings them to the next machine.
#   PARTS (build/gpu)  RESULTS (build/gpu/results)  SITE (/tmp/autotune-gpu)  PART_S (560)  TRIALS (400)  KEEP (none)
set -uo pipefail
cd "$(dirname "$0")/../.."

parts=${PARTS:-build/gpu} results=${RESULTS:-build/gpu/results} site=${SITE:-/tmp/autotune-gpu}
deadline=$((SECONDS + ${PART_S:-560}))
trials=${TRIALS:-400}
python=${PYTHON:-python3}
steps_A=(versions clocks products torch_resnet18 torch_resnet50)
steps_B=(compilers doctor tests mlp resnet18 pair bench_resnet18)
steps_C=(resnet50 bert_layer product resnet18_fp16 resnet18_tf32
    bench_resnet50 bench_bert_layer bench_product bench_resnet18-fp16 bench_resnet18-tf32 four prior)
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
    [ -f "$parts/rest/kept.tar.gz" ] && tar --extract --gzip --directory "$results" --file "$parts/rest/kept.tar.gz"
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
    export -f autotune submitted tune pair four bench prior
    if results=$results python=$python trials=$trials timeout --kill-after=10 "$left" bash -c '"$@"' step "$@" >"$results/$name.part" 2>&1; then
        mv "$results/$name.part" "$results/$name.txt"
        cat "$results/$name.txt"
    else
        echo "   not finished (exit $?); the end of what it said:"
        tail -n 15 "$results/$name.part"
        unfinished=1
    fi
}

# submitted NAME TRIALS [NETWORK PRECISION [OPTION...]]: the job, unless it is there; trials of before are found in the logs
submitted() {
    local name=$1 budget=$2 network=${3:-$1} precision=${4:-fp32} models=$results/models
    autotune status "$name" >/dev/null 2>&1 && return
    "$python" scripts/gpu/models.py "$network" --output "$models" &&
        autotune submit "$models/$network.onnx" --name "$name" --target cuda --precision "$precision" \
            --trials "$budget" --trials-per-round 16 "${@:5}"
}

# tune NAME TRIALS [NETWORK PRECISION]: from submit to a verified export; a job that is there goes on
tune() {
    submitted "$@" || return
    autotune daemon run --drain || return
    autotune export "$1" --output "$results/$1" || return
    "$python" -c "import json, sys; r = json.load(open(sys.argv[1])); print(r['latency'], 'largest error', r['largest_relative_error'])" \
        "$results/$1/report.json"
}

pair() {
    local name
    for name in mlp resnet18; do submitted "$name-again" $((trials / 6 + 1)) "$name" fp32 --fresh || return; done
    "$python" scripts/gpu/utilisation.py --file "$results/utilisation.csv" -- \
        "$python" -m autotune --workspace "$results/workspace" daemon run --drain
}

four() {
    local name jobs=()
    for name in resnet18 resnet50 bert_layer mlp; do
        submitted "$name-beside" $((trials / 4)) "$name" fp32 --fresh || return
        jobs+=("$name-beside")
    done
    autotune daemon run --drain && "$python" scripts/gpu/rates.py "${jobs[@]}" --workspace "$results/workspace"
}

bench() {
    local precision=fp32 others=()
    [[ $1 == *-fp16 ]] && precision=fp16
    [[ $1 == *-tf32 ]] && precision=tf32 && others=(--tf32)
    submitted "$1" "$trials" "${1%-"$precision"}" "$precision" &&
        "$python" scripts/gpu/bench_gpu.py "$1" --workspace "$results/workspace" "${others[@]}"
}

prior() {
    for name in mlp resnet18 resnet50 bert_layer product; do submitted "$name" "$trials" || return; done
    for precision in fp16 tf32; do submitted "resnet18-$precision" "$trials" resnet18 "$precision" || return; done
    "$python" scripts/models/train_prior.py "$results/workspace" --target cuda --output "$results/cuda.ubj.xz"
}

# What another machine needs to go on: texts, reports, and the tuning logs without what is derived from them.
keep() {
    local found
    mapfile -t found < <(cd "$results" && find . -name '*.txt' -o -name '*.csv' -o -name 'tables.md' -o -name 'report.json' \
        -o -name '*.xz' -o -path './workspace/logs/tuning/*' -name '*.json*' ! -name '*.lock')
    tar --create --gzip --directory "$results" --file "$1" "${found[@]}"
}

part_A() {
    step versions bash -c 'nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv && "$python" -V || exit
        "$python" -m pip list 2>/dev/null | grep -iE "^(torch|onnx|numpy|cuda|nvidia|apache)"
        nvcc --version | tail -n 2'
    step clocks nvidia-smi --query-gpu=clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,power.draw --format=csv
    step products "$python" scripts/gpu/ceilings.py products
    step torch_resnet18 "$python" scripts/gpu/ceilings.py resnet18
    step torch_resnet50 "$python" scripts/gpu/ceilings.py resnet50
}
part_B() {
    step compilers "$python" scripts/gpu/compilers.py
    step doctor autotune doctor
    step tests bash -c 'nvidia-smi -L && "$python" -m pytest -q -rs -p no:cacheprovider tests/gpu'  # else they are skipped
    step mlp tune mlp 32
    step resnet18 tune resnet18 "$trials"
    step pair pair
    step bench_resnet18 bench resnet18
}
part_C() {
    local name
    for name in resnet50 bert_layer product; do
        step "$name" tune "$name" "$trials"
    done
    step resnet18_fp16 tune resnet18-fp16 "$trials" resnet18 fp16
    step resnet18_tf32 tune resnet18-tf32 "$trials" resnet18 tf32
    for name in resnet50 bert_layer product resnet18-fp16 resnet18-tf32; do
        step "bench_$name" bench "$name"
    done
    step four four
    step prior prior
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
    [ -z "${KEEP:-}" ] || keep "$KEEP"
    exit $unfinished
    ;;
*) sed -n '2,17s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
