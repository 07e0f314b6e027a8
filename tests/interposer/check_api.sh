#!/bin/sh
# check_api.sh COMPILER API_DEF INCLUDE...: api.def against the functions that nccl.h declares: a function that the header has
# and the table lacks, or that the table claims for this release and the header lacks, fails.
set -u
compiler=$1
table=$2
shift 2
flags=
for directory in "$@"; do
    flags="$flags -I$directory"
done
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# shellcheck disable=SC2086
printf '#include <nccl.h>\n' | "$compiler" $flags -E -P -x c - >"$work/header.i" || exit 1
grep -o -E '[^p]nccl[A-Z][A-Za-z0-9]* *\(' "$work/header.i" | grep -o -E 'nccl[A-Z][A-Za-z0-9]*' | sort -u >"$work/header"

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

# Ids are stable and each is used once.
ids=$(grep -o -E '^ROLL_API_[A-Z]+\([0-9]+' "$table" | grep -o '[0-9]*$' | sort | uniq -d)
[ -z "$ids" ] || { echo "ids used twice: $ids"; failed=1; }
echo "$(wc -l <"$work/header") functions of nccl.h $version"
exit $failed
