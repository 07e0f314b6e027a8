/*
 * gemm.cu: the front of the grouped products: checks, the choice of a kernel, tensor maps, launches.
 *
 * Two launches a pass: the plan from the counts, then the product (gemm_hopper.cu, gemm_scaled.cu, gemm_mma.cu or
 * gemm_simt.cu). No decision in this file depends on a count. The kernel is chosen from what the host knows: the
 * device, the types, and whether the copy engine can read the matrices (rows that are multiples of 16 bytes, 16-byte
 * aligned).
 *
 * Tensor maps are encoded here as templates without an address (the driver's encoder is host code; its pointer comes
 * from the runtime, so that nothing links the driver) and given their addresses on the device, where the groups' table
 * and the counts are. Maps that are kept from call to call, one set per set of weights, were rejected: the table may
 * change between replays of a graph.
 */
#include "common/fp8.h"
#include "kernels/check.cuh"
#include "kernels/gemm/gemm_args.cuh"
#include "kernels/gemm/gemm_front.h"
#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                              const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

enum { MOST_GROUPS = 1 << 20 }; /* each block of gemm_plan.cu sums the counts of all groups */

struct moe_kernel_gemm {
    int64_t groups;
    int blocks, major, minor; /* multiprocessors and compute capability */
    void *memory;
    struct gemm_plan plan;
    encode_fn encode; /* NULL: the copy engine cannot be used */
    struct moe_cublas *cublas;
    int teams[2][3]; /* [hopper, scaled][team_log]: teams that run at once; 0: not asked yet, negative: none */
};

/* life */

#ifdef MOE_KERNELS_SM90A
static encode_fn find_encoder(void)
{
    void *fn = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaError_t rc = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &fn, 12000, cudaEnableDefault, &found);
#else
    cudaError_t rc = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &fn, cudaEnableDefault, &found);
#endif
    if (rc != cudaSuccess) {
        cudaGetLastError(); /* it is dealt with; the next launch must not find it */
    }
    return rc == cudaSuccess && found == cudaDriverEntryPointSuccess ? (encode_fn)fn : NULL;
}
#endif

static int know_device(moe_kernel_gemm_t *g)
{
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&g->blocks, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&g->major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&g->minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
        return MOE_E_DEVICE;
    }
    int rc = gemm_mma_prepare();
#ifdef MOE_KERNELS_SM90A
    if (rc == 0 && g->major == 9 && g->minor == 0) {
        g->encode = find_encoder(); /* an old driver has none; gemm_mma.cu is used then */
        rc = g->encode == NULL ? 0 : gemm_hopper_prepare();
        rc = rc || g->encode == NULL ? rc : gemm_scaled_prepare();
    }
#endif
    return rc;
}

extern "C" int moe_kernel_gemm_new(int64_t groups, moe_kernel_gemm_t **out)
{
    *out = NULL;
    if (groups < 1 || groups > MOST_GROUPS) {
        return MOE_E_ARG;
    }
    moe_kernel_gemm_t *g = static_cast<moe_kernel_gemm_t *>(calloc(1, sizeof(*g)));
    if (g == NULL) {
        return MOE_E_NOMEM;
    }
    size_t maps = (size_t)groups * sizeof(CUtensorMap), sums = (size_t)(groups + 1) * sizeof(int64_t);
    g->groups = groups;
    int rc = know_device(g);
    if (rc == 0 && cudaMalloc(&g->memory, 2 * maps + 2 * sums) != cudaSuccess) {
        rc = MOE_E_NOMEM;
    }
    if (rc != 0) {
        moe_kernel_gemm_destroy(&g);
        return rc;
    }
    char *memory = static_cast<char *>(g->memory);
    g->plan.a = reinterpret_cast<CUtensorMap *>(memory);
    g->plan.b = reinterpret_cast<CUtensorMap *>(memory + maps);
    g->plan.row = reinterpret_cast<int64_t *>(memory + 2 * maps);
    g->plan.tile = reinterpret_cast<int64_t *>(memory + 2 * maps + sums);
    *out = g;
    return 0;
}

extern "C" void moe_kernel_gemm_destroy(moe_kernel_gemm_t **gemm)
{
    if (*gemm != NULL) {
        moe_cublas_destroy(&(*gemm)->cublas);
        cudaFree((*gemm)->memory); /* waits for the device */
        free(*gemm);
        *gemm = NULL;
    }
}

/* tensor maps */

struct map_shape {
    enum moe_dtype type;
    int64_t width, rows; /* of the matrix, in elements */
    unsigned box_width, box_rows;
    bool swizzled;
};

static bool encode(const moe_kernel_gemm_t *g, const struct map_shape *s, CUtensorMap *map)
{
    int bytes = s->type == MOE_BF16 || s->type == MOE_F16 ? 2 : 1;
    CUtensorMapDataType type = s->type == MOE_BF16  ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                               : s->type == MOE_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                    : CU_TENSOR_MAP_DATA_TYPE_UINT8;
    cuuint64_t size[2] = {(cuuint64_t)s->width, (cuuint64_t)(s->rows > 0 ? s->rows : 1)};
    cuuint64_t pitch[1] = {(cuuint64_t)(s->width * bytes)};
    cuuint32_t box[2] = {s->box_width, s->box_rows}, step[2] = {1, 1};
    return g->encode(map, type, 2, g->memory, size, pitch, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                     s->swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* a pass */

enum path { SIMT, MMA, HOPPER, SCALED, NATIVE, BIAS, PROBS };

static struct moe_gemm_cut cut_of(enum path path)
{
    switch (path) {
    case HOPPER:
        return moe_gemm_cut_of(GEMM_HOPPER_ROWS, GEMM_HOPPER_COLS, 128);
    case SCALED:
    case NATIVE:
        return moe_gemm_cut_of(GEMM_SCALED_ROWS, GEMM_SCALED_COLS, path == NATIVE ? 128 : 64);
    case MMA:
        return moe_gemm_cut_of(GEMM_MMA_ROWS, GEMM_MMA_COLS, 128);
    default:
        return moe_gemm_cut_of(GEMM_SIMT_ROWS, GEMM_SIMT_COLS, 128);
    }
}

static bool is_half(enum moe_dtype type)
{
    return type == MOE_BF16 || type == MOE_F16;
}

static bool is_fp8(enum moe_dtype type)
{
    return type == MOE_E4M3 || type == MOE_E5M2;
}

/* The maps of a weight gradient of two FP8 operands, both turned: boxes of 128 of the depth by a tile's edge. */
static bool make_column_maps(const moe_kernel_gemm_t *g, const struct gemm_args *a, struct gemm_plan_args *p)
{
    int64_t pitch = moe_fp8_pitch(p->rows, p->groups);
    struct map_shape left = {a->activation, pitch, a->n, 128, (unsigned)p->cut.tile_rows, true};
    struct map_shape right = {a->weight, pitch, a->k, 128, (unsigned)p->cut.tile_cols, true};
    p->maps = p->columns = true;
    p->group = a->group;
    p->a = static_cast<const char *>(a->in);
    p->b = static_cast<const char *>(a->x);
    p->a_pitch = p->b_pitch = 1;
    return encode(g, &left, &p->a_map) && encode(g, &right, &p->b_map);
}

/* The maps of a pass on the copy engine, into `p`. */
static bool make_maps(const moe_kernel_gemm_t *g, const struct gemm_args *a, enum path path, struct gemm_plan_args *p)
{
    bool forward = a->kind == MOE_GEMM_FORWARD, wgrad = a->kind == MOE_GEMM_WGRAD;
    bool turned = path == NATIVE && a->kind == MOE_GEMM_DGRAD; /* weights [k,n] */
    int bytes = path == NATIVE ? 1 : 2;
    if (path == NATIVE && wgrad) {
        return make_column_maps(g, a, p);
    }
    unsigned line = 128 / bytes; /* elements of 128 bytes */
    int64_t width = forward ? a->k : a->n;
    bool pieces = wgrad || a->team_log > 0; /* boxes of 64 by 64 */
    struct map_shape left = {a->activation, width, p->rows, line, pieces ? 64u : (unsigned)p->cut.tile_rows, true};
    struct map_shape right = {wgrad ? a->activation : a->weight,
                              turned ? a->n : a->k,
                              wgrad    ? p->rows
                              : turned ? a->k
                                       : a->n,
                              line,
                              (forward || turned) && a->team_log == 0 ? (unsigned)p->cut.tile_cols : 64u,
                              true};
    if (path == SCALED) { /* the raw bytes of the weight: boxes of 64 of the depth by 128 */
        right.box_width = forward ? 64 : 128;
        right.box_rows = forward ? 128 : 64;
        right.swizzled = false;
    }
    p->maps = true;
    p->group = a->group;
    p->a = static_cast<const char *>(a->in);
    p->a_pitch = width * bytes;
    p->b = wgrad ? static_cast<const char *>(a->x) : NULL;
    p->b_pitch = a->k * bytes;
    p->weights = turned ? static_cast<const char *>(a->weights) : NULL;
    p->weight_bytes = a->n * a->k;
    return encode(g, &left, &p->a_map) && encode(g, &right, &p->b_map);
}

/* The blocks of a launch: one for each multiprocessor, or all teams that the device runs at once. UNSUPPORTED where it
 * runs none. */
static int blocks_of(moe_kernel_gemm_t *g, enum path path, int team_log, int *blocks)
{
    *blocks = g->blocks;
    if (team_log == 0) {
        return 0;
    }
    int *teams = &g->teams[path == HOPPER ? 0 : 1][team_log];
    if (*teams == 0) {
        int rc = path == HOPPER ? gemm_hopper_teams(team_log, teams) : gemm_scaled_teams(team_log, teams);
        if (rc != 0) {
            return rc;
        }
        *teams = *teams > 0 ? *teams : -1;
    }
    *blocks = *teams << team_log;
    return *teams > 0 ? 0 : MOE_E_UNSUPPORTED;
}

static int launch(moe_kernel_gemm_t *g, struct gemm_args *a, enum path path, const int64_t *m, int64_t rows, int *error,
                  cudaStream_t stream)
{
    struct gemm_plan_args p;
    int blocks, rc = blocks_of(g, path, a->team_log, &blocks);
    if (rc != 0) {
        return rc;
    }
    memset(&p, 0, sizeof(p));
    a->plan = p.plan = g->plan;
    p.kind = a->kind;
    p.cut = cut_of(path);
    p.cut.team_log = a->team_log;
    p.accumulate = a->accumulate;
    p.groups = a->groups;
    p.n = a->n;
    p.k = a->k;
    p.rows = rows;
    p.m = m;
    p.error = error;
    if ((path == HOPPER || path == SCALED || path == NATIVE) && !make_maps(g, a, path, &p)) {
        return MOE_E_DEVICE;
    }
    rc = gemm_plan_launch(&p, stream);
    if (rc != 0) {
        return rc;
    }
    switch (path) {
    case SIMT:
        return gemm_simt_launch(a, blocks, stream);
    case MMA:
        return gemm_mma_launch(a, blocks, stream);
    case HOPPER:
        return gemm_hopper_launch(a, blocks, stream);
    case BIAS:
        return gemm_bias_grad_launch(a, stream);
    case PROBS:
        return gemm_probs_grad_launch(a, blocks, stream);
    default:
        return gemm_scaled_launch(a, blocks, stream);
    }
}

static bool wants_wgmma(const moe_kernel_gemm_t *g, const struct moe_linear_pass *p)
{
    int64_t piece = is_fp8(p->weight) && p->kind != MOE_LINEAR_WGRAD ? 16 : 8;
    return g->encode != NULL && p->n % 8 == 0 && p->k % piece == 0 && moe_aligned16(p->x) && moe_aligned16(p->dy) &&
           moe_aligned16(p->out) && p->n <= INT32_MAX && p->k <= INT32_MAX;
}

/* The path for a pass, or the error. */
static int choose(const moe_kernel_gemm_t *g, enum moe_kernel_backend backend, const struct moe_linear_pass *p,
                  enum path *path)
{
    bool wgrad = p->kind == MOE_LINEAR_WGRAD, fp8 = !wgrad && is_fp8(p->weight);
    bool halves = is_half(p->activation) && (wgrad || fp8 || p->weight == p->activation);
    bool wgmma = halves && wants_wgmma(g, p), mma = halves && g->major >= 8;
    if (p->kind > MOE_LINEAR_WGRAD) {
        *path = p->kind == MOE_LINEAR_BGRAD ? BIAS : PROBS;
        return 0;
    }
    switch (backend) {
    case MOE_KERNEL_AUTO:
        *path = wgmma ? (fp8 ? SCALED : HOPPER) : mma ? MMA : SIMT;
        return 0;
    case MOE_KERNEL_OWN_WGMMA:
    case MOE_KERNEL_OWN_WGMMA_PAIRS:
    case MOE_KERNEL_OWN_WGMMA_FOURS:
        *path = fp8 ? SCALED : HOPPER;
        return wgmma ? 0 : MOE_E_UNSUPPORTED;
    case MOE_KERNEL_OWN_MMA:
        *path = MMA;
        return mma ? 0 : MOE_E_UNSUPPORTED;
    case MOE_KERNEL_OWN_SIMT:
        *path = SIMT;
        return 0;
    default:
        return MOE_E_UNSUPPORTED;
    }
}

/* How many blocks of a team a backend means, as a logarithm. */
static int team_log_of(enum moe_kernel_backend backend)
{
    return backend == MOE_KERNEL_OWN_WGMMA_PAIRS ? 1 : backend == MOE_KERNEL_OWN_WGMMA_FOURS ? 2 : 0;
}

static int check_pass(const moe_kernel_gemm_t *g, const struct moe_linear_pass *p)
{
    if (p->groups < 0 || p->n < 1 || p->k < 1 || p->rows < 0 || p->rows > INT32_MAX ||
        (unsigned)p->kind > MOE_LINEAR_PGRAD) {
        return MOE_E_SHAPE;
    }
    if (p->groups > g->groups) {
        return MOE_E_CAPACITY;
    }
    bool x = p->kind == MOE_LINEAR_FORWARD || p->kind == MOE_LINEAR_WGRAD, dy = p->kind != MOE_LINEAR_FORWARD;
    bool grad = p->kind == MOE_LINEAR_WGRAD || p->kind == MOE_LINEAR_BGRAD, out = !grad;
    bool missing = p->rows > 0 && ((x && p->x == NULL) || (dy && p->dy == NULL) || (out && p->out == NULL));
    bool types = (p->activation == MOE_F32 || is_half(p->activation)) && (unsigned)p->weight < MOE_DTYPES &&
                 (!grad || p->grad == MOE_F32 || is_half(p->grad)) &&
                 (p->fp8 == MOE_FP8_STORAGE || p->kind > MOE_LINEAR_WGRAD);
    return p->groups > 0 && (missing || !types || p->m == NULL || p->group == NULL) ? MOE_E_ARG : 0;
}

extern "C" int moe_kernel_linear(moe_kernel_gemm_t *g, enum moe_kernel_backend backend,
                                 const struct moe_linear_pass *pass, int *error, cudaStream_t stream)
{
    enum path path;
    int rc = check_pass(g, pass);
    rc = rc ? rc : choose(g, backend, pass, &path);
    if (rc != 0 || pass->groups == 0) {
        return rc;
    }
    struct gemm_args a;
    memset(&a, 0, sizeof(a));
    bool grad = pass->kind == MOE_LINEAR_WGRAD || pass->kind == MOE_LINEAR_BGRAD;
    a.kind = pass->kind == MOE_LINEAR_FORWARD ? MOE_GEMM_FORWARD : grad ? MOE_GEMM_WGRAD : MOE_GEMM_DGRAD;
    a.groups = pass->groups;
    a.n = pass->n;
    a.k = pass->k;
    a.group = pass->group;
    a.in = pass->kind == MOE_LINEAR_FORWARD ? pass->x : pass->dy;
    a.x = pass->x;
    a.out = pass->out;
    a.activation = pass->activation;
    a.weight = pass->weight;
    a.bias = pass->bias;
    a.grad = pass->grad;
    a.block_scales = pass->block_scales;
    a.accumulate = grad && pass->beta != 0.0f;
    a.bias_probs = pass->bias_probs;
    a.bias_scale = pass->bias_scale == 0.0f ? 1.0f : pass->bias_scale;
    a.team_log = path == HOPPER || path == SCALED ? team_log_of(backend) : 0;
    return launch(g, &a, path, pass->m, pass->rows, error, stream);
}

extern "C" int moe_kernel_grouped(moe_kernel_gemm_t *g, const struct moe_grouped *args, int *error, cudaStream_t stream)
{
    bool wgrad = args->kind == MOE_GROUPED_WGRAD;
    if (args->groups < 0 || args->n < 1 || args->k < 1 || args->rows < 0) {
        return MOE_E_SHAPE;
    }
    if (args->groups > g->groups) {
        return MOE_E_CAPACITY;
    }
    if (args->groups == 0) {
        return 0;
    }
    if (args->m == NULL || (wgrad ? args->out == NULL : args->w == NULL) ||
        (args->rows > 0 && (args->in == NULL || args->out == NULL || (wgrad && args->x == NULL)))) {
        return MOE_E_ARG;
    }
    struct gemm_args a;
    memset(&a, 0, sizeof(a)); /* all types: float32 */
    a.kind = wgrad ? MOE_GEMM_WGRAD : args->kind == MOE_GROUPED_DGRAD ? MOE_GEMM_DGRAD : MOE_GEMM_FORWARD;
    a.groups = args->groups;
    a.n = args->n;
    a.k = args->k;
    a.in = args->in;
    a.x = args->x;
    a.weights = args->w;
    a.out = args->out;
    a.accumulate = wgrad && args->beta != 0.0f;
    return launch(g, &a, SIMT, args->m, args->rows, error, stream);
}

/* Features that the copy engine and the stores can take, for each kind. */
static bool fits_fp8(const struct moe_kernel_fp8 *f)
{
    int64_t along = f->kind == MOE_LINEAR_FORWARD ? f->k : f->n, across = f->kind == MOE_LINEAR_FORWARD ? f->n : f->k;
    return f->groups >= 0 && f->n >= 1 && f->k >= 1 && across % 8 == 0 &&
           along % (f->kind == MOE_LINEAR_WGRAD ? 8 : 16) == 0 && f->rows >= 0 && f->rows <= INT32_MAX &&
           f->n <= INT32_MAX && f->k <= INT32_MAX && (unsigned)f->kind <= MOE_LINEAR_WGRAD &&
           moe_fp8_pitch(f->rows, f->groups) <= INT32_MAX;
}

static bool has_all_fp8(const struct moe_kernel_fp8 *f)
{
    bool wgrad = f->kind == MOE_LINEAR_WGRAD, grad = !wgrad || f->grad == MOE_F32 || is_half(f->grad);
    bool rows = f->in != NULL && f->in_scales != NULL && (wgrad ? f->other_scales != NULL : f->out != NULL);
    return f->m != NULL && f->group != NULL && is_fp8(f->in_type) && grad && moe_aligned16(f->in) &&
           moe_aligned16(f->other) && moe_aligned16(f->out) && (f->rows == 0 || rows) &&
           (f->kind == MOE_LINEAR_FORWARD || f->other != NULL);
}

extern "C" int moe_kernel_gemm_fp8(moe_kernel_gemm_t *g, const struct moe_kernel_fp8 *args, int *error,
                                   cudaStream_t stream)
{
    bool wgrad = args->kind == MOE_LINEAR_WGRAD;
    if (!fits_fp8(args)) {
        return MOE_E_SHAPE;
    }
    if (args->groups > g->groups) {
        return MOE_E_CAPACITY;
    }
    if (g->encode == NULL || (wgrad && team_log_of(args->backend) > 0)) {
        return MOE_E_UNSUPPORTED;
    }
    if (args->groups == 0) {
        return 0;
    }
    if (!has_all_fp8(args)) {
        return MOE_E_ARG;
    }
    struct gemm_args a;
    memset(&a, 0, sizeof(a));
    a.kind = wgrad ? MOE_GEMM_WGRAD : args->kind == MOE_LINEAR_DGRAD ? MOE_GEMM_DGRAD : MOE_GEMM_FORWARD;
    a.groups = args->groups;
    a.n = args->n;
    a.k = args->k;
    a.group = args->group;
    a.in = args->in;
    a.x = wgrad ? args->other : args->in;
    a.weights = args->kind == MOE_LINEAR_DGRAD ? args->other : NULL;
    a.out = args->out;
    a.activation = args->in_type;
    a.weight = MOE_E4M3;
    a.bias = args->bias;
    a.grad = args->grad;
    a.accumulate = wgrad && args->beta != 0.0f;
    a.block_scales = args->block_scales;
    a.row_scales = args->in_scales;
    a.col_scales = args->other_scales;
    a.bias_probs = args->bias_probs;
    a.bias_scale = args->bias_scale == 0.0f ? 1.0f : args->bias_scale;
    a.team_log = team_log_of(args->backend);
    return launch(g, &a, NATIVE, args->m, args->rows, error, stream);
}

/* cuBLAS */

/* Made at its first product, which may be a captured one: its memory is taken in relaxed capture mode, since in the
 * others an allocation ends the capture. */
static int need_cublas(moe_kernel_gemm_t *g)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    if (g->cublas != NULL) {
        return 0;
    }
    if (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) {
        return MOE_E_DEVICE;
    }
    int rc = moe_cublas_new(&g->cublas);
    cudaThreadExchangeStreamCaptureMode(&mode);
    return rc;
}

extern "C" int moe_kernel_product(moe_kernel_gemm_t *g, const struct moe_gemm *args, cudaStream_t stream)
{
    int rc = need_cublas(g);
    return rc ? rc : moe_cublas_product(g->cublas, args, stream);
}

extern "C" int moe_kernel_linear_host(moe_kernel_gemm_t *g, const struct moe_linear_pass *pass, const int64_t *m,
                                      const struct moe_linear_group *group, cudaStream_t stream)
{
    int rc = need_cublas(g);
    return rc ? rc : moe_cublas_grouped(g->cublas, pass, m, group, stream);
}
