#!/bin/sh
# The dynamic symbols of libnccl.so.2 against the functions that headers declare: each nccl.h, together with what newer
# releases added (nccl_newer.h) and what has no prototype here (the device interface and refused.def).
# Usage: symbols.sh LIBRARY "CC FLAGS..." NEWER REFUSED HEADER...
set -eu
library=$1
cc=$2
newer=$3
refused=$4
shift 4
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "symbols: $*" >&2; exit 1; }

nm -D --defined-only "$library" > "$dir/nm"
awk '$3 ~ /^nccl/ {print $3, $1, $2}' "$dir/nm" | sort > "$dir/public"
awk '$3 ~ /^pnccl/ {print substr($3, 2), $1, $2}' "$dir/nm" | sort > "$dir/alias"
# What the interposer and rollcall.rehearse ask and tell (hostnccl/nccl/present.h).
awk '$3 !~ /^p?nccl/ && $3 !~ /^hostnccl(Tell|Present)$/ {print $3}' "$dir/nm" > "$dir/other"
[ -s "$dir/other" ] && fail "exports $(tr '\n' ' ' < "$dir/other")"
[ -s "$dir/public" ] || fail "no ncclX symbols"
grep -v ' W$' "$dir/public" && fail "the above are not weak"
grep -v ' T$' "$dir/alias" && fail "the above aliases are not strong"
[ "$(cut -d' ' -f1,2 "$dir/public")" = "$(cut -d' ' -f1,2 "$dir/alias")" ] ||
    fail "ncclX and pncclX are not pairs of one address"

cut -d' ' -f1 "$dir/public" > "$dir/names"
{
    # Structures of a header that is not there stand in the way of a prototype.
    printf '%s\n' ncclTeamWorld ncclTeamLsa ncclTeamRail ncclTeamRankToWorld ncclTeamRankToLsa ncclLLA2ACalcSlots \
        ncclCommQueryProperties ncclGetPeerDevicePointer ncclGetLsaDevicePointer ncclParamDumpAll
    sed -n 's/^HN_REFUSED(\(nccl[A-Za-z0-9]*\),.*/\1/p' "$refused"
} > "$dir/more"
for header in "$@"; do
    # shellcheck disable=SC2086
    printf '#include "%s"\n#include "%s"\n' "$header" "$newer" | $cc -E -P -x c - |
        grep -oE '\bnccl[A-Za-z0-9]+ *\(' | tr -d ' (' | sort -u - "$dir/more" > "$dir/declared"
    diff "$dir/declared" "$dir/names" >&2 || fail "the functions of $header (<) and of the library (>) differ"
done

readelf -rW "$library" > "$dir/relocations"
for name in ncclBroadcast ncclGetUniqueId ncclCommGetAsyncError; do
    grep -q "JUMP_SLO.* $name " "$dir/relocations" || fail "$name is not called through the PLT"
done
readelf -dW "$library" > "$dir/dynamic"
grep -q 'SONAME.*\[libnccl.so.2\]' "$dir/dynamic" || fail "SONAME is not libnccl.so.2"
grep -q 'NEEDED.*\[libcudart.so' "$dir/dynamic" && fail "needs one release of libcudart, and must work beside either"
grep -qF '[$ORIGIN]' "$dir/dynamic" || fail "RUNPATH is not \$ORIGIN"
grep -qE 'SYMBOLIC|VERDEF' "$dir/dynamic" && fail "is bound symbolically or has symbol versions"
echo "symbols: $(wc -l < "$dir/names") functions, each weak with a strong alias; $# header(s) agree"
