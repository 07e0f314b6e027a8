// abi.h: one thing that a header declares, in words that do not depend on which header it was.
#ifndef ROLL_TESTS_HOSTNCCL_CUDA_ABI_H
#define ROLL_TESTS_HOSTNCCL_CUDA_ABI_H

#include <string>
#include <vector>

struct abi_row {
    std::string what, value;
};

std::vector<abi_row> abi_of_ours();
std::vector<abi_row> abi_of_vendor();

#endif
