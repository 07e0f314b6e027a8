/* abi_ours.c: the table of our own nccl.h. */
#include "hostnccl/include/nccl.h"

#define ABI_FUNCTION abi_ours
#include "tests/hostnccl/nccl/abi_table.h"
