/*
 * program_inside.c: a program that has NCCL in itself, as with a static libnccl; with PROGRAM_RELEASE it also carries
 * the text by which NCCL says its release.
 */
#include <stdio.h>

int ncclAllReduce(void);

int ncclAllReduce(void)
{
    return 0;
}

int main(void)
{
#ifdef PROGRAM_RELEASE
    puts("NCCL version " PROGRAM_RELEASE "+cuda12.4");
#endif
    return ncclAllReduce();
}
