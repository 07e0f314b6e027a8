/* program_inside.c: a program that has NCCL in itself, as with a static libnccl. */
int ncclAllReduce(void);

int ncclAllReduce(void)
{
    return 0;
}

int main(void)
{
    return ncclAllReduce();
}
