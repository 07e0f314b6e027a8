# scripts/lib.sh: what demo and test share: quiet steps with progress, and building. Sourced, never run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=$(nproc)
logs=$root/build/logs
mkdir -p "$logs"

log_of() { printf '%s/%s.log' "$logs" "$(printf '%s' "$1" | tr -cs 'a-zA-Z0-9' '-')"; } # NAME of a step

# step NAME COMMAND...: runs it with its output in a log; one line when it is done; the log's end when it failed.
# On a terminal the line counts the seconds while it runs; elsewhere a line a minute says that it still runs.
step() {
    local name=$1 log start pid now last=0
    shift
    log=$(log_of "$name")
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

# what_failed LOG [LINES]: what the tests that failed printed, the last LINES (30) of each, out of ctest's log.
what_failed() {
    awk -v keep="${2:-30}" '
        function tell(   i) {
            if (failed) {
                print head
                for (i = n > keep ? n - keep : 0; i < n; i++) { print "    " line[i] }
            }
            failed = n = 0
        }
        /^ *Start +[0-9]+: / { tell(); next }
        /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / {
            tell(); head = $0; failed = /\*\*\*(Failed|Timeout|Exception|Not Run)/; next
        }
        /^[0-9]+% tests passed/ { exit }
        NF { line[n++] = $0 }
        END { tell() }' "$1"
}

configure_and_build() { # PRESET [TARGET...]
    local preset=$1
    shift
    cmake --preset "$preset" && cmake --build --preset "$preset" -j "$jobs" ${1:+--target "$@"}
}
