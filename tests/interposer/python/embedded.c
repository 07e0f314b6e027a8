/*
 * embedded.c: a program that loads an interpreter, calls NCCL from Python, ends the interpreter and begins another one,
 * with keys of its own in between: the new interpreter gets another key, and the old key holds no state.
 *
 *   embedded LIBPYTHON LIBNCCL
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { KEYS = 16 };

struct unique_id {
    char internal[128];
};

int ncclCommInitRank(void **comm, int nranks, struct unique_id id, int rank);
int ncclAllReduce(const void *from, void *to, size_t count, int dtype, int redop, void *comm, void *stream);

static void *find(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "embedded: no %s\n", name);
        exit(2);
    }
    return found;
}

int main(int argc, char **argv)
{
    void *python = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) : NULL, *comm = NULL;
    if (python == NULL) {
        fprintf(stderr, "embedded: %s\n", argc == 3 ? dlerror() : "two arguments");
        return 2;
    }
    void (*begin)(int);
    int (*run)(const char *), (*end)(void);
    *(void **)&begin = find(python, "Py_InitializeEx");
    *(void **)&run = find(python, "PyRun_SimpleString");
    *(void **)&end = find(python, "Py_FinalizeEx");
    struct unique_id id = {{0}};
    ncclCommInitRank(&comm, 1, id, 0);
    /* Reading a wrong state must fault. */
    void *guard = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char text[4096];
    snprintf(text, sizeof(text),
             "import ctypes\nnccl = ctypes.CDLL(%c%s%c)\n"
             "def call():\n    nccl.ncclAllReduce(None, None, 1, 7, 0, ctypes.c_void_p(%zu), None)\n"
             "call()\ncall()\n",
             '"', argv[2], '"', (size_t)comm);
    for (int i = 0; i < 2; i++) {
        begin(0);
        if (run(text) != 0) {
            return 3;
        }
        ncclAllReduce(NULL, NULL, 2, 7, 0, comm, NULL);
        end();
        for (int n = 0; n < KEYS; n++) {
            pthread_key_t key;
            if (pthread_key_create(&key, NULL) == 0) {
                pthread_setspecific(key, guard);
            }
        }
        ncclAllReduce(NULL, NULL, 3, 7, 0, comm, NULL);
    }
    return 0;
}
