/* program_bound_nccl.c: the libnccl.so.2 that program_bound.c brings, of a release that nothing else here has. */
int ncclGetVersion(int *version);

int ncclGetVersion(int *version)
{
    *version = 21000;
    return 0;
}
