#!/bin/sh
# check_fronts.sh COMPILER API_DEF FRONTS LIBRARY...: each front exports the functions of its release, their twins, its
# mark, and nothing else; fronts and the other libraries need libc alone and nothing newer than glibc 2.28.
set -u
compiler=$1 table=$2 fronts=$3
shift 3
failed=0
fail() {
    echo "$1"
    failed=1
}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

check_needs() {
    needed=$(readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
        grep -v -E '^(libc\.so\.6|libdl\.so\.2|ld-linux.*)$')
    [ -z "$needed" ] || fail "$1 needs more than libc: $needed"
    newest=$(objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' | sort -u -V | tail -n 1)
    [ "$(printf '%s\nGLIBC_2.28\n' "$newest" | sort -V | tail -n 1)" = GLIBC_2.28 ] || fail "$1 needs $newest"
}

before=0 count=0
for release in $(ls "$fronts" | sort -V); do
    front=$fronts/$release/libnccl.so.2
    cat >"$work/rows.c" <<END
#define ROLL_API_VERSION $(echo "$release" | awk -F. '{ print $1 * 10000 + $2 * 100 + $3 }')
#define ROLL_API_CALL(id, name, ...) ROW name ROW p##name
#define ROLL_API_LIFE(id, name, ...) ROW name ROW p##name
#define ROLL_API_PASS(id, ret, name, ...) ROW name ROW p##name
#define ROLL_API_JUMP(id, name) ROW name ROW p##name
#define ROLL_API_LONE(id, name) ROW name
#include "$table"
ROW roll_front
END
    "$compiler" -E -P "$work/rows.c" | grep -o 'ROW *[a-z]*[A-Za-z0-9_]*' | awk '{print $2}' | sort >"$work/rows"
    nm -D --defined-only "$front" | awk '{print $NF}' | sort >"$work/exported"
    difference=$(diff "$work/rows" "$work/exported")
    [ -z "$difference" ] || fail "$front: $difference"
    now=$(wc -l <"$work/exported")
    [ "$now" -gt "$before" ] || fail "$front has no more functions than the one before it"
    [ "$(readelf -d "$front" | grep -c 'SONAME.*\[libnccl.so.2\]')" = 1 ] || fail "$front is not called libnccl.so.2"
    check_needs "$front"
    before=$now
    count=$((count + 1))
done
# Every release that the table names has one.
for version in $(sed -n 's/^#if ROLL_API_VERSION >= //p' "$table" | sort -u); do
    release=$((version / 10000)).$((version / 100 % 100)).$((version % 100))
    [ -e "$fronts/$release/libnccl.so.2" ] || fail "no front for $release, which brought functions"
done
for library in "$@"; do
    check_needs "$library"
done
echo "$count fronts"
[ "$count" -ge 13 ] || fail "only $count fronts"
exit $failed
