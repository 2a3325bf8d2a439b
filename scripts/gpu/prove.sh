#!/usr/bin/env bash
# Prove --target cuda on a machine with a GPU and without network: three calls of nine minutes at most, in this order.
#
#   scripts/gpu/prove.sh a        doctor, the GPU's tests, what torch's products reach, and products tuned, exported, compared
#   scripts/gpu/prove.sh b        ResNet-18 and ResNet-50 in fp32, TF32 and fp16, at batch 1 and 32, likewise
#   scripts/gpu/prove.sh c        a layer of BERT-base in fp16; torch.compile as max-autotune; compute-sanitizer
#   scripts/gpu/prove.sh tables   prints what is there for docs/guides/gpus.md, and says what was not finished
#
# A call first takes what scripts/gpu/pack.sh made, and what another machine has kept, from PARTS. Each step leaves
# RESULTS/STEP.txt; a call that is repeated goes on after its last finished step, and a step ends after at most CALL_S
# seconds, less what its call has used. After each step there are the texts as one table, and, in pieces of 15 MiB that
# begin with KEEP, the texts, reports, journals and tuning logs. A network is NAME[:PRECISION[:TRIALS]].
#   PARTS (build/gpu)  RESULTS (build/gpu/results)  SITE (/tmp/autotune-gpu)  KEEP  CALL_S (530)  TURNS (1)
#   NETWORKS, TUNE_S (those of the call)  CHECKED (the four that c looks at)
set -uo pipefail
cd "$(dirname "$0")/../.."

parts=${PARTS:-build/gpu} results=${RESULTS:-build/gpu/results} site=${SITE:-/tmp/autotune-gpu}
deadline=$((SECONDS + ${CALL_S:-530}))
turns=${TURNS:-1} python=${PYTHON:-python3}
together=4 # networks that are compared at the same time: a process for each way
most=8     # pieces
mkdir -p "$results/workspace"
[ -f "$results/workspace/autotune.toml" ] || printf '[export]\ncontenders = 3\n' >"$results/workspace/autotune.toml"

autotune() { "$python" -m autotune --workspace "$results/workspace" "$@"; }

unpack() {
    local library=libtvm_compiler.so
    mkdir -p "$site/packages/tvm/lib"
    if [ -f "$parts/$library.xz" ] && [ ! -f "$site/packages/tvm/lib/$library" ]; then
        tar --extract --xz --directory "$site/packages" --file "$parts/site.tar.xz" &&
            xz --decompress --stdout "$parts/$library.xz" >"$site/packages/tvm/lib/$library" || return
    fi
    if [ -f "$parts/kept.tar.gz.00" ] && [ -z "$(find "$results" -maxdepth 1 -name '*.txt')" ]; then
        # Its jobs are submitted again, and find their trials in the logs; libraries are made again where they are needed.
        cat "$parts"/kept.tar.gz.* | tar --extract --gzip --directory "$results" --exclude='./workspace/jobs/*'
        rm -f "$results"/submitted_*.txt "$results"/exported_*.txt
    fi
}

# step NAME COMMAND...: run it unless it is done; what it says is kept only if it succeeds in time
step() {
    local name=$1 left=$((deadline - SECONDS)) began=$SECONDS
    shift
    [ -f "$results/$name.txt" ] && { echo "== $name: done before"; return 0; }
    [ "$left" -gt 10 ] || { echo "== $name: no time left in this call; repeat it"; unfinished=1; return; }
    # The command may be a function, which `timeout` cannot call.
    export -f autotune job_of submit all exported there tuned sanitized
    if results=$results python=$python turns=$turns networks=$networks tune_s=$tune_s \
        timeout --kill-after=10 "$left" bash -o pipefail -c '"$@"' step "$@" >"$results/$name.part" 2>&1; then
        mv "$results/$name.part" "$results/$name.txt"
        echo "== $name: $((SECONDS - began)) s"
        cut -c1-160 "$results/$name.txt" | tail -n 40
    else
        echo "== $name: not finished (exit $?) after $((SECONDS - began)) s; the end of what it said:"
        tail -n 15 "$results/$name.part"
        unfinished=1
    fi
    tables >"$results/tables.md"
    [ -z "${KEEP:-}" ] || keep
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
            --precision "${precision:-fp32}" --trials "${trials:-240}" --trials-per-round 16
}

# all COMMAND...: run it for each network at the same time
all() {
    local network process processes=() failed=0
    for network in $networks; do "$@" "$network" & processes+=($!); done
    for process in "${processes[@]}"; do wait "$process" || failed=1; done
    return $failed
}

# exported NETWORK[:PRECISION...]
exported() {
    local job
    job=$(job_of "$1")
    [ -f "$results/exports/$job/model.so" ] || autotune export "$job" --output "$results/exports/$job" 2>&1 | sed "s/^/$job: /"
}

# there NETWORK[:PRECISION...]: see to it that its library is there, on whatever machine it was tuned
there() { [ -f "$results/exports/$(job_of "$1")/model.so" ] || { submit "$1" && exported "$1"; }; }

# tuned: tune all jobs for a while; what the daemon had under way when it is told to end is in the tuning logs
tuned() {
    "$python" scripts/gpu/utilisation.py --file "$results/utilisation.csv" -- \
        timeout --signal=INT --kill-after=20 "$tune_s" "$python" -m autotune --workspace "$results/workspace" daemon run --drain
    [ $? -ne 1 ] && autotune status
}

# sanitized JOB: what compute-sanitizer finds in the library of a job
sanitized() {
    local tool
    command -v compute-sanitizer >/dev/null || { echo "skipped: no compute-sanitizer here"; return; }
    for tool in memcheck racecheck; do
        compute-sanitizer --tool "$tool" --error-exitcode 3 "$python" "$results/exports/$1/run.py" || return
    done
}

# What another machine needs to go on, without what is derived from it.
keep() {
    local files
    mapfile -t files < <(cd "$results" && find . -name '*.txt' -o -name '*.part' -o -name '*.csv' -o -name 'tables.md' \
        -o -name 'report.json' -o -path './workspace/logs/*' -name '*.json*' ! -name '*.lock' -o -path './workspace/jobs/*' -name '*.jsonl')
    rm -f "$KEEP".*
    tar --create --gzip --directory "$results" "${files[@]}" | split --bytes=15M --numeric-suffixes - "$KEEP."
    [ "$(find "$(dirname "$KEEP")" -name "$(basename "$KEEP").*" | wc -l)" -lt $most ] || echo "== too much is kept for $most files"
}

# networks_of CALL: tune, export and compare its networks
networks_of() {
    local network group=() number=0
    step "submitted_$1" all submit
    step "tuned_$1" tuned
    local jobs=()
    for network in $networks; do jobs+=("$(job_of "$network")"); done
    step "rates_$1" "$python" scripts/gpu/rates.py "${jobs[@]}" --workspace "$results/workspace"
    step "exported_$1" all exported
    for network in "${jobs[@]}"; do
        [ ! -f "$results/exports/$network/model.so" ] || group+=("$results/exports/$network")
        if [ ${#group[@]} -eq $together ] || { [ "$network" = "${jobs[-1]}" ] && [ ${#group[@]} -gt 0 ]; }; then
            number=$((number + 1))
            step "compared_$1$number" "$python" scripts/gpu/bench_gpu.py "${group[@]}" --turns "$turns" --timings 6
            group=()
        fi
    done
}

call_a() {
    local size
    if [ -z "$networks" ]; then
        for size in 1024x1024x1024 4096x4096x4096 128x768x768 128x768x3072 128x3072x768; do
            networks+=" product_$size:fp16:64 product_$size:tf32:64"
        done
    fi
    step versions bash -c '{ nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv || nvidia-smi -L; } && "$python" -V &&
        "$python" -m pip list 2>/dev/null | grep -iE "^(torch|onnx|numpy|cuda|nvidia|apache)"; nvcc --version | tail -n 2'
    step doctor autotune doctor
    step tests bash -c 'nvidia-smi -L && "$python" -m pytest -q -rs -p no:cacheprovider tests/gpu' # else they are skipped
    step ceilings "$python" scripts/gpu/ceilings.py
    networks_of a
}

call_b() {
    local network
    if [ -z "$networks" ]; then
        for network in resnet18 resnet50 resnet18_b32 resnet50_b32; do networks+=" $network:fp32 $network:tf32 $network:fp16"; done
    fi
    networks_of b
}

call_c() {
    local network job
    networks=${networks:-bert_layer:fp16:320}
    networks_of c
    for network in ${CHECKED:-bert_layer:fp16 resnet18:fp16 resnet18_b32:tf32 product_4096x4096x4096:fp16}; do
        job=$(job_of "$network")
        step "there_$job" there "$network"
        step "autotuned_$job" "$python" scripts/gpu/bench_gpu.py "$results/exports/$job" --turns 1 --timings 6 --ways ours torch_compile_most
        step "sanitized_$job" sanitized "$job"
    done
}

tables() {
    local file
    find "$results" -maxdepth 1 -name '*.txt' -printf '%T@ %p\n' | sort -n | cut -d' ' -f2- | while read -r file; do
        printf '\n### %s\n\n' "$(basename "$file" .txt)"
        sed 's/^/    /' "$file"
    done
    find "$results" -maxdepth 1 -name '*.part' -printf '\nNot finished: %f\n'
}

unfinished=0 networks=${NETWORKS:-}
case ${1:-} in
tables) tables ;;
a | b | c)
    declare -A seconds=([a]=120 [b]=200 [c]=60)
    tune_s=${TUNE_S:-${seconds[$1]}}
    unpack || exit
    [ -d "$site/packages" ] && export PYTHONPATH="$site/packages${PYTHONPATH:+:$PYTHONPATH}"
    export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
    "call_$1"
    exit $unfinished
    ;;
*) sed -n '2,17s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
