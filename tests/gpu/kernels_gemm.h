/*
 * kernels_gemm.h: what the parts of the check of the grouped products share: the library's own entry points, and a
 * problem with its arrays on both sides.
 */
#ifndef ROLL_TESTS_GPU_KERNELS_GEMM_H
#define ROLL_TESTS_GPU_KERNELS_GEMM_H

#include "kernels/kernels.h"
#include "tests/gpu/kernels.h"

enum { GROUPS = 7, POSITIONS = 7 };

/* Entry points of libmoe_kernels.so as moe_core has loaded it; gemm is NULL in a rehearsal. */
struct gemm_api {
    int (*gemm_new)(int64_t groups, moe_kernel_gemm_t **out);
    void (*gemm_destroy)(moe_kernel_gemm_t **gemm);
    int (*linear)(moe_kernel_gemm_t *gemm, enum moe_kernel_backend backend, const struct moe_linear_pass *pass,
                  int *error, cudaStream_t stream);
    int (*linear_host)(moe_kernel_gemm_t *gemm, const struct moe_linear_pass *pass, const int64_t *m,
                       const struct moe_linear_group *group, cudaStream_t stream);
    int (*fp8)(moe_kernel_gemm_t *gemm, const struct moe_kernel_fp8 *args, int *error, cudaStream_t stream);
    moe_kernel_gemm_t *gemm;
};

struct kinds {
    enum moe_dtype activation, weight, bias, grad;
    bool block_scales;
};

/* The names of the positions of empty groups: which groups have rows. */
extern const char *const gemm_positions[POSITIONS];

struct problem {
    struct kinds t;
    int64_t n, k, rows;
    float beta, bias_scale;
    bool has_bias, has_probs; /* probs: each row's bias is multiplied by its own number */
    struct twin m, x, dy, weight, scale, bias, probs, y, dx, d_weight, d_bias, d_probs, table;
};

/* What is asked of a problem. */
struct wanted {
    int64_t n, k;
    size_t position;
    int64_t more_rows; /* slack behind the groups: NaNs, and poison in outputs */
    float beta, bias_scale;
    bool has_bias, has_probs;
};

struct problem problem_new(struct check *c, struct kinds t, struct wanted w);
void problem_free(struct check *c, struct problem *p);
void problem_counts(struct check *c, struct problem *p, size_t position);
struct twin scales_new(struct check *c, int64_t n);
struct moe_linear_pass pass_of(const struct problem *p, enum moe_linear_kind kind, int side);
/* Where the pass stores, and the numbers' type. */
const struct twin *output_of(const struct problem *p, enum moe_linear_kind kind, enum moe_dtype *type);

/*
 * What a pass should give, in double precision from the same rounded numbers, before it is run; NaN for what it leaves
 * alone, and for what is not looked at: every `step`-th row of an output matrix is. To be freed.
 */
double *gemm_expected(struct check *c, const struct problem *p, enum moe_linear_kind kind, int64_t step);

/* Products of FP8 by FP8, and the rounding of rows; and one of each for check_product8. */
void gemm_fp8(struct check *c, const struct gemm_api *api);
void gemm_fp8_product(struct check *c);

/* Speed beside cuBLAS, on a GPU only. */
void gemm_races(struct check *c, const struct gemm_api *api);

#endif
