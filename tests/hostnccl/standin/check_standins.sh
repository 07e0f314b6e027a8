#!/bin/sh
# check_standins.sh STANDINS USER START ORPHAN THIRD: what is written lets a program start that wants a library which is
# not there, and files that are no libraries, or only the beginning of one, harm nobody.
set -eu
standins=$1 user=$2 start=$3 orphan=$4 third=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "check_standins: $*" >&2
    exit 1
}

code=0
"$start" "$user" 2>/dev/null || code=$?
[ $code = 77 ] || fail "the library that should not be there is there (exit code $code)"

mkdir "$work/place"
cp "$user" "$work/place/libuser.so"
preload=$("$standins" "$work/out" "$work/place" 2>"$work/said") || fail "exit code $?: $(cat "$work/said")"
[ -f "$work/out/libcublas.so.77" ] || fail "libcublas.so.77 was not written"
case $preload in
*/libhoststandin.so:"$work"/out/libcublas.so.77) ;;
*) fail "to be preloaded: $preload" ;;
esac
LD_PRELOAD=$preload "$start" "$user" || fail "a function does not do what a stand-in's does: $?"

# A function that a library wants without naming who has it, which nobody has, and which another one has.
cp "$orphan" "$third" "$work/place"
preload=$("$standins" "$work/out1" "$work/place" 2>"$work/said") || fail "exit code $?: $(cat "$work/said")"
LD_PRELOAD=$preload:$third "$start" "$orphan" || fail "a function whose library is not named: $?"

# Nothing to look at, wrong usage, a folder that cannot be made.
mkdir "$work/empty"
if "$standins" "$work/out" "$work/empty" 2>/dev/null; then fail "an empty place is no error"; fi
code=0
"$standins" "$work/out" 2>/dev/null || code=$?
[ $code = 2 ] || fail "wrong usage has exit code $code"
if "$standins" "$work/no/such" "$work/place" 2>/dev/null; then fail "a folder that cannot be made is no error"; fi

# Beginnings of a library, and libraries with bytes changed, are read or not, and never crash the reader.
size=$(wc -c <"$user")
mkdir "$work/bad"
for i in 1 17 63 64 65 200 1000 $((size / 2)) $((size - 70)) $((size - 1)); do
    head -c "$i" "$user" >"$work/bad/libcut$i.so"
done
for at in 32 40 58 60 62 $((size - 900)) $((size - 500)) $((size - 300)) $((size - 150)) $((size - 40)); do
    cp "$user" "$work/bad/libchanged$at.so"
    printf '\377\377\377\377\377\377\377\377' | dd of="$work/bad/libchanged$at.so" bs=1 seek="$at" conv=notrunc \
        2>/dev/null
done
echo text >"$work/bad/libtext.so"
code=0
"$standins" "$work/out2" "$work/bad" >/dev/null 2>"$work/said" || code=$?
[ $code -le 3 ] || fail "bad libraries: exit code $code: $(cat "$work/said")"
echo "stand-ins: written, loaded, called"
