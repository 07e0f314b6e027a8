/*
 * bench_products.h: roll_bench_rank's part for compute calls seen from outside (fakete.c): each kind over its bare
 * call, in turn and in short batches like the rest. To be included once.
 */
#ifndef ROLL_TESTS_INTERPOSER_BENCH_PRODUCTS_H
#define ROLL_TESTS_INTERPOSER_BENCH_PRODUCTS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define PRODUCT_BATCHES 1000
#define PRODUCT_BATCH   200
#define PRODUCT_GROUPS  8

#define PRODUCT_BOTH(ret, name, ...)                                                                                   \
    ret name(__VA_ARGS__);                                                                                             \
    ret bare_##name(__VA_ARGS__);
PRODUCT_BOTH(void, nvte_multi_tensor_gemm, void *const *, void *const *, void **, void *const *, void **, int, bool,
             bool, bool, void **, bool, bool, int, void *)
PRODUCT_BOTH(void, nvte_cublas_gemm, void *, void *, void *, void *, void *, bool, bool, bool, void *, bool, bool, int,
             void *)
PRODUCT_BOTH(void, nvte_ep_prepare, void *, void *, void *, void *, const void *, void *)
PRODUCT_BOTH(int, cublasSgemmGroupedBatched, void *, const int *, const int *, const int *, const int *, const int *,
             const float *, const float *const *, const int *, const float *const *, const int *, const float *,
             float *const *, const int *, int, const int *)

static void *product_list[PRODUCT_GROUPS] = {&product_list, &product_list, &product_list, &product_list,
                                             &product_list, &product_list, &product_list, &product_list};
static const int product_size[PRODUCT_GROUPS] = {1, 1, 1, 1, 1, 1, 1, 1};

/* name in the output, function, arguments */
#define PRODUCT_ROWS(row)                                                                                              \
    row("te_8_groups", nvte_multi_tensor_gemm,                                                                         \
        (product_list, product_list, product_list, product_list, product_list, PRODUCT_GROUPS, true, false, false,     \
         product_list, false, false, 0,                                                                                \
         NULL)) row("cublas_8_groups", cublasSgemmGroupedBatched,                                                      \
                    (product_list, product_size, product_size, product_size, product_size, product_size, NULL, NULL,   \
                     product_size, NULL, product_size, NULL, NULL, product_size, PRODUCT_GROUPS, product_size))        \
        row("dense_left_out", nvte_cublas_gemm,                                                                        \
            (product_list, product_list, product_list, NULL, NULL, true, false, false, NULL, false, false, 0, NULL))   \
            row("noted", nvte_ep_prepare, (product_list, product_list, product_list, product_list, NULL, NULL))

static double product_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

#define PRODUCT_TIME(function, arguments)                                                                              \
    static __attribute__((noinline)) double function##_time(void)                                                      \
    {                                                                                                                  \
        double start = product_now();                                                                                  \
        for (int i = 0; i < PRODUCT_BATCH; i++) {                                                                      \
            (void)function arguments;                                                                                  \
        }                                                                                                              \
        return (product_now() - start) / PRODUCT_BATCH;                                                                \
    }
#define PRODUCT_TIMES(label, function, arguments)                                                                      \
    PRODUCT_TIME(function, arguments) PRODUCT_TIME(bare_##function, arguments)
PRODUCT_ROWS(PRODUCT_TIMES)

static int product_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Prints the median over the median of the bare call, in ns. */
static void product_measure(const char *label, double (*seen)(void), double (*bare)(void), const char *end)
{
    static double ns[2][PRODUCT_BATCHES];
    for (int b = 0; b < PRODUCT_BATCHES; b++) {
        ns[0][b] = bare();
        ns[1][b] = seen();
    }
    qsort(ns[0], PRODUCT_BATCHES, sizeof(double), product_order);
    qsort(ns[1], PRODUCT_BATCHES, sizeof(double), product_order);
    printf("\"%s\":%.2f%s", label, ns[1][PRODUCT_BATCHES / 2] - ns[0][PRODUCT_BATCHES / 2], end);
}

/* "products":{...}, : what each kind of call costs over its bare one. */
static void print_products(void)
{
#define PRODUCT_PRINT(label, function, arguments) product_measure(label, function##_time, bare_##function##_time, ",");
    printf("\"products\":{");
    PRODUCT_ROWS(PRODUCT_PRINT)
    printf("\"groups\":%d},", PRODUCT_GROUPS);
}

#endif
