/*
 * third.c: A program's third library, with a function that is called as if it were one of cuBLAS.
 */
int cublasOfAThird(void);

int cublasOfAThird(void)
{
    return 3;
}
