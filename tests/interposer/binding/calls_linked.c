/* calls_linked.c: the calls, bound by linking with libnccl.so.2: compiled into programs (lazy, and -z now) and into an
 * extension that others dlopen. */
#include "tests/interposer/binding/calls.h"

int calls_linked(void);

int calls_linked(void)
{
    /* Not a table of addresses: each call is a call through the linkage table, as an application's is. */
    static float data[4];
    ncclUniqueId id;
    ncclComm_t comm;
    int version = 0;
    CALLS_CHECK(ncclGetVersion(&version));
    CALLS_CHECK(ncclGetUniqueId(&id));
    CALLS_CHECK(ncclCommInitRank(&comm, 1, id, 0));
    for (int i = 0; i < 3; i++) {
        CALLS_CHECK(ncclAllReduce(data, data, 4, ncclFloat, ncclSum, comm, NULL));
    }
    CALLS_CHECK(ncclGroupStart());
    CALLS_CHECK(ncclAllReduce(data, data, 2, ncclFloat, ncclSum, comm, NULL));
    CALLS_CHECK(ncclGroupEnd());
    CALLS_CHECK(ncclBcast(data, 4, ncclFloat, 0, comm, NULL));
    CALLS_CHECK(ncclCommDestroy(comm));
    return version >= 20000 ? 0 : 2;
}

#ifdef CALLS_PROGRAM
int main(void)
{
    return calls_linked();
}
#endif
