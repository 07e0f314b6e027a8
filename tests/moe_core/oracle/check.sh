#!/usr/bin/env bash
# The committed vectors are those that make_vectors.py makes: check.sh PYTHON DIR. Exit 77: no PyTorch here.
set -eu
if [ -z "$1" ]; then
    echo "SKIPPED: integration.moe_oracle.vectors: no Python with torch was found when this tree was configured"
    echo "(scripts/deps installs python3-torch);"
    echo "the vectors themselves are used by unit.moe_oracle all the same"
    exit 77
fi
cd "$2"
PYTHONDONTWRITEBYTECODE=1 exec "$1" make_vectors.py --check vectors.json
