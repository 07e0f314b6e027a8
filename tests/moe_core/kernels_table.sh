#!/usr/bin/env bash
# kernels_table.sh OPS_H OPS_DEF: every function of the table in OPS_H has its row in OPS_DEF, and no row is anything
# else's. A missing one would be a NULL pointer on the GPU, where no test of this machine would meet it.
set -u
name='\([a-z_0-9]*\)'
member=".*int (\\*$name)(moe_device_t \\*device, const struct $name \\*args).*"
wanted=$(sed -n "/^struct moe_ops {/,/^};/s/$member/\\1 \\2/p" "$1" | sort)
there=$(sed -n 's/^MOE_CUDA_OP(\([a-z_0-9]*\), \([a-z_0-9]*\))$/\1 \2/p' "$2" | sort)
if [ "$(wc -l <<<"$wanted")" -lt 30 ]; then
    echo "FAILED: only these functions were found in $1: $wanted"
    exit 1
fi
if [ "$wanted" != "$there" ]; then
    diff <(echo "$wanted") <(echo "$there")
    echo "FAILED: the table's functions (<) and the CUDA back end's (>) are not the same"
    exit 1
fi
echo "$(wc -l <<<"$wanted") functions"
