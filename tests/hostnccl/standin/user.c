/*
 * user.c: A program's own library, linked against a release of cuBLAS that nobody has yet.
 */
#include <stddef.h>

int cublasCreate_v2(void **handle);
int cublasGetMathMode(void *handle, int *mode);
int cublasOfTomorrow(void *handle, int a, int b);
const char *cublasGetStatusString(int code);
int use_it(void);

/* 0: every function did what a stand-in's does; otherwise the number of the first that did not. */
int use_it(void)
{
    void *handle = NULL;
    int mode = 42;
    if (cublasCreate_v2(&handle) != 0 || handle == NULL) {
        return 1;
    }
    *(volatile char *)handle = 1; /* a program may look behind it */
    if (cublasGetMathMode(handle, &mode) != 0 || mode != 0) {
        return 2;
    }
    if (cublasOfTomorrow(handle, 1, 2) != 0) {
        return 3;
    }
    return cublasGetStatusString(0) == NULL ? 4 : 0;
}
