/*
 * kernels_twin.c: arrays that lie on both sides, and their comparison.
 */
#include "tests/gpu/kernels.h"

#include <math.h>
#include <stdarg.h>

enum { ZONE = 256, PATTERN = 0xa5 }; /* bytes; a zone is a multiple of every alignment that a kernel asks for */
#define POISON 0x7fc0dead /* a NaN in float32; its halves are a NaN in bfloat16 and a large number in the others */

static void must(struct check *c, int rc, const char *what)
{
    if (rc != 0) {
        fprintf(stderr, "gpu check: %s: %s: %s\n", c->name, what, moe_last_error());
        exit(9);
    }
}

uint64_t next_random(struct check *c)
{
    c->random = c->random * 6364136223846793005u + 1442695040888963407u;
    return c->random >> 33;
}

int64_t random_below(struct check *c, int64_t n)
{
    return n > 0 ? (int64_t)(next_random(c) % (uint64_t)n) : 0;
}

static size_t bytes_of(const struct twin *t)
{
    return (size_t)t->count * t->size;
}

void *twin_at(const struct twin *t, int side)
{
    return t->zone[side] != NULL ? t->zone[side] + ZONE + t->offset : NULL;
}

struct twin twin_new_at(struct check *c, int64_t count, size_t size, int64_t offset)
{
    struct twin t = {.count = count, .size = size, .offset = (size_t)offset * size};
    size_t all = bytes_of(&t) + t.offset + 2 * ZONE;
    for (int side = 0; side < SIDES; side++) {
        must(c, moe_device_alloc(c->device[side], all, (void **)&t.zone[side]), "memory");
    }
    memset(t.zone[HOST], PATTERN, all);
    memset(twin_at(&t, HOST), 0, bytes_of(&t));
    must(c, moe_device_copy(c->device[GPU], t.zone[GPU], t.zone[HOST], all), "copy");
    must(c, moe_device_sync(c->device[GPU]), "copy");
    return t;
}

struct twin twin_new(struct check *c, int64_t count, size_t size)
{
    return twin_new_at(c, count, size, 0);
}

void twin_free(struct check *c, struct twin *t)
{
    for (int side = 0; side < SIDES; side++) {
        moe_device_free(c->device[side], &t->zone[side]);
    }
}

void twin_push(struct check *c, const struct twin *t)
{
    must(c, moe_device_copy(c->device[GPU], twin_at(t, GPU), twin_at(t, HOST), bytes_of(t)), "copy");
    must(c, moe_device_sync(c->device[GPU]), "copy");
}

void twin_poison(struct check *c, const struct twin *t)
{
    static const uint32_t poison = POISON;
    unsigned char *to = twin_at(t, HOST);
    for (size_t i = 0; i < bytes_of(t); i++) {
        to[i] = ((const unsigned char *)&poison)[i % sizeof(poison)];
    }
    twin_push(c, t);
}

/* Float32 to a type, on the host's device: its own rounding. */
static void narrow(struct check *c, const float *from, enum moe_dtype type, const struct twin *to)
{
    struct moe_cast cast = {.count = to->count, .to_type = type, .from = from, .to = twin_at(to, HOST)};
    must(c, moe_device_ops(c->device[HOST])->cast(c->device[HOST], &cast), "cast");
    must(c, moe_device_sync(c->device[HOST]), "cast");
}

static float *floats(int64_t count)
{
    float *f = calloc((size_t)count + 1, sizeof(*f));
    if (f == NULL) {
        perror("gpu check");
        exit(9);
    }
    return f;
}

struct twin twin_random(struct check *c, int64_t count, enum moe_dtype type, float range)
{
    struct twin t = twin_new(c, count, moe_dtype_bytes(type));
    float *numbers = floats(count);
    for (int64_t i = 0; i < count; i++) {
        numbers[i] = ((float)(next_random(c) % 20001) / 10000.0f - 1.0f) * range;
    }
    narrow(c, numbers, type, &t);
    free(numbers);
    twin_push(c, &t);
    return t;
}

struct twin twin_grid(struct check *c, int64_t count, int steps)
{
    struct twin t = twin_new(c, count, sizeof(float));
    float *to = twin_at(&t, HOST);
    for (int64_t i = 0; i < count; i++) {
        to[i] = (float)random_below(c, steps) / 16.0f;
    }
    twin_push(c, &t);
    return t;
}

/* Everything of the GPU's side, zones included. */
static unsigned char *fetch_all(struct check *c, const struct twin *t)
{
    size_t all = bytes_of(t) + t->offset + 2 * ZONE;
    unsigned char *got = malloc(all);
    if (got == NULL) {
        perror("gpu check");
        exit(9);
    }
    must(c, moe_device_copy(c->device[GPU], got, t->zone[GPU], all), "copy");
    must(c, moe_device_sync(c->device[GPU]), "copy");
    for (size_t i = 0; c->digests && i < bytes_of(t); i++) {
        c->digest = (c->digest ^ got[ZONE + t->offset + i]) * 1099511628211u;
    }
    return got;
}

void *twin_fetch(struct check *c, const struct twin *t)
{
    unsigned char *got = fetch_all(c, t);
    memmove(got, got + ZONE + t->offset, bytes_of(t));
    return got;
}

static bool zones_whole(const struct twin *t, const unsigned char *all)
{
    size_t before = ZONE + t->offset, after = before + bytes_of(t);
    bool whole = true;
    for (size_t i = 0; i < before; i++) {
        whole = whole && all[i] == PATTERN;
    }
    for (size_t i = after; i < after + ZONE; i++) {
        whole = whole && all[i] == PATTERN;
    }
    return whole;
}

/* The GPU's side with its zones judged; spoilt on purpose where --break asks for it. */
static unsigned char *judged(struct check *c, const struct twin *t, const char *what)
{
    unsigned char *got = fetch_all(c, t);
    c->compared++;
    if (!zones_whole(t, got)) {
        row_wrong(c, "%s: written outside of the array by the GPU", what);
    }
    if (!zones_whole(t, t->zone[HOST])) {
        row_wrong(c, "%s: written outside of the array by the host", what);
    }
    if (c->breaks >= 0 && c->breaks-- == 0 && t->count > 0) {
        got[ZONE + t->offset + bytes_of(t) / t->size / 2 * t->size + t->size - 1] ^= 0x41; /* sign and exponent */
    }
    return got;
}

void twin_equal(struct check *c, const struct twin *t, const char *what)
{
    unsigned char *all = judged(c, t, what), *got = all + ZONE + t->offset, *want = twin_at(t, HOST);
    for (int64_t i = 0; i < t->count; i++) {
        if (memcmp(got + (size_t)i * t->size, want + (size_t)i * t->size, t->size) != 0) {
            row_wrong(c, "%s[%lld of %lld] differs", what, (long long)i, (long long)t->count);
            break;
        }
    }
    free(all);
}

/* Numbers of a type in float32, by the host's cast. */
static float *widened(struct check *c, const void *from, enum moe_dtype type, int64_t count)
{
    float *to = floats(count);
    struct moe_cast cast = {.count = count, .from_type = type, .from = from, .to = to};
    must(c, moe_device_ops(c->device[HOST])->cast(c->device[HOST], &cast), "cast");
    must(c, moe_device_sync(c->device[HOST]), "cast");
    return to;
}

/* The worst of one side, in tolerances, kept in the row; `who` computed it. Numbers for which `same` holds are right.
 */
struct wanted {
    const double *want;
    double tolerance, size;
    const bool *same;
};

static void judge(struct check *c, const float *got, int64_t count, const struct wanted *w, const char *who,
                  const char *what)
{
    double worst = 0;
    int64_t where = 0;
    for (int64_t i = 0; i < count; i++) {
        if (w->same[i]) {
            continue;
        }
        double scale = fmax(fmax(1, w->size), fabs(w->want[i]));
        double error = fabs((double)got[i] - w->want[i]) / scale / w->tolerance;
        if (!(error <= worst)) {
            worst = isnan(error) ? INFINITY : error;
            where = i;
        }
    }
    if (!(worst <= 1)) {
        row_wrong(c, "%s[%lld of %lld] of %s: %.9g, not %.9g: %.3g tolerances", what, (long long)where,
                  (long long)count, who, (double)got[where], w->want[where], worst);
    }
    c->worst = fmax(c->worst, worst);
}

double *twin_wide(struct check *c, const struct twin *t, enum moe_dtype type)
{
    float *narrow = widened(c, twin_at(t, HOST), type, t->count);
    double *wide = calloc((size_t)t->count + 1, sizeof(*wide));
    if (wide == NULL) {
        perror("gpu check");
        exit(9);
    }
    for (int64_t i = 0; i < t->count; i++) {
        wide[i] = (double)narrow[i];
    }
    free(narrow);
    return wide;
}

/* Compares both sides with `want`; without it, the GPU's side with the host's. */
static void compare(struct check *c, const struct twin *t, enum moe_dtype type, const double *want, double tolerance,
                    double size, const char *what)
{
    unsigned char *all = judged(c, t, what), *raw = all + ZONE + t->offset, *host = twin_at(t, HOST);
    float *got = widened(c, raw, type, t->count), *of_host = widened(c, host, type, t->count);
    double *hosts = want == NULL ? twin_wide(c, t, type) : NULL;
    bool *same = calloc((size_t)t->count + 1, sizeof(*same));
    if (same == NULL) {
        perror("gpu check");
        exit(9);
    }
    struct wanted w = {.want = want != NULL ? want : hosts, .tolerance = tolerance, .size = size, .same = same};
    for (int64_t i = 0; i < t->count; i++) {
        bool alike = memcmp(raw + (size_t)i * t->size, host + (size_t)i * t->size, t->size) == 0;
        same[i] = alike && (want == NULL || isnan(want[i]));
    }
    judge(c, got, t->count, &w, "the GPU", what);
    if (want != NULL) {
        judge(c, of_host, t->count, &w, "the host", what);
    }
    free(all);
    free(got);
    free(of_host);
    free(hosts);
    free(same);
}

void twin_close(struct check *c, const struct twin *t, enum moe_dtype type, double tolerance, double size,
                const char *what)
{
    compare(c, t, type, NULL, tolerance, size, what);
}

void twin_exact(struct check *c, const struct twin *t, enum moe_dtype type, double *want, double tolerance, double size,
                const char *what)
{
    compare(c, t, type, want, tolerance, size, what);
    free(want);
}

void twin_near(struct check *c, const struct twin *t, enum moe_dtype type, const double *want, double relative,
               double absolute, const char *what)
{
    void *raw = twin_fetch(c, t);
    float *got = widened(c, raw, type, t->count);
    c->compared++;
    for (int64_t i = 0; i < t->count; i++) {
        double error = fabs((double)got[i] - want[i]) / (relative * fabs(want[i]) + absolute);
        if (!isnan(want[i]) && !(error <= 1)) {
            row_wrong(c, "%s[%lld of %lld]: %.9g, in double precision %.9g", what, (long long)i, (long long)t->count,
                      (double)got[i], want[i]);
            break;
        }
        c->worst = isnan(want[i]) ? c->worst : fmax(c->worst, error);
    }
    free(raw);
    free(got);
}

void launched(struct check *c, int rc, const char *what)
{
    if (rc != 0) {
        row_wrong(c, "%s: refused: %d, %s", what, rc, moe_error_text(rc));
    }
}

bool both_found(struct check *c, int wanted, const char *what)
{
    bool right = true;
    for (int side = 0; side < SIDES; side++) {
        int rc = moe_device_sync(c->device[side]);
        if (rc != wanted) {
            row_wrong(c, "%s: the %s found \"%s\", not \"%s\"", what, side == GPU ? "GPU" : "host", moe_error_text(rc),
                      moe_error_text(wanted));
            right = false;
        }
    }
    c->shapes++;
    return right;
}
