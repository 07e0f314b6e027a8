// Compares our headers with the vendor's: every difference is printed.
#include "tests/hostnccl/cuda/abi.h"

#include <cstdio>

int main()
{
    std::vector<abi_row> ours = abi_of_ours(), vendor = abi_of_vendor();
    int differences = ours.size() != vendor.size() || ours.size() < 400;
    for (size_t i = 0; i < ours.size() && i < vendor.size(); i++) {
        if (ours[i].value != vendor[i].value) {
            std::printf("%s: ours %s, the vendor's %s\n", ours[i].what.c_str(), ours[i].value.c_str(),
                        vendor[i].value.c_str());
            differences++;
        }
    }
    std::printf("%zu declarations compared, %d differ\n", ours.size(), differences);
    return differences != 0;
}
