#!/usr/bin/env bash
# Installs into an empty prefix and runs a job from there: nothing may depend on the build tree or on where it stood.
#
# usage: check_install.sh CMAKE BUILD_DIR SOURCE_DIR
set -euo pipefail
cmake=$1 build=$2 source=$3
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
"$cmake" --install "$build" --prefix "$prefix/usr" >/dev/null
cd "$prefix/usr"
for want in bin/rollcall bin/rollcalld bin/moe_train; do
    [ -x "$want" ] || { echo "not installed: $want"; exit 1; }
done
for want in librollcall.so libmoe_core.so libnccl.so.2; do
    [ -n "$(find . -name "$want")" ] || { echo "not installed: $want"; exit 1; }
done
for want in include/moe/layer.h include/hostnccl/nccl.h include/hostnccl/cuda_runtime.h; do
    [ -f "$want" ] || { echo "not installed: $want"; exit 1; }
done
# Pages that manual pages and messages name.
cited=$(grep -rhoE 'docs/[A-Za-z_/-]+\.md' share/man "$source/daemon" "$source/hostnccl" --include='*.1' \
    --include='*.c' | sort -u)
[ -n "$cited" ] || { echo "no page is named"; exit 1; }
for want in README.md $cited; do
    [ -f "share/doc/rollcall/$want" ] || { echo "not installed: $want"; exit 1; }
done
[ -n "$(find share/man -name 'rollcall*.1*')" ] || { echo "no manual pages"; exit 1; }
mv "$prefix/usr" "$prefix/moved"
out=$("$prefix/moved/bin/rollcall" run -n 2 --hostnccl --fail-on-finding -- "$prefix/moved/bin/moe_train" --steps 5 \
    2>&1)
echo "$out" | tail -n 2
echo "$out" | grep -q '2 ranks' || { echo "no summary of 2 ranks"; exit 1; }
