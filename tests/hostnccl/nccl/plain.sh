#!/bin/sh
# Compiles a program the way a user does, against the vendor's headers alone, and runs it with LD_LIBRARY_PATH alone.
# Usage: plain.sh COMPILER SOURCE INCLUDE_DIR LIBRARY_DIR
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$1" -O1 -isystem "$3" "$2" -o "$dir/program" -L"$4" -lnccl -lcudart -Wl,-rpath-link,"$4"
LD_LIBRARY_PATH=$4 "$dir/program"
