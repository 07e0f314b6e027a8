#!/bin/sh
# check_real.sh PROGRAM LIBRARY PRELOAD AUDITOR FRONTS: the vendor's NCCL on a machine without a GPU answers the same
# with us as without us, bound by linking, by lookup and by a front. LIBRARY empty: skipped.
set -u
program=$1 library=$2 preload=$3 auditor=$4 fronts=$5
if [ ! -e "$library" ]; then
    echo "SKIPPED: no libnccl.so.2 of the vendor on this machine" \
        "(looked in CUDA's directories; ROLL_VENDOR_NCCL_LIBRARY)"
    exit 77
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
chmod 700 "$work"
directory=$(dirname "$library")
LD_LIBRARY_PATH=$directory ROLLCALL_DIR=$work
export LD_LIBRARY_PATH ROLLCALL_DIR
unset NCCL_DEBUG LD_PRELOAD LD_AUDIT
failed=0

run() { # NAME VARIABLES... -- ARGUMENTS...: the text of one run, without what names the process
    name=$1
    shift
    env "$@" >"$work/$name.raw" 2>"$work/$name.err"
    rc=$?
    [ $rc = 0 ] || { echo "$name: exit $rc"; cat "$work/$name.err"; failed=1; }
    sed 's/\[[0-9:]*\]/[]/g' "$work/$name.raw" >"$work/$name"
}
same() { # BARE WITH
    cmp -s "$work/$1" "$work/$2" && [ -s "$work/$2" ] || {
        echo "$2 differs from $1:"
        diff "$work/$1" "$work/$2" | head -20
        failed=1
    }
    if ! cmp -s "$work/$1.err" "$work/$2.err"; then
        echo "$2 says on standard error what $1 does not:"
        diff "$work/$1.err" "$work/$2.err" | head
        failed=1
    fi
}

run linked_bare "$program"
run linked LD_PRELOAD="$preload" "$program"
same linked_bare linked
run audited LD_PRELOAD="$preload" LD_AUDIT="$auditor" "$program"
same linked_bare audited
run looked_up_bare "$program" "$library"
run looked_up LD_PRELOAD="$preload" "$program" "$library"
same looked_up_bare looked_up

# The front of the release below or at this one.
version=$(sed -n 's/^version //p' "$work/linked_bare")
front=
for release in $(ls "$fronts" | sort -V); do
    code=$(echo "$release" | awk -F. '{ print $1 * 10000 + $2 * 100 + $3 }')
    [ "$code" -gt "$version" ] || front=$fronts/$release/libnccl.so.2
done
run front ROLLCALL_NCCL="$library" "$program" "$front"
same looked_up_bare front
run front_preloaded ROLLCALL_NCCL="$library" LD_PRELOAD="$preload" "$program" "$front"
same looked_up_bare front_preloaded

rings=$(ls "$work" | grep -c '\.ring$')
[ "$rings" -ge 5 ] || { echo "$rings rings for five runs that tried to make communicators"; failed=1; }
grep -q '^version 2' "$work/linked_bare" && grep -q 'ids: not empty, different' "$work/linked_bare" ||
    {
        echo "the bare run itself is not as it should be"
        head "$work/linked_bare"
        failed=1
    }
[ $failed = 0 ] && echo "NCCL $version: $(wc -l <"$work/linked") lines the same in 5 ways of binding (front: $front)"
exit $failed
