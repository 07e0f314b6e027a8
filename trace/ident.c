/*
 * ident.c: reads job, rank and restart from the environment, and computes the keys that are the same on every member.
 *
 * Launchers differ in their variables and nest in each other (torchrun inside srun), so the variables stand in one
 * table, a row per launcher, innermost first; a row counts as a whole once its rank is valid. Mixing rows was rejected:
 * RANK of torchrun with SLURM_NTASKS of the srun around it gives a world of the wrong size.
 */
#include "trace/ident.h"
#include "trace/def.h"
#include "trace/err.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef const char *getter(const char *name);

struct launcher {
    const char *rank, *size, *local_rank;
};

static const struct launcher launchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"PMIX_RANK", NULL, NULL},
};
#define LAUNCHERS (sizeof(launchers) / sizeof(launchers[0]))

static const char *const restart_names[] = {"ROLLCALL_RESTART", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"};

/* A decimal number in 0..INT32_MAX, and nothing else. */
static bool read_number(getter *get, const char *name, int32_t *out)
{
    const char *text = name != NULL ? get(name) : NULL;
    if (text == NULL || *text == '\0') {
        return false;
    }
    int64_t value = 0;
    for (const char *p = text; *p != '\0'; p++) {
        if (*p < '0' || *p > '9') {
            return false;
        }
        value = value * 10 + (*p - '0');
        if (value > INT32_MAX) {
            return false;
        }
    }
    *out = (int32_t)value;
    return true;
}

static bool read_size(getter *get, const char *name, int32_t *out)
{
    int32_t size;
    if (!read_number(get, name, &size) || size == 0) {
        return false;
    }
    *out = size;
    return true;
}

static void read_place(getter *get, struct roll_ident *out)
{
    for (size_t i = 0; i < LAUNCHERS; i++) {
        if (read_number(get, launchers[i].rank, &out->rank)) {
            read_size(get, launchers[i].size, &out->size);
            read_number(get, launchers[i].local_rank, &out->local_rank);
            if (out->size >= 0 && out->rank >= out->size) {
                out->size = -1;
            }
            return;
        }
    }
    for (size_t i = 0; i < LAUNCHERS && !read_size(get, launchers[i].size, &out->size); i++) {
    }
    for (size_t i = 0; i < LAUNCHERS && !read_number(get, launchers[i].local_rank, &out->local_rank); i++) {
    }
}

/* Appends text to a job name; what is not a letter, a digit or one of "._-" becomes '_', also a leading '.'. */
static void append_clean(char job[ROLL_JOB_BYTES], const char *text)
{
    size_t used = strlen(job);
    for (; *text != '\0' && used + 1 < ROLL_JOB_BYTES; text++) {
        char c = *text;
        bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                    c == '-' || (c == '.' && used > 0);
        job[used++] = good ? c : '_';
    }
    job[used] = '\0';
}

static const char *non_empty(getter *get, const char *name)
{
    const char *text = get(name);
    return text != NULL && *text != '\0' ? text : NULL;
}

static void read_job(getter *get, struct roll_ident *out)
{
    const char *text = non_empty(get, "ROLLCALL_JOB");
    if (text != NULL) {
        append_clean(out->job, text);
        return;
    }
    text = non_empty(get, "SLURM_JOB_ID");
    if (text != NULL) {
        append_clean(out->job, text);
        const char *step = non_empty(get, "SLURM_STEP_ID");
        if (step != NULL) {
            append_clean(out->job, ".");
            append_clean(out->job, step);
        }
        return;
    }
    text = non_empty(get, "TORCHELASTIC_RUN_ID");
    append_clean(out->job, text != NULL ? text : "local");
}

void roll_ident_read(const char *(*get)(const char *name), struct roll_ident *out)
{
    *out = (struct roll_ident){.rank = -1, .size = -1, .local_rank = -1};
    read_job(get, out);
    for (size_t i = 0; i < sizeof(restart_names) / sizeof(restart_names[0]); i++) {
        int32_t restart;
        if (read_number(get, restart_names[i], &restart)) {
            out->restart = (uint32_t)restart;
            break;
        }
    }
    read_place(get, out);
}

static uint64_t rotate(uint64_t x, unsigned by)
{
    return x << by | x >> (64 - by);
}

/* Multiplications by odd constants (the fractional parts of the golden ratio and of the square root of two) spread the
 * bits upwards, the shifts and rotations bring them down again. */
#define HASH_A 0x9e3779b97f4a7c15u
#define HASH_B 0x6a09e667f3bcc909u

uint64_t roll_hash64(uint64_t seed, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    uint64_t hash = seed ^ (bytes + 1) * HASH_A;
    while (bytes > 0) {
        uint64_t word = 0;
        size_t n = bytes < 8 ? bytes : 8;
        memcpy(&word, p, n);
        hash = rotate(hash ^ word * HASH_B, 29) * HASH_A;
        p += n;
        bytes -= n;
    }
    hash = (hash ^ hash >> 32) * HASH_B;
    hash = (hash ^ hash >> 29) * HASH_A;
    return hash ^ hash >> 32;
}

uint64_t roll_key_unique_id(const void *id, size_t bytes)
{
    uint64_t key = roll_hash64(0, id, bytes);
    return key != 0 ? key : 1;
}

uint64_t roll_key_child(uint64_t parent, uint32_t child, int32_t color)
{
    struct {
        uint64_t parent;
        uint32_t child;
        int32_t color;
    } bytes = {parent, child, color};
    uint64_t key = roll_hash64(1, &bytes, sizeof(bytes));
    return key != 0 ? key : 1;
}

static int __attribute__((format(printf, 3, 4))) put(char *out, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(out, size, format, args);
    va_end(args);
    return n >= 0 && (size_t)n < size ? ROLL_OK : ROLL_E_SIZE;
}

int roll_ring_path(char *out, size_t size, const char *dir, const struct roll_ident *ident, uint32_t pid)
{
    if (ident->rank < 0) {
        return put(out, size, "%s/%s.%u.p.%u.ring", dir, ident->job, ident->restart, pid);
    }
    return put(out, size, "%s/%s.%u.%d.%u.ring", dir, ident->job, ident->restart, ident->rank, pid);
}

int roll_control_path(char *out, size_t size, const char *dir, const char *job, uint32_t restart)
{
    return put(out, size, "%s/%s.%u.ctl", dir, job, restart);
}

int roll_default_dir(char *out, size_t size)
{
    const char *base = access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
    return put(out, size, "%s/rollcall-%u", base, (unsigned)geteuid());
}
