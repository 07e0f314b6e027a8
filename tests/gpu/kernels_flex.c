/*
 * kernels_flex.c: the Flex dispatchers' layout and words, facts about tensors, and the zero-fill of empty groups, host
 * against GPU.
 */
#include "tests/gpu/kernels.h"

#include <dlfcn.h>
#include <math.h>

static const struct {
    int64_t tokens, padded, ranks, etp, experts;
    int32_t k;
} shapes[] = {{0, 0, 1, 1, 4, 2},      {1, 1, 1, 1, 1, 1},      {5, 8, 2, 1, 6, 2}, {65, 128, 4, 2, 16, 4},
              {301, 320, 8, 1, 64, 8}, {130, 192, 6, 3, 34, 5}, {5, 8, 2, 1, 6, 0}};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static struct twin choices(struct check *c, size_t s)
{
    struct twin index = twin_new(c, shapes[s].tokens * shapes[s].k, sizeof(int32_t));
    int32_t *to = twin_at(&index, HOST);
    for (int64_t t = 0; t < shapes[s].tokens; t++) {
        int64_t first = random_below(c, shapes[s].experts);
        for (int32_t j = 0; j < shapes[s].k; j++) {
            to[t * shapes[s].k + j] = random_below(c, 9) == 0 ? -1 : (int32_t)((first + j) % shapes[s].experts);
        }
    }
    twin_push(c, &index);
    return index;
}

static void layout(struct check *c)
{
    row_begin(c, "flex_layout");
    for (size_t s = 0; s < SHAPES; s++) {
        for (int wrong = 0; wrong < 2; wrong++) {
            if (!taken(c)) {
                continue;
            }
            int64_t padded = shapes[s].padded, experts = shapes[s].experts, ranks = shapes[s].ranks,
                    row = (experts + 7) / 8 * 8;
            struct twin index = choices(c, s), map = twin_new(c, padded * row, 1),
                        to_ranks = twin_new(c, padded * ranks, 1);
            struct twin counts = twin_new(c, ranks + experts + 1, sizeof(int64_t));
            if (wrong == 1 && index.count > 0) {
                ((int32_t *)twin_at(&index, HOST))[index.count / 2] = (int32_t)experts;
                twin_push(c, &index);
            }
            twin_poison(c, &map);
            twin_poison(c, &to_ranks);
            RUN_BOTH(c, flex_layout, struct moe_flex_layout, .blocks = 1, .tokens = shapes[s].tokens, .padded = padded,
                     .experts = experts, .ranks = ranks, .etp = shapes[s].etp, .k = shapes[s].k, .mask_row = row,
                     .index = ON(index), .map = ON(map), .to_ranks = ON(to_ranks), .counts = ON(counts));
            bool bad = wrong == 1 && index.count > 0;
            both_found(c, bad ? MOE_E_EXPERT : 0, "flex_layout");
            if (!bad) {
                twin_equal(c, &map, "map");
                twin_equal(c, &to_ranks, "to_ranks");
                twin_equal(c, &counts, "counts");
            }
            /* From the routing maps of two ranks, each with its tail: the map above, twice. */
            if (!bad) {
                int64_t stride = padded * row + 8;
                struct twin masks = twin_new(c, 2 * stride, 1),
                            all = twin_new(c, 2 * (ranks + experts + 1), sizeof(int64_t));
                for (int b = 0; b < 2; b++) {
                    memcpy((char *)twin_at(&masks, HOST) + b * stride, twin_at(&map, HOST), (size_t)(padded * row));
                    memset((char *)twin_at(&masks, HOST) + b * stride + padded * row, 3 + b, 8);
                }
                twin_push(c, &masks);
                twin_poison(c, &all);
                RUN_BOTH(c, flex_layout, struct moe_flex_layout, .blocks = 2, .tokens = shapes[s].tokens,
                         .padded = padded, .experts = experts, .ranks = ranks, .etp = shapes[s].etp, .k = shapes[s].k,
                         .mask_row = row, .mask_stride = stride, .mask = ON(masks), .counts = ON(all));
                both_found(c, 0, "flex_layout of masks");
                twin_equal(c, &all, "counts of masks");
                twin_free(c, &masks);
                twin_free(c, &all);
            }
            struct twin *every[] = {&index, &map, &to_ranks, &counts};
            for (size_t i = 0; i < 4; i++) {
                twin_free(c, every[i]);
            }
        }
    }
    row_end(c, "");
}

static void words(struct check *c)
{
    row_begin(c, "flex_pack, flex_unpack, flex_choices, flex_dropped");
    for (size_t s = 0; s < SHAPES; s++) {
        int64_t tokens = shapes[s].tokens, padded = shapes[s].padded, experts = shapes[s].experts,
                local = (experts + 1) / 2, first = experts - local;
        int32_t k = shapes[s].k;
        struct twin index = choices(c, s), probs = twin_random(c, tokens * experts, MOE_F32, 1),
                    words = twin_new(c, padded * 2 * k, sizeof(int32_t));
        struct twin here = twin_new(c, padded * k, sizeof(int32_t)), mask = twin_new(c, padded * local, 1);
        struct twin local_probs = twin_new(c, padded * local, sizeof(float)),
                    by_choice = twin_new(c, padded * k, sizeof(float));
        struct twin *poisoned[] = {&words, &here, &mask, &local_probs, &by_choice};
        for (size_t i = 0; i < 5; i++) {
            twin_poison(c, poisoned[i]);
        }
        RUN_BOTH(c, flex_pack, struct moe_flex_pack, .tokens = tokens, .padded = padded, .experts = experts, .k = k,
                 .index = ON(index), .probs = ON(probs), .words = ON(words));
        RUN_BOTH(c, flex_unpack, struct moe_flex_unpack, .rows = padded, .first = first, .local = local, .k = k,
                 .words = ON(words), .index = ON(here), .mask = ON(mask), .probs = ON(local_probs));
        RUN_BOTH(c, flex_choices, struct moe_flex_choices, .rows = padded, .experts = local, .k = k, .inverse = true,
                 .index = ON(here), .by_choice = ON(by_choice), .by_expert = ON(local_probs));
        both_found(c, 0, "flex words");
        for (size_t i = 0; i < 5; i++) {
            twin_equal(c, poisoned[i], "words, index, mask, probabilities");
        }
        twin_poison(c, &local_probs);
        RUN_BOTH(c, flex_choices, struct moe_flex_choices, .rows = padded, .experts = local, .k = k, .index = ON(here),
                 .by_choice = ON(by_choice), .by_expert = ON(local_probs));
        struct twin chosen = twin_new(c, experts, sizeof(int64_t)), m = twin_new(c, experts, sizeof(int64_t)),
                    dropped = twin_new(c, 1, sizeof(int64_t));
        for (int64_t e = 0; e < experts; e++) {
            ((int64_t *)twin_at(&chosen, HOST))[e] = random_below(c, 9);
            ((int64_t *)twin_at(&m, HOST))[e] = random_below(c, 9);
        }
        twin_push(c, &chosen);
        twin_push(c, &m);
        RUN_BOTH(c, flex_dropped, struct moe_flex_dropped, .groups = experts, .chosen = ON(chosen), .m = ON(m),
                 .dropped = ON(dropped));
        both_found(c, 0, "flex_dropped");
        twin_equal(c, &local_probs, "by expert");
        twin_equal(c, &dropped, "dropped");
        struct twin *every[] = {&index, &probs, &words, &here, &mask, &local_probs, &by_choice, &chosen, &m, &dropped};
        for (size_t i = 0; i < 10; i++) {
            twin_free(c, every[i]);
        }
    }
    row_end(c, "");
}

static void facts(struct check *c)
{
    static const int64_t size[][2] = {{0, 5}, {1, 1}, {3, 7}, {8, 1009}, {64, 4096}}; /* groups, elements */
    row_begin(c, "sum_abs, not_finite");
    for (size_t s = 0; s < sizeof(size) / sizeof(size[0]); s++) {
        int64_t groups = size[s][0], count = groups * size[s][1];
        struct twin in = twin_random(c, count, MOE_F32, 2), m = twin_new(c, groups, sizeof(int64_t));
        struct twin sums = twin_new(c, 2, sizeof(double)), wrong = twin_new(c, 2, sizeof(uint64_t));
        twin_poison(c, &sums);
        twin_poison(c, &wrong);
        RUN_BOTH(c, sum_abs, struct moe_sum_abs, .count = count, .in = ON(in), .out = ON(sums));
        both_found(c, 0, "sum_abs");
        double *got = twin_fetch(c, &sums), *want = twin_at(&sums, HOST);
        for (int i = 0; i < 2; i++) {
            if (!(fabs(got[i] - want[i]) <= 1e-12 * (1 + want[1]))) {
                row_wrong(c, "sum %d is %.17g, not %.17g", i, got[i], want[i]);
            }
        }
        free(got);
        for (int64_t i = 0; i < count; i += 1 + random_below(c, 40)) {
            ((float *)twin_at(&in, HOST))[i] = i % 2 == 0 ? NAN : -INFINITY;
        }
        for (int64_t g = 0; g < groups; g++) {
            ((int64_t *)twin_at(&m, HOST))[g] = g % 2;
        }
        twin_push(c, &in);
        twin_push(c, &m);
        RUN_BOTH(c, not_finite, struct moe_not_finite, .groups = groups, .elements = size[s][1], .in = ON(in),
                 .m = ON(m), .out = ON(wrong));
        both_found(c, 0, "not_finite");
        twin_equal(c, &wrong, "not finite");
        struct twin *every[] = {&in, &m, &sums, &wrong};
        for (size_t i = 0; i < 4; i++) {
            twin_free(c, every[i]);
        }
    }
    row_end(c, "");
}

/* zero-fill of empty groups: no function of the table, so it is taken out of the library */

typedef int zero_empty_fn(float *out, const int64_t *m, int64_t groups, int64_t elements, cudaStream_t stream);

struct zero_empty {
    zero_empty_fn *run;
    float *out;
    const int64_t *m;
    int64_t groups, elements;
};

static void zero_empty_once(struct check *c, const void *args)
{
    const struct zero_empty *z = args;
    launched(c, z->run(z->out, z->m, z->groups, z->elements, moe_device_stream(c->device[GPU])), "zero_empty");
}

/* The host's side, in the plainest form; it is also what a rehearsal compares with itself. */
static int zero_empty_host(float *out, const int64_t *m, int64_t groups, int64_t elements, cudaStream_t stream)
{
    (void)stream;
    for (int64_t i = 0; i < groups * elements; i++) {
        out[i] = m[i / elements] == 0 ? 0.0f : out[i];
    }
    return 0;
}

static void zero_empty(struct check *c)
{
    static const int64_t size[][2] = {{0, 8}, {1, 1}, {1, 7}, {5, 4}, {64, 129}, {257, 1024}};
    void *library = c->rehearsal ? NULL : dlopen("libmoe_kernels.so", RTLD_NOW | RTLD_NOLOAD);
    zero_empty_fn *run = zero_empty_host;
    char more[64] = "";
    row_begin(c, "zero_empty");
    if (!c->rehearsal) {
        void *symbol = library != NULL ? dlsym(library, "moe_kernel_zero_empty") : NULL;
        if (symbol == NULL) {
            row_wrong(c, "libmoe_kernels.so has no moe_kernel_zero_empty");
            row_end(c, more);
            return;
        }
        memcpy(&run, &symbol, sizeof(run));
    }
    for (size_t s = 0; s < sizeof(size) / sizeof(size[0]); s++) {
        struct twin out = twin_new(c, size[s][0] * size[s][1], sizeof(float)),
                    m = twin_new(c, size[s][0], sizeof(int64_t));
        for (int64_t g = 0; g < size[s][0]; g++) {
            ((int64_t *)twin_at(&m, HOST))[g] = random_below(c, 3);
        }
        twin_push(c, &m);
        twin_poison(c, &out);
        struct zero_empty z = {run, twin_at(&out, GPU), twin_at(&m, GPU), size[s][0], size[s][1]};
        zero_empty_once(c, &z);
        zero_empty_host(twin_at(&out, HOST), twin_at(&m, HOST), size[s][0], size[s][1], NULL);
        both_found(c, 0, "zero_empty");
        twin_equal(c, &out, "out");
        twin_free(c, &out);
        twin_free(c, &m);
    }
    /* 64 groups that all have rows: what it costs where nothing is empty. */
    struct twin m = twin_new(c, 64, sizeof(int64_t)), out = twin_new(c, 64 * 4096, sizeof(float));
    for (int64_t g = 0; g < 64; g++) {
        ((int64_t *)twin_at(&m, HOST))[g] = 1;
    }
    twin_push(c, &m);
    struct zero_empty z = {run, twin_at(&out, GPU), twin_at(&m, GPU), 64, 4096};
    snprintf(more, sizeof(more), "\"large_shape_ms\":%.5f", time_ms(c, zero_empty_once, &z));
    twin_free(c, &m);
    twin_free(c, &out);
    row_end(c, more);
}

void check_flex(struct check *c)
{
    zero_empty(c);
    layout(c);
    words(c);
    facts(c);
}
