/*
 * program_bound.c: a program that brings its own libnccl.so.2, named by an RPATH, which beats LD_LIBRARY_PATH: prints
 * the release of the library that it was given.
 */
#include <stdio.h>

int ncclGetVersion(int *version);

int main(void)
{
    int version = 0;
    if (ncclGetVersion(&version) != 0) {
        return 1;
    }
    printf("%d\n", version);
    return 0;
}
