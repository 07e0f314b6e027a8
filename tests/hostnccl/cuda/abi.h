// One thing that a header declares, in words that do not depend on which header it was.
#ifndef TESTS_HOSTCUDA_ABI_H
#define TESTS_HOSTCUDA_ABI_H

#include <string>
#include <vector>

struct abi_row {
    std::string what, value;
};

std::vector<abi_row> abi_of_ours();
std::vector<abi_row> abi_of_vendor();

#endif
