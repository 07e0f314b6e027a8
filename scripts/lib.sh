# scripts/lib.sh: what demo and test share: quiet steps with progress, and building. Sourced, never run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=$(nproc)
logs=$root/build/logs
mkdir -p "$logs"

# step NAME COMMAND...: runs it with its output in a log; one line when it is done; the log's end when it failed.
# On a terminal the line counts the seconds while it runs; elsewhere a line a minute says that it still runs.
step() {
    local name=$1 log start pid now last=0
    shift
    log=$logs/$(printf '%s' "$name" | tr -cs 'a-zA-Z0-9' '-').log
    start=$SECONDS
    "$@" >"$log" 2>&1 </dev/null &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.2
        now=$((SECONDS - start))
        if [ -t 1 ]; then
            printf '\r  %-44s %4d s ' "$name" "$now"
        elif [ $((now / 60)) -gt "$last" ]; then
            last=$((now / 60))
            printf '  %-44s %4d s, still running\n' "$name" "$now"
        fi
    done
    local rc=0
    wait "$pid" || rc=$?
    now=$((SECONDS - start))
    [ -t 1 ] && printf '\r'
    if [ "$rc" = 0 ]; then
        printf '  %-44s %4d s  ok\n' "$name" "$now"
    else
        printf '  %-44s %4d s  FAILED (status %d); the end of %s:\n\n' "$name" "$now" "$rc" "${log#"$root"/}"
        tail -n 60 "$log"
        printf '\n'
    fi
    return "$rc"
}

configure_and_build() { # PRESET [TARGET...]
    local preset=$1
    shift
    cmake --preset "$preset" && cmake --build --preset "$preset" -j "$jobs" ${1:+--target "$@"}
}
