/*
 * vendor.c: stands for a library of NVIDIA's when the user below is linked, and is not there when it runs.
 */
#define FAILS(name)                                                                                                    \
    int name(void);                                                                                                    \
    int name(void)                                                                                                     \
    {                                                                                                                  \
        return 99;                                                                                                     \
    }
FAILS(cublasCreate_v2)
FAILS(cublasGetMathMode)
FAILS(cublasOfTomorrow)
FAILS(cublasGetStatusString)
