#!/bin/sh
# check_library.sh LIBRARY FUNCTIONS...: the preload library needs libc (and its libdl) alone, nothing newer than glibc
# 2.28, exports only what it stands before, and exports all of it.
set -u
library=$1
shift
failed=0
fail() {
    echo "$1"
    failed=1
}

needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -v -E '^(libc\.so\.6|libdl\.so\.2|ld-linux.*)$')
[ -z "$needed" ] || fail "needs more than libc: $needed"
loaded=$(ldd "$library" | awk '{print $1}' |
    grep -v -E '(^|/)(linux-vdso\.so\.1|libc\.so\.6|libdl\.so\.2|ld-linux[^/]*)$')
[ -z "$loaded" ] || fail "loads more than libc: $loaded"

newest=$(objdump -T "$library" | grep -o 'GLIBC_[0-9.]*' | sort -u -V | tail -n 1)
highest=$(printf '%s\nGLIBC_2.28\n' "$newest" | sort -V | tail -n 1)
[ "$highest" = GLIBC_2.28 ] ||
    fail "needs $newest: $(objdump -T "$library" | grep "$newest" | awk '{print $NF}' | tr '\n' ' ')"

exported=$(nm -D --defined-only "$library" | awk '{print $NF}' | sort)
# Patterns of whole names, one a line.
ours='
nccl[A-Z][A-Za-z0-9]*
cuda(Stream|Event|Device)(Synchronize|Query)(_ptsz)?
cu(da)?EventRecord(WithFlags)?(_ptsz)?
cu(da)?(StreamWaitEvent(_ptsz)?|(Event|Stream)Destroy(_v2)?)
cuda(Free(Host)?|Memcpy(_ptds|Async(_ptsz)?)?)
cu(da)?(StreamBeginCapture|StreamEndCapture|Graph|Get(DriverEntryPoint|ProcAddress))[A-Za-z0-9_]*
dlsym
roll_(front_function|audit_answer)
moe_(observe|remedies)
rollcall_(step|step_by|name)
InitializeInjectionNvtx2
ncclProfiler_v[1-7]
nvte_[A-Za-z0-9_]+
_Z[0-9]+nvte_[A-Za-z0-9_]+
cublas(Lt)?[A-Za-z0-9_]+
'
others=$(echo "$exported" | grep -v -x -E "$(echo "$ours" | sed '/^$/d')")
[ -z "$others" ] || fail "exports more than it should: $others"
for name in "$@"; do
    echo "$exported" | grep -q -x "$name" || fail "does not export $name"
done
exit $failed
