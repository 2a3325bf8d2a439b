#!/usr/bin/env bash
# Prove --target cuda on a machine with a GPU and without network, in a quarter of an hour.
#
#   scripts/gpu/prove.sh unpack   takes what scripts/gpu/pack.sh made, both files or one after the other
#   scripts/gpu/prove.sh A        versions, clocks, and what torch's products reach; needs nothing of ours
#   scripts/gpu/prove.sh B        two minutes: doctor, the GPU's tests, and an MLP from submit to a verified export
#   scripts/gpu/prove.sh C        eight minutes: the NETWORKS tuned together for TUNE_S seconds, exported, and compared with
#                                 torch and ONNX Runtime, as far as they are installed
#   scripts/gpu/prove.sh tables   prints what is there for docs/guides/gpus.md, and says what was not run
#
# Each step leaves RESULTS/STEP.txt; a part that is called again goes on after the last finished step. A step ends after
# at most PART_S seconds, less what its part has used. KEEP names a file that holds the texts, the reports, the journals
# and the tuning logs after each step. A network is NAME[:PRECISION[:TRIALS]].
#   PARTS (build/gpu)  RESULTS (build/gpu/results)  SITE (/tmp/autotune-gpu)  PART_S (560)  TUNE_S (240)  TURNS (2)
set -uo pipefail
cd "$(dirname "$0")/../.."

parts=${PARTS:-build/gpu} results=${RESULTS:-build/gpu/results} site=${SITE:-/tmp/autotune-gpu}
deadline=$((SECONDS + ${PART_S:-560}))
tune_s=${TUNE_S:-240} turns=${TURNS:-2}
networks=${NETWORKS:-resnet18 resnet18:tf32 resnet18:fp16 bert_layer:fp16 product:fp16:64}
python=${PYTHON:-python3}
steps_A=(versions clocks products)
steps_B=(doctor tests mlp)
steps_C=(submitted tuned rates exported compared)
mkdir -p "$results/workspace"
[ -d "$site/packages" ] && export PYTHONPATH="$site/packages${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
[ -f "$results/workspace/autotune.toml" ] || printf '[export]\ncontenders = 3\n' >"$results/workspace/autotune.toml"
autotune() { "$python" -m autotune --workspace "$results/workspace" "$@"; }

unpack() {
    mkdir -p "$site/packages/tvm/lib"
    local library=libtvm_compiler.so
    [ ! -f "$parts/site.tar.xz" ] || tar --extract --xz --directory "$site/packages" --file "$parts/site.tar.xz"
    [ ! -f "$parts/$library.xz" ] || xz --decompress --stdout "$parts/$library.xz" >"$site/packages/tvm/lib/$library"
}

# step NAME COMMAND...: run it unless it is done; what it says is kept only if it succeeds in time
step() {
    local name=$1 left=$((deadline - SECONDS)) began=$SECONDS
    shift
    [ -f "$results/$name.txt" ] && { echo "== $name: done before"; return 0; }
    [ "$left" -gt 10 ] || { echo "== $name: no time left in this part; call it again"; unfinished=1; return; }
    # The command may be a function, which `timeout` cannot call.
    export -f autotune job_of submit all tune together exported
    if results=$results python=$python tune_s=$tune_s turns=$turns networks=$networks \
        timeout --kill-after=10 "$left" bash -o pipefail -c '"$@"' step "$@" >"$results/$name.part" 2>&1; then
        mv "$results/$name.part" "$results/$name.txt"
        echo "== $name: $((SECONDS - began)) s"
        cut -c1-160 "$results/$name.txt" | tail -n 40
    else
        echo "== $name: not finished (exit $?) after $((SECONDS - began)) s; the end of what it said:"
        tail -n 15 "$results/$name.part"
        unfinished=1
    fi
    [ -z "${KEEP:-}" ] || keep "$KEEP"
}

# job_of NETWORK[:PRECISION[:TRIALS]]
job_of() {
    local network precision
    IFS=: read -r network precision _ <<<"$1"
    echo "$network-${precision:-fp32}"
}

# submit NETWORK[:PRECISION[:TRIALS]]: a job named NETWORK-PRECISION, unless it is there
submit() {
    local network precision trials job
    job=$(job_of "$1")
    IFS=: read -r network precision trials <<<"$1"
    autotune status "$job" >/dev/null 2>&1 && return
    "$python" scripts/gpu/models.py "$network" --output "$results/models/$job" &&
        autotune submit "$results/models/$job/$network.onnx" --name "$job" --target cuda \
            --precision "${precision:-fp32}" --trials "${trials:-320}" --trials-per-round 16
}

# all COMMAND...: run it for each network at the same time
all() {
    local network process processes=() failed=0
    for network in $networks; do "$@" "$network" & processes+=($!); done
    for process in "${processes[@]}"; do wait "$process" || failed=1; done
    return $failed
}

# tune NETWORK: from submit to a verified export
tune() { submit "$1" && autotune daemon run --drain && exported "$1"; }

# exported NETWORK[:PRECISION...]
exported() {
    local job
    job=$(job_of "$1")
    autotune export "$job" --output "$results/exports/$job" 2>&1 | sed "s/^/$job: /"
}

# together: tune all jobs for a while; what the daemon had under way when it is told to end is in the tuning logs
together() {
    "$python" scripts/gpu/utilisation.py --file "$results/utilisation.csv" -- \
        timeout --signal=INT --kill-after=20 "$tune_s" "$python" -m autotune --workspace "$results/workspace" daemon run --drain
    [ $? -ne 1 ] && autotune status
}

# What another machine needs to go on: texts, reports, journals, and the tuning logs without what is derived from them.
keep() {
    local files
    mapfile -t files < <(cd "$results" && find . -name '*.txt' -o -name '*.part' -o -name '*.csv' -o -name 'tables.md' \
        -o -name 'report.json' -o -path './workspace/logs/*' -name '*.json*' ! -name '*.lock' -o -path './workspace/jobs/*' -name '*.jsonl')
    tar --create --gzip --directory "$results" --file "$1" "${files[@]}"
}

part_A() {
    step versions bash -c 'nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv && "$python" -V &&
        "$python" -m pip list 2>/dev/null | grep -iE "^(torch|onnx|numpy|cuda|nvidia|apache)" && nvcc --version | tail -n 2'
    step clocks nvidia-smi --query-gpu=clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,power.draw --format=csv
    step products "$python" scripts/gpu/ceilings.py
}
part_B() {
    step doctor autotune doctor
    step tests bash -c 'nvidia-smi -L && "$python" -m pytest -q -rs -p no:cacheprovider tests/gpu'  # else they are skipped
    step mlp tune mlp:fp32:32
}
part_C() {
    local folders=()
    mapfile -t folders < <(for network in $networks; do echo "$results/exports/$(job_of "$network")"; done)
    step submitted all submit
    step tuned together
    step rates bash -c '"$python" scripts/gpu/rates.py "$@" --workspace "$results/workspace"' rates "${folders[@]##*/}"
    step exported all exported
    mapfile -t folders < <(for name in "${folders[@]}"; do [ ! -f "$name/report.json" ] || echo "$name"; done)
    step compared "$python" scripts/gpu/bench_gpu.py "${folders[@]}" --turns "$turns" --timings 6
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
*) sed -n '2,18s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
