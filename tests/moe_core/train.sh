#!/usr/bin/env bash
# train.sh MOE_TRAIN CASE: one integration case of the training job, on the stand-in libraries.
set -u
train=$1
dir=$(mktemp -d)
main=$BASHPID
trap '[ "$BASHPID" != "$main" ] || rm -rf "$dir"' EXIT
export TMPDIR=$dir
unset RANK WORLD_SIZE LOCAL_RANK MOE_RENDEZVOUS MOE_REMEDIES MOE_TRAIN_SPAWNED

fail() {
    echo "FAILED: $*" >&2
    tail -n 20 "$dir"/*.log "$dir"/*.err >&2
    exit 1
}

# run NAME STATUS ARGS...: runs the job with a time limit and checks its exit status
run() {
    local name=$1 want=$2 got=0
    shift 2
    timeout -k 1 500 "$train" "$@" >"$dir/$name.log" 2>"$dir/$name.err" || got=$?
    [ "$got" = "$want" ] || fail "$name: status $got, expected $want"
}

curve() { grep '^step ' "$dir/$1.log"; }
same_curve() { [ -n "$(curve "$1")" ] && cmp -s <(curve "$1") <(curve "$2") || fail "the losses of $1 and $2 differ"; }
first_empty() { sed -n 's/.*the first: step \([0-9]*\), layer \([0-9]*\), rank \([0-9]*\)$/\1 \2 \3/p' "$dir/$1.log"; }

case $2 in
check)
    for layout in "1 1" "2 2" "4 2" "8 4"; do
        set -- $layout
        run "check-$1-$2-top1" 0 --spawn "$1" --ep "$2" --steps 4 --check
        run "check-$1-$2-top2" 0 --spawn "$1" --ep "$2" --steps 3 --check --topk 2 --microbatches 2
    done
    # Ranks without tokens included: the first ones come within a few steps when batches are tiny.
    run check-empty 0 --spawn 8 --steps 12 --check --tokens 2
    grep -q 'without tokens, the first' "$dir/check-empty.log" || fail 'no rank was ever empty: the case is vacuous'
    ;;
layouts)
    # Each line a job: ranks, then what is different from the plain one. Every one is held against the reference in
    # double precision.
    while read -r ranks options; do
        [ -n "$ranks" ] || continue
        n=$((${n:-0} + 1))
        # shellcheck disable=SC2086
        run "layout-$n" 0 --spawn "$ranks" --steps 2 --layers 2 --hidden 32 --ffn 32 --topk 2 --check $options
    done <<'TABLE'
4 --dispatcher deepep --probs activation
4 --ep 2 --dispatcher allgather --recompute
4 --dispatcher hybridep --probs activation --vary-tokens --uneven max
4 --dispatcher allgather --vary-tokens --uneven bound
4 --etp 2 --ep 2 --bias --probs activation
4 --etp 2 --ep 2 --dispatcher deepep
4 --tp 2 --shared 32 --shared-gate --bias --shared-overlap
4 --tp 2 --tp-mode split --probs input --router mixtral --shared 8 --bias --shared-gate
4 --tp 2 --tp-mode shard --shared 32 --shared-gate --bias --overlap
4 --topk 8 --router deepseek-v3 --capacity 1 --keep-routing --recompute
4 --topk 4 --router gpt-oss --activation clamped --bias --capacity 1 --pad-capacity
4 --router qwen3-moe --microbatches 2 --overlap --buckets 20000 --shared 16 --bias
2 --dtype bf16 --probs activation --activation geglu
2 --dtype f16 --vary-tokens
4 --tp 2 --tp-mode split --router qwen3-moe --microbatches 2
2 --dtype bf16 --tokens 32 --steps 8
4 --dtype bf16 --tp 2 --tp-mode split --router qwen3-moe --microbatches 2 --vary-tokens
4 --dtype f16 --topk 8 --router deepseek-v3 --capacity 1 --tokens 16
2 --tokens 1 --vary-tokens --steps 8 --dispatcher hybridep --uneven max
TABLE
    grep -q 'loss 0.00000' "$dir/layout-19.log" || fail 'some rank always had a token: the case is vacuous'
    # Rows of 16 bits: some token went elsewhere than the best experts of the reference, which took that over.
    grep -q 'routing within 0[.]0*[1-9]' "$dir/layout-16.log" || fail 'no choice was near a tie: the case is vacuous'
    [ "$n" = 19 ] || fail "$n layouts were run"
    ;;
remedies)
    # Ranks without tokens in every second microbatch. Skipped experts hang the job; with a remedy the losses are those
    # of the healthy job, digit by digit.
    set -- --spawn 4 --steps 6 --layers 2 --hidden 32 --ffn 32 --exact --empty-every 2
    run plain 0 "$@"
    [ -n "$(first_empty plain)" ] || fail 'no rank was ever empty: the case is vacuous'
    for remedy in fill pad dummy; do
        MOE_REMEDIES=$remedy run "$remedy" 0 "$@" --legacy skip-empty
        same_curve plain "$remedy"
    done
    run dirty 1 "$@" --legacy wgrad-uninitialised
    grep -q 'a score is not a number' "$dir/dirty.err" ||
        fail 'memory that nobody cleared did no harm: the case is vacuous'
    MOE_REMEDIES=zero-wgrad run zero-wgrad 0 "$@" --legacy wgrad-uninitialised
    same_curve plain zero-wgrad
    run again 0 "$@" --recompute
    same_curve plain again
    MOE_REMEDIES=routing run routing 0 "$@" --recompute --legacy recompute-flip
    same_curve plain routing
    run flip 1 "$@" --recompute --legacy recompute-flip --timeout 8
    grep -q 'the recomputed forward received' "$dir/flip.err" || fail 'the flip was not noticed'
    set -- "$@" --tp 2 --tp-mode split
    run split 0 "$@"
    MOE_REMEDIES=router-sum run router-sum 0 "$@" --legacy router-unsummed
    same_curve split router-sum
    run twice 1 "$@" --check --legacy router-summed-twice
    grep -q 'gradient of gate' "$dir/twice.err" || fail 'a gate summed twice was not noticed'
    run unsummed 1 "$@" --check --legacy router-unsummed
    grep -q 'dense gradients are not equal on all replicas' "$dir/unsummed.err" ||
        fail 'an unsummed gate was not noticed'
    ;;
check-finds)
    run nan 1 --spawn 2 --steps 4 --check --inject nan:step=2
    grep -q 'step 2: gradient of embedding differs from the reference: element 0 (rank 0) is nan, the reference has' \
        "$dir/nan.err" || fail 'the NaN was not named'
    # Experts of rank 1 whose gradients are infinite: the first of backward is w2 of that layer.
    run layer 1 --spawn 2 --steps 4 --check --inject nan:step=2:layer=1
    grep -q 'step 2: gradient of w[12], layer 1, differs from the reference: element [0-9]* (rank 1) is nan' \
        "$dir/layer.err" || fail 'layer and rank of the NaN were not named'
    ;;
learns)
    # Below the bigram entropy of the text a model must have learned from more than the last byte. That holds for the
    # sum of it all; --check, in the other cases, holds each gradient and each parameter.
    set -- --spawn 4 --ep 2 --layers 2 --hidden 32 --ffn 32 --experts 8 --topk 2 --tokens 32 --context 4 --steps 200
    run learns 0 "$@" --must-learn
    run narrow 0 "$@" --must-learn --dtype bf16
    grep -q ': learned$' "$dir/learns.log" || fail 'nothing was said about learning'
    run frozen 1 "$@" --must-learn --lr 0
    grep -q ': NOT LEARNED$' "$dir/frozen.log" || fail 'a job that cannot learn was not refused'
    ;;
resume)
    # Ten steps in one run are five and five in another, in every bit of the losses and of what is saved then; at other
    # layouts within rounding. All tensors that a model can have, and steps within the warm-up and behind it.
    set -- --spawn 4 --layers 2 --hidden 32 --ffn 32 --exact --steps 10 --bias --shared 32 --shared-gate
    n=0
    for router in "--router deepseek-v3 --topk 8" \
        "--router gpt-oss --experts 8 --topk 2 --microbatches 2 --vary-tokens --overlap"; do
        n=$((n + 1)) a="$dir/ckpt$n"
        mkdir "$a"
        # shellcheck disable=SC2086
        {
            run "whole$n" 0 "$@" $router --ep 2 --save "$a/whole"
            run "first$n" 0 "$@" $router --ep 2 --save "$a/part" --save-every 2 --until 5
            run "second$n" 0 "$@" $router --ep 2 --resume "$a/part" --save "$a/part" --check
        }
        [ "$(curve "whole$n" | wc -l)" = 10 ] || fail 'the whole run has not all its steps'
        cmp -s <(curve "whole$n") <(curve "first$n" && curve "second$n") || fail 'the losses of a resumed run differ'
        cmp -s "$a/whole/step-00000010.safetensors" "$a/part/step-00000010.safetensors" || fail 'its weights differ'
        [ "$(find "$a/part" -type f | wc -l)" = 4 ] || fail 'not a file each after steps 2, 4, 5 and 10'
    done
    a=$dir/ckpt1/part/step-00000005.safetensors
    set -- "$@" --router deepseek-v3 --topk 8 --resume "$a"
    for layout in "--ep 4" "--ep 1" "--ep 2 --etp 2" "--tp 2" "--ep 4 --dispatcher deepep"; do
        # shellcheck disable=SC2086
        run "layout" 0 "$@" $layout --check
        awk 'NR == FNR { want[$2] = $4; next }
             { off = $4 - want[$2]; n += off < 1e-4 && off > -1e-4 } END { exit n != 5 }' \
            <(curve whole1) <(curve layout) || fail "$layout: other losses than the job that was saved"
    done
    run tp 0 "$@" --tp 2 --tp-mode shard --check # other batches: ranks of tp have the same tokens
    grep -q 'written with another data-ranks (4, now 2)' "$dir/tp.err" || fail 'nothing was said about other batches'
    ;;
refuses)
    # A file that is damaged, short or foreign is refused in one line that names it, and no rank trains or hangs.
    set -- --spawn 2 --layers 2 --hidden 32 --ffn 32 --experts 8 --steps 4
    run saved 0 "$@" --save "$dir/a" --until 2
    good=$dir/a/step-00000002.safetensors size=$(stat -c %s "$good")
    refused() {
        local name=$1 what=$2
        shift 2
        run "$name" 1 "$@"
        [ "$(wc -l <"$dir/$name.err")" = 1 ] || fail "$name: expected one line"
        grep -q -- "$what" "$dir/$name.err" || fail "$name: it does not say '$what'"
        [ -z "$(curve "$name")" ] || fail "$name: it trained"
    }
    # A flipped byte, in the length of the header, in the header, in the first and in the last tensor, in the checksum.
    for at in 0 20 300 $((size / 2)) $((size - 9)) $((size - 1)); do
        cp "$good" "$dir/flipped"
        byte=$(od -An -tu1 -j "$at" -N 1 "$good")
        printf "\\x$(printf %x $((byte ^ 4)))" | dd of="$dir/flipped" bs=1 seek="$at" conv=notrunc status=none
        refused "flipped-$at" "$dir/flipped is .*; name another checkpoint: --resume FILE" "$@" --resume "$dir/flipped"
    done
    grep -q 'is damaged: the checksum of its bytes' "$dir/flipped-$((size / 2)).err" ||
        fail 'no word about the checksum'
    for bytes in 0 7 100 $((size / 2)) $((size - 1)); do
        head -c "$bytes" "$good" >"$dir/short"
        refused "short-$bytes" "$dir/short is .*it has $bytes bytes" "$@" --resume "$dir/short"
    done
    (cat "$good" && echo) >"$dir/long"
    refused long "$dir/long is damaged: it has $((size + 1)) bytes, by its header $size" "$@" --resume "$dir/long"
    refused foreign 'is no checkpoint of moe_train' "$@" --resume /usr/share/common-licenses/GPL-3
    mkdir "$dir/empty"
    refused empty 'holds no step-NUMBER.safetensors' "$@" --resume "$dir/empty"
    refused absent 'cannot be opened: No such file' "$@" --resume "$dir/absent"
    refused other 'its --hidden is 32, this job.s 64' "$@" --resume "$dir/a" --hidden 64
    refused act 'its --activation is swiglu, this job.s geglu' "$@" --resume "$dir/a" --activation geglu
    refused done 'has 2 steps done already, and this job ends after 2' "$@" --resume "$dir/a" --steps 2
    refused nowhere 'cannot make the folder' "$@" --save "$dir/absent/deep"
    run fine 0 "$@" --resume "$dir/a"
    # Ranks that do not see the same file (a folder that is not shared): another step, or other bytes of the same step.
    run later 0 "$@" --save "$dir/b" --until 3
    run seed 0 "$@" --save "$dir/c" --until 2 --seed 7
    shift 2 # --spawn 2
    mkdir "$dir/one" "$dir/two" "$dir/meet"
    cp "$good" "$dir/one/ck"
    for other in b/step-00000003 c/step-00000002; do
        cp "$dir/$other.safetensors" "$dir/two/ck"
        for rank in 0 1; do
            place=$([ $rank = 0 ] && echo one || echo two)
            (cd "$dir/$place" && RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 MOE_RENDEZVOUS=$dir/meet \
                run "differs-$rank" 1 "$@" --resume ck) &
            jobs[rank]=$!
        done
        wait "${jobs[0]}" && wait "${jobs[1]}" || exit 1
        grep -q 'moe_train: --resume: ck is not the same file on all ranks' "$dir/differs-0.err" ||
            fail "$other: it does not say that the files differ"
        [ -z "$(curve differs-0)$(curve differs-1)" ] || fail "$other: it trained"
    done
    ;;
no-memory)
    # A rank that has no memory to gather with: all ranks end, the rank is named, and nothing half written is there. The
    # largest gather is that of the embeddings, 3 x 256 x 36 floats, which is no size of the pool.
    library=$3
    set -- --spawn 2 --ep 2 --layers 1 --context 3 --hidden 36 --ffn 8 --experts 4 --steps 2
    run plain 0 "$@" --save "$dir/a"
    export NO_MEMORY_BYTES=110592
    for rank in 0 1; do
        NO_MEMORY_RANK=$rank LD_PRELOAD=$library run "rank-$rank" 1 "$@" --save "$dir/b"
        grep -q "moe_train: --save: rank $rank has no memory to gather $dir/b/step-00000002.safetensors" \
            "$dir/rank-$rank.err" || fail "nothing was said about rank $rank"
        [ "$(curve "rank-$rank" | wc -l)" = 2 ] || fail 'the premise failed: it did not come to the save'
        [ -z "$(find "$dir/b" -type f)" ] || fail 'something is written'
    done
    NO_MEMORY_RANK=2 LD_PRELOAD=$library run other 0 "$@" --save "$dir/b" # of a rank that is not there
    cmp -s "$dir/a/step-00000002.safetensors" "$dir/b/step-00000002.safetensors" || fail 'another file'
    ;;
start-no-memory)
    # A rank that lacks memory before the first step, at one request after the other, or has no text: it says so in one
    # line, and each of the others says in one which rank ended the job, those of its expert parallel group and those of
    # the other. No launcher is there who would end the others behind the first one.
    library=$3
    export WORLD_SIZE=4 NO_MEMORY_RANK=1 MOE_RENDEZVOUS=$dir/meet
    mkdir "$dir/meet"
    plain=(--ep 2 --layers 1 --context 3 --hidden 32 --ffn 8 --experts 32 --router deepseek-v3 --topk 8 --overlap
        --hazard bias-twice:healthy --steps 1)
    # start NAME OPTION...: all ranks, rank 1 with the options; the sum of their statuses is in `got`
    start() {
        local name=$1 rank pid pids=() more
        shift
        for rank in 0 1 2 3; do
            more=()
            [ "$rank" != 1 ] || more=("$@")
            RANK=$rank LD_PRELOAD=$library timeout -k 1 500 "$train" "${plain[@]}" "${more[@]}" \
                >"$dir/$name-$rank.log" 2>"$dir/$name-$rank.err" &
            pids+=($!)
        done
        got=0
        for pid in "${pids[@]}"; do
            wait "$pid" || got=$((got + $?))
        done
    }
    # refused NAME WORDS: all ranks have ended, and no step was taken; rank 1 says the words
    refused() {
        local rank of='rank 1 of the group could not make its layer'
        local ends="( ends, because rank 1 cannot start|: layers: .*$of): ."
        [ "$got" = 4 ] || fail "$1: the statuses add up to $got"
        for rank in 0 1 2 3; do
            [ "$(wc -l <"$dir/$1-$rank.err")" = 1 ] || fail "$1: not one line of rank $rank"
            [ -z "$(curve "$1-$rank")" ] || fail "$1: a step was taken"
            [ "$rank" = 1 ] || grep -Eq "^moe_train: rank $rank$ends" "$dir/$1-$rank.err" ||
                fail "$1: rank $rank was not told"
        done
        grep -q "$2" "$dir/$1-1.err" || fail "$1: rank 1 does not say what it lacks"
    }
    for nth in $(seq 0 "${START_STRIDE:-13}" 1000); do
        NO_MEMORY_NTH=$nth start "nth-$nth"
        [ "$got" != 0 ] || break # there are no more requests
        refused "nth-$nth" '^moe_train: rank 1: .*out of memory'
    done
    [ "$nth" -gt 60 ] || fail "only $nth requests were tried"
    start text --text "$dir/absent"
    refused text "cannot read $dir/absent"
    grep -q 'rank 0 ends, because rank 1 cannot start: it has no text to train with$' "$dir/text-0.err" ||
        fail 'rank 0 was not told why'
    ;;
check-no-memory)
    # A rank that has no memory to gather with for --check: all ranks end by it. The largest gather is that of the
    # experts, 16 x 3 x 64 x 36 floats, which is no other size of the job.
    library=$3
    set -- --spawn 2 --ep 2 --layers 1 --context 3 --hidden 36 --ffn 64 --experts 16 --steps 2 --check
    export NO_MEMORY_BYTES=442368
    for rank in 0 1; do
        NO_MEMORY_RANK=$rank LD_PRELOAD=$library run "rank-$rank" 1 "$@"
        grep -q "moe_train: --check: rank $rank has no memory to check step 0" "$dir/rank-$rank.err" ||
            fail "nothing was said about rank $rank"
        for told in 0 1; do
            grep -q "^moe_train: rank $told: check: out of memory" "$dir/rank-$rank.err" ||
                fail "rank $told did not end by itself"
        done
        [ -z "$(curve "rank-$rank")" ] || fail 'a step was taken'
    done
    NO_MEMORY_RANK=2 LD_PRELOAD=$library run other 0 "$@" # of a rank that is not there
    ;;
killed)
    # Killed in the middle of a save: the older checkpoint is whole, the new one is not there, and what is half written
    # goes with the next job that saves. A pipe in the place of the file holds the writer: it stands there for certain.
    set -- --spawn 2 --layers 2 --hidden 32 --ffn 32 --experts 8 --steps 4 --exact
    run first 0 "$@" --save "$dir/a" --until 1
    "$train" "$@" --resume "$dir/a" --save "$dir/a" --save-every 1 --hold "$dir/go" >"$dir/b.log" 2>"$dir/b.err" &
    launcher=$!
    until grep -q '^moe_train: resumes after 1 steps' "$dir/b.log" 2>/dev/null; do
        kill -0 $launcher || fail 'it did not resume'
        sleep 0.05
    done
    half=$dir/a/.step-00000002.safetensors.part
    mkfifo "$half"
    run locked 1 "$@" --save "$dir/a"
    grep -q 'another job saves there' "$dir/locked.err" || fail 'two jobs save to one folder'
    touch "$dir/go"
    head -c 1000 <"$half" >/dev/null & # opens it, reads a little, and goes: by then the writer is in the middle
    reader=$!
    exec 9<"$half" # so that the writer stands and gets no SIGPIPE
    wait $reader
    mapfile -t ranks < <(pgrep -P $launcher)
    kill -KILL $launcher "${ranks[@]}"
    wait $launcher 2>/dev/null
    exec 9<&-
    [ "${#ranks[@]}" = 2 ] && [ -p "$half" ] || fail 'the premise failed'
    [ "$(find "$dir/a" -type f)" = "$dir/a/step-00000001.safetensors" ] || fail 'more or less than the older file'
    run again 0 "$@" --resume "$dir/a" --save "$dir/a"
    [ ! -e "$half" ] || fail 'what was half written is still there'
    run whole 0 "$@"
    cmp -s <(curve whole) <(curve first && curve again) || fail 'the losses after a kill differ'
    # No room on the disk: the job says so and ends, the older files stay.
    rm "$dir/go"
    run full 1 "$@" --resume "$dir/a/step-00000001.safetensors" --save "$dir/a" --save-every 1 --hold "$dir/go" &
    full=$!
    until grep -q '^moe_train: resumes after 1 steps' "$dir/full.log" 2>/dev/null; do
        kill -0 $full || fail 'it did not resume'
        sleep 0.05
    done
    ln -s /dev/full "$half"
    touch "$dir/go"
    wait $full || exit 1
    grep -q 'step-00000002.safetensors cannot be written: No space left on device; older files there are whole' \
        "$dir/full.err" || fail 'nothing was said about the full disk'
    [ ! -e "$dir/a/step-00000002.safetensors" ] && [ ! -L "$half" ] || fail 'something half written is there'
    ;;
validates)
    # The held-out tenth is never learned from, and a model that has learned is better on it than a new one.
    set -- --spawn 4 --ep 2 --layers 2 --hidden 32 --ffn 32 --experts 8 --topk 2 --tokens 32 --context 4 --exact
    run learns 0 "$@" --steps 200 --validate 100
    [ "$(grep -c '^validation after [0-9]* steps: held-out loss [0-9.]*, training loss' "$dir/learns.log")" = 2 ] ||
        fail 'not a validation after 100 steps and after 200'
    awk '/^validation/ { loss[++n] = $7 + 0 } END { exit !(n == 2 && loss[2] < loss[1] && loss[2] < 3.0) }' \
        "$dir/learns.log" || fail 'the held-out loss does not fall'
    # It changes nothing: neither the losses, nor with expert biases or --check.
    set -- "$@" --steps 4 --router deepseek-v3 --experts 32 --topk 8 --check
    run often 0 "$@" --validate 1
    run once 0 "$@" --validate 4
    same_curve often once
    # Only bytes of the first nine tenths are in batches: what stands behind them has no influence.
    head -c 9000 /usr/share/common-licenses/GPL-3 >"$dir/head"
    (cat "$dir/head" && head -c 1000 /dev/zero | tr '\0' x) >"$dir/x"
    (cat "$dir/head" && head -c 1000 /dev/zero | tr '\0' y) >"$dir/y"
    run x 0 "$@" --validate 4 --text "$dir/x"
    run y 0 "$@" --validate 4 --text "$dir/y"
    same_curve x y
    ! cmp -s <(grep '^validation' "$dir/x.log") <(grep '^validation' "$dir/y.log") || fail 'held-out bytes play no part'
    ;;
curves)
    run plain 0 --spawn 8 --exact
    [ -n "$(first_empty plain)" ] || fail 'no rank was ever empty: the case is vacuous'
    MOE_REMEDIES=fill run fill 0 --spawn 8 --exact --legacy-skip
    MOE_REMEDIES=pad run pad 0 --spawn 8 --exact --legacy-skip
    MOE_REMEDIES=fill,pad run both 0 --spawn 8 --exact
    same_curve plain fill
    same_curve plain pad
    same_curve plain both
    ;;
legacy-hang)
    run plain 0 --spawn 8 --exact
    run legacy 3 --spawn 8 --exact --legacy-skip --timeout 8 --verbose
    read -r step layer rank <<<"$(first_empty plain)"
    grep -q "rank $rank: step $step, layer $layer: no tokens, experts skipped" "$dir/legacy.err" ||
        fail 'nobody skipped where expected'
    grep -q "watchdog: step $step (training): no progress for [0-9]* s" "$dir/legacy.err" ||
        fail 'the watchdog did not name the step'
    [ "$(curve legacy)" = "$(curve plain | head -n "$step")" ] || fail 'the steps before the hang differ'
    ;;
faults)
    # All at once: each of them waits for its own timeout and little else.
    limit=5
    jobs=()
    for fault in skip-collective extra-collective wrong-count zero-count wrong-root swap-comms skip-backward exit \
        sleep stop; do
        run "$fault" 3 --spawn 4 --ep 2 --steps 4 --timeout $limit --inject "$fault:step=2" &
        jobs+=($!)
    done
    run kill 137 --spawn 4 --ep 2 --steps 4 --timeout $limit --inject kill:step=2 &
    jobs+=($!)
    run skip-expert 3 --spawn 4 --ep 2 --steps 4 --timeout $limit --inject skip-collective:step=2:layer=1 &
    jobs+=($!)
    for job in "${jobs[@]}"; do
        wait "$job" || exit 1
    done
    for name in skip-collective extra-collective wrong-count zero-count wrong-root swap-comms skip-backward exit sleep \
        stop kill skip-expert; do
        [ "$(curve "$name" | wc -l)" = 2 ] || fail "$name: the job should hang in step 2"
    done
    run healthy 0 --spawn 4 --ep 2 --steps 4
    ;;
usage)
    run unknown 2 --nonsense
    run number 2 --steps many
    run range 2 --steps 0
    run fault 2 --inject nothing
    run member 2 --inject kill:when=3
    run text 1 --text /nonexistent/text
    RANK=3 WORLD_SIZE=2 run rank 1
    run layout 2 --spawn 3 --ep 2
    run choice 2 --dispatcher nothing
    run behaviour 2 --legacy nothing
    MOE_REMEDIES=fill,nothing run remedy 2
    run far 2 --spawn 2 --inject kill:rank=2
    run preset 2 --router nothing
    run help 0 --help
    for name in unknown number range fault member text rank layout choice behaviour preset; do
        [ "$(wc -l <"$dir/$name.err")" = 1 ] || fail "$name: expected one line"
    done
    # What makes no sense together: one line, and no rank is started.
    while read -r options; do
        [ -n "$options" ] || continue
        n=$((${n:-0} + 1))
        # shellcheck disable=SC2086
        run "together-$n" 2 --spawn 2 --steps 1 $options
        [ "$(wc -l <"$dir/together-$n.err")" = 1 ] || fail "$options: expected one line"
    done <<'TABLE'
--tp 3
--tp 2 --tp-mode split --tokens 3
--tp 2 --tp-mode shard --etp 2
--etp 2 --ep 2
--tp-mode split
--shared-gate
--shared-overlap
--shared 8 --shared-overlap --dispatcher allgather
--shared 8 --shared-overlap --recompute
--tp 2 --shared 8 --vary-tokens
--tp 2 --tp-mode split --shared 8 --shared-overlap
--keep-routing
--save-every 2
--until 2
--pad-capacity
--capacity 1 --pad-capacity --dispatcher deepep
--capacity 1 --pad-capacity --vary-tokens
--uneven max
--token-bound 16
--dispatcher allgather --uneven bound --token-bound 7
--hazard grad-norm --resume somewhere
--legacy recompute-flip
--legacy router-unsummed
--tp 2 --legacy router-unsummed
--tp 2 --legacy router-summed-twice
--tp 2 --tp-mode split --legacy router-unsummed --legacy router-summed-twice
--legacy bucket-wait --buckets 100000
--legacy only-with-grad
--legacy slack-uninitialised
--legacy local-capacity
--overlap --inject skip-collective
--buckets 100000 --inject swap-comms
TABLE
    [ "$n" = 32 ] || fail "$n combinations were tried"
    # Ended from outside: the ranks end too, and the directory in which they met goes.
    "$train" --spawn 4 --steps 100000 >"$dir/ended.log" 2>"$dir/ended.err" &
    launcher=$! got=0
    until grep -q '^step 3' "$dir/ended.log"; do sleep 0.05; done
    kill -TERM "$launcher"
    wait "$launcher" || got=$?
    [ "$got" = 143 ] || fail "ended by SIGTERM: status $got, expected 143"
    [ -z "$(find "$dir" -name 'moe-*')" ] || fail 'something was left behind'
    ;;
*)
    fail "no case $2"
    ;;
esac
