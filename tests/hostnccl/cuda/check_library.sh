#!/bin/sh
# check_library.sh OURS SANITIZED [VENDORS]: what libcudart is to the loader: name, versions, dependencies, and that it
# offers nothing that the vendor's does not, nor one of a pair of names without the other.
set -eu
ours=$1 sanitized=$2 vendors=${3-}
fail() {
    echo "check_library: $*" >&2
    exit 1
}
symbols() { # exported functions, without the version
    nm -D --defined-only "$1" | awk '$2 ~ /^[TtWw]$/ {sub(/@.*/, "", $3); print $3}' | sort -u
}

name=$(readelf -d "$ours" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
case $name in libcudart.so.[0-9]*) ;; *) fail "SONAME is '$name'" ;; esac

loose=$(nm -D --defined-only "$ours" | awk -v node="@@$name" '$2 != "A" && index($3, node) == 0 {print $3}')
[ -z "$loose" ] || fail "exported without the version $name:" $loose

if [ "$sanitized" = no ]; then
    extra=$(ldd "$ours" | awk '{print $1}' | grep -Ev '^(linux-vdso\.so\.1|libc\.so\.6|/.*/ld-linux.*)$' || true)
    [ -z "$extra" ] || fail "depends on more than libc:" $extra
fi

count=$(symbols "$ours" | wc -l)
if [ -n "$vendors" ]; then
    theirs=$(mktemp) mine=$(mktemp)
    trap 'rm -f "$theirs" "$mine"' EXIT
    symbols "$vendors" >"$theirs"
    symbols "$ours" >"$mine"
    [ "$name" = "$(readelf -d "$vendors" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')" ] || fail "not the vendor's SONAME"
    unknown=$(comm -23 "$mine" "$theirs")
    [ -z "$unknown" ] || fail "exported, but not by the vendor's:" $unknown
    for symbol in $(cat "$mine"); do
        for suffix in _ptds _ptsz; do
            if grep -qx "$symbol$suffix" "$theirs" && ! grep -qx "$symbol$suffix" "$mine"; then
                fail "$symbol is there, but not $symbol$suffix"
            fi
        done
    done
    echo "$name: $count functions, all of them the vendor's"
else
    echo "$name: $count functions (no vendor's library to compare with)"
fi
