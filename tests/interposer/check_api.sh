#!/bin/sh
# check_api.sh COMPILER API_DEF LIBRARY INCLUDE...: api.def against the functions that nccl.h declares: a function that
# the header has and the table lacks, or that the table claims for this release and the header lacks, fails. LIBRARY,
# the vendor's libnccl.so.2 or empty: the same against what it exports, device interface included.
set -u
compiler=$1
table=$2
library=$3
shift 3
flags=
for directory in "$@"; do
    flags="$flags -I$directory"
done
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# shellcheck disable=SC2086
printf '#include <nccl.h>\n' | "$compiler" $flags -E -P -x c - >"$work/header.i" || exit 1
grep -o -E '[^p]nccl[A-Z][A-Za-z0-9]* *\(' "$work/header.i" | grep -o -E 'nccl[A-Z][A-Za-z0-9]*' |
    sort -u >"$work/header"

version=$(printf '#include <nccl.h>\nNCCL_VERSION_CODE\n' | "$compiler" $flags -E -P -x c - | tail -n 1)
cat >"$work/table.c" <<END
#define ROLL_API_VERSION $version
#define ROLL_API_CALL(id, name, ...) ROW name
#define ROLL_API_LIFE(id, name, ...) ROW name
#define ROLL_API_PASS(id, ret, name, ...) ROW name
#define ROLL_API_JUMP(id, name)
#include "$table"
END
"$compiler" -E -P "$work/table.c" | grep -o 'ROW *nccl[A-Za-z0-9]*' | awk '{print $2}' | sort >"$work/table"
"$compiler" -E -P "$work/table.c" >/dev/null || exit 1

[ "$(wc -l <"$work/header")" -ge 40 ] || { echo "found only $(wc -l <"$work/header") functions in nccl.h"; exit 1; }
failed=0
twice=$(uniq -d "$work/table")
[ -z "$twice" ] || { echo "in the table twice: $twice"; failed=1; }
lacks=$(comm -23 "$work/header" "$work/table")
[ -z "$lacks" ] || { echo "in nccl.h ($version), not in api.def: $lacks"; failed=1; }
more=$(comm -13 "$work/header" "$work/table")
[ -z "$more" ] || { echo "in api.def, not in nccl.h ($version): $more"; failed=1; }

# The whole table, rows of unknown prototype included, for the release that the library says it is.
rows() { # RELEASE
    cat >"$work/all.c" <<END
#define ROLL_API_VERSION $1
#define ROLL_API_CALL(id, name, ...) ROW name ROW p##name
#define ROLL_API_LIFE(id, name, ...) ROW name ROW p##name
#define ROLL_API_PASS(id, ret, name, ...) ROW name ROW p##name
#define ROLL_API_JUMP(id, name) ROW name ROW p##name
#define ROLL_API_LONE(id, name) ROW name
#include "$table"
END
    "$compiler" -E -P "$work/all.c" | grep -o 'ROW *p*nccl[A-Za-z0-9]*' | awk '{print $2}' | sort
}
if [ -e "$library" ]; then
    nm -D --defined-only "$library" | awk '{print $NF}' | grep -E '^p?nccl' | sort >"$work/exported"
    # "NCCL version 2.28.9+cuda13.0" stands in it as text.
    release=$(LC_ALL=C grep -a -o -m 1 'NCCL version [0-9]*[.][0-9]*[.][0-9]*+' "$library" | head -n 1 |
        tr -c '0-9\n' ' ' |
        awk '{ print $1 * 10000 + $2 * 100 + $3 }')
    [ -n "$release" ] || { echo "$library does not say its release"; failed=1; release=$version; }
    rows "$release" >"$work/rows"
    [ "$(wc -l <"$work/exported")" -ge 80 ] || {
        echo "$library exports only $(wc -l <"$work/exported") functions"
        failed=1
    }
    lacks=$(comm -23 "$work/exported" "$work/rows")
    [ -z "$lacks" ] || { echo "exported by $library ($release), not in api.def: $lacks"; failed=1; }
    more=$(comm -13 "$work/exported" "$work/rows")
    [ -z "$more" ] || { echo "in api.def for $release, not exported by $library: $more"; failed=1; }
    echo "$(wc -l <"$work/exported") symbols of $library $release"
else
    echo "SKIPPED: the vendor's libnccl.so.2 is not on this machine: api.def is compared with the header alone"
fi

# Ids are stable and each is used once.
ids=$(grep -o -E '^ROLL_API_[A-Z]+\([0-9]+' "$table" | grep -o '[0-9]*$' | sort | uniq -d)
[ -z "$ids" ] || { echo "ids used twice: $ids"; failed=1; }
echo "$(wc -l <"$work/header") functions of nccl.h $version"
exit $failed
