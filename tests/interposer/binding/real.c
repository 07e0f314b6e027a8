/*
 * real.c: prints what the vendor's NCCL answers on a machine without a GPU: version, error strings, ids, last errors,
 * and calls that fail. `binding_real [PATH]`: bound by linking, or looked up in the library at PATH. The test compares
 * the text with and without us. Of random values (ids) only properties are printed.
 */
#include <nccl.h>

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *library; /* NULL: linked */

/* One function as it is bound in this run. */
#define F(name) ((__typeof__(&name))(library != NULL ? dlsym(library, #name) : (void *)&name))

static void tell(const char *what, ncclResult_t result)
{
    const char *last = F(ncclGetLastError)(NULL);
    printf("%-44s %d %s | %s\n", what, (int)result, F(ncclGetErrorString)(result), last != NULL ? last : "(null)");
    fflush(stdout);
}
#define TELL(call) tell(#call, call)

/* Makes a call in a child process: NCCL does not check some arguments and crashes, and then it must die of the same
 * signal. */
#define TELL_APART(call)                                                                                               \
    do {                                                                                                               \
        int status = 0;                                                                                                \
        fflush(stdout);                                                                                                \
        pid_t child = fork();                                                                                          \
        if (child == 0) {                                                                                              \
            tell(#call, call);                                                                                         \
            _exit(0);                                                                                                  \
        }                                                                                                              \
        waitpid(child, &status, 0);                                                                                    \
        printf("%-44s ended by %s %d\n", #call, WIFSIGNALED(status) ? "signal" : "exit",                               \
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));                                          \
    } while (0)

static void tell_names(void)
{
    static const char *const names[] = {
#define ROLL_API_CALL(id, name, ...)      #name, "p" #name,
#define ROLL_API_LIFE(id, name, ...)      #name, "p" #name,
#define ROLL_API_PASS(id, ret, name, ...) #name, "p" #name,
#define ROLL_API_JUMP(id, name)           #name, "p" #name,
#include "interposer/wrap/api.def"
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        void *found = dlsym(library != NULL ? library : RTLD_DEFAULT, names[i]);
        const char *error = dlerror();
        printf("%s %s %s\n", names[i], found != NULL ? "yes" : "no", error != NULL ? "dlerror" : "");
    }
}

static void tell_ids(void)
{
    ncclUniqueId a, b, zero;
    memset(&zero, 0, sizeof(zero));
    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    TELL(F(ncclGetUniqueId)(&a));
    TELL(F(ncclGetUniqueId)(&b));
    printf("ids: %s, %s\n", memcmp(&a, &zero, sizeof(a)) != 0 ? "not empty" : "empty",
           memcmp(&a, &b, sizeof(a)) != 0 ? "different" : "the same");
}

static void tell_failing_inits(void)
{
    ncclComm_t comm = NULL, comms[2] = {NULL, NULL};
    ncclUniqueId id;
    int device = 0;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER, bad = NCCL_CONFIG_INITIALIZER;
    bad.magic = 7;
    F(ncclGetUniqueId)(&id);
    TELL(F(ncclCommInitRank)(&comm, 1, id, 0));
    TELL(F(ncclCommInitRank)(&comm, 2, id, 5));
    TELL(F(ncclCommInitRank)(&comm, 0, id, 0));
    TELL(F(ncclCommInitRank)(NULL, 1, id, 0));
    TELL(F(ncclCommInitRankConfig)(&comm, 1, id, 0, &config));
    TELL(F(ncclCommInitRankConfig)(&comm, 1, id, 0, &bad));
    TELL(F(ncclCommInitRankScalable)(&comm, 1, 0, 1, &id, &config));
    TELL(F(ncclCommInitRankScalable)(&comm, 1, 0, 0, NULL, NULL));
    TELL(F(ncclCommInitAll)(comms, 1, &device));
    TELL(F(ncclCommInitAll)(comms, -1, NULL));
    TELL(F(ncclCommInitAll)(NULL, 2, NULL));
    TELL_APART(F(ncclCommSplit)(NULL, 0, 0, &comm, NULL));
    TELL_APART(F(ncclCommShrink)(NULL, NULL, 0, &comm, NULL, 0));
    printf("handles: %d %d %d\n", comm != NULL, comms[0] != NULL, comms[1] != NULL);
}

static void tell_bad_calls(void)
{
    float data[4] = {0};
    int n = -1;
    ncclResult_t state = ncclSuccess;
    ncclRedOp_t op = ncclSum;
    TELL_APART(F(ncclCommCount)(NULL, &n));
    TELL_APART(F(ncclCommUserRank)(NULL, &n));
    TELL_APART(F(ncclCommCuDevice)(NULL, &n));
    TELL_APART(F(ncclCommGetAsyncError)(NULL, &state));
    TELL_APART(F(ncclAllReduce)(data, data, 4, ncclFloat, ncclSum, NULL, NULL));
    TELL_APART(F(ncclBcast)(data, 4, ncclFloat, 0, NULL, NULL));
    TELL_APART(F(ncclSend)(data, 4, ncclFloat, 0, NULL, NULL));
    TELL_APART(F(ncclCommFinalize)(NULL));
    TELL(F(ncclCommDestroy)(NULL));
    TELL(F(ncclCommAbort)(NULL));
    TELL_APART(F(ncclRedOpCreatePreMulSum)(&op, data, ncclFloat, ncclScalarHostImmediate, NULL));
    TELL_APART(F(ncclCommWindowDeregister)(NULL, NULL));
    TELL(F(ncclGroupStart)());
    TELL(F(ncclAllReduce)(data, data, 4, ncclFloat, ncclSum, NULL, NULL));
    TELL(F(ncclGroupEnd)());
    TELL(F(ncclGroupEnd)());
}

int main(int argc, char **argv)
{
    int version = 0;
    if (argc > 1 && (library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL)) == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    TELL(F(ncclGetVersion)(&version));
    TELL(F(ncclGetVersion)(NULL));
    printf("version %d\n", version);
    for (int i = -1; i < 12; i++) {
        printf("error %d: %s\n", i, F(ncclGetErrorString)((ncclResult_t)i));
    }
    tell_names();
    tell_ids();
    tell_failing_inits();
    tell_bad_calls();
    return 0;
}
