/* abi_vendor.c: the table of the vendor's nccl.h. Our prototypes are declared after it: the compiler refuses any that
 * differs. */
#include <nccl.h>

#define HOSTNCCL_PROTOTYPES_ONLY
#include "hostnccl/include/nccl.h"

#define ABI_FUNCTION abi_vendor
#include "tests/hostnccl/nccl/abi_table.h"
