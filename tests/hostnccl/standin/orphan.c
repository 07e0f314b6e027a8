/*
 * orphan.c: A program's second library. It wants a function of cuBLAS and names no library for it, because the first
 * one has loaded cuBLAS by then; one that a third library has; and one without which it gets along.
 */
int cublasOfNobody(void *handle, int a);
int cublasOfAThird(void);
int cublasOrNot(void) __attribute__((weak));
int use_it(void);

/* 0: the first did what a stand-in's does, and the others are who they should be. */
int use_it(void)
{
    int mark = 0;
    if (cublasOfNobody(&mark, 1) != 0) {
        return 11;
    }
    if (cublasOfAThird() != 3) {
        return 12;
    }
    return cublasOrNot == 0 ? 0 : 13; /* NOLINT */
}
