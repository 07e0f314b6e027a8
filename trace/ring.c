/*
 * ring.c: makes, opens, checks and reads ring files. The writer's half is inline in ring_write.h.
 *
 * A reader never trusts the file: offsets and sizes are checked once against the size of the mapping, and every slot is
 * copied between two looks at its seal, so what comes out is one whole record or nothing. A reader's position in the
 * file was rejected: it would make the reader a writer, and a second reader (a console beside the agent) impossible.
 */
#include "trace/ring.h"
#include "trace/err.h"
#include "trace/file.h"
#include "trace/frame.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define PAGE_BYTES   4096u
#define HEADER_LIMIT (1u << 20)
#define STATIC_BYTES offsetof(struct roll_ring_header, static_crc)

/* making */

const char *roll_loss_name(unsigned loss)
{
    static const char *const names[ROLL_LOSS_LIMIT] = {
        [ROLL_LOSS_OVERRUN] = "overrun",     [ROLL_LOSS_LAPPED] = "lapped",
        [ROLL_LOSS_DEFS_FULL] = "defs_full", [ROLL_LOSS_COMM_UNKNOWN] = "comm_unknown",
        [ROLL_LOSS_CALLSITE] = "callsite",   [ROLL_LOSS_STREAM] = "stream",
        [ROLL_LOSS_SIGNAL] = "signal",       [ROLL_LOSS_WIRE] = "wire",
        [ROLL_LOSS_GRAPH] = "graph",         [ROLL_LOSS_MOE_KIND] = "moe_kind",
        [ROLL_LOSS_VERDICT] = "verdict",     [ROLL_LOSS_CORRUPT] = "corrupt",
        [ROLL_LOSS_NO_ROOM] = "no_room",
    };
    return loss < ROLL_LOSS_LIMIT ? names[loss] : NULL;
}

bool roll_loss_is_unrecorded(unsigned loss)
{
    return loss < ROLL_LOSS_LIMIT && loss != ROLL_LOSS_OVERRUN && loss != ROLL_LOSS_WIRE && loss != ROLL_LOSS_CORRUPT &&
           loss != ROLL_LOSS_VERDICT;
}

static uint64_t now_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static size_t read_small(const char *path, char *out, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    ssize_t n = read(fd, out, size - 1);
    close(fd);
    out[n > 0 ? n : 0] = '\0';
    return n > 0 ? (size_t)n : 0;
}

/* Field 22 of /proc/self/stat; field 2 is in parentheses and may hold anything. 0 when it cannot be read. */
static uint64_t start_ticks(void)
{
    char text[1024];
    read_small("/proc/self/stat", text, sizeof(text));
    const char *p = strrchr(text, ')');
    for (int field = 2; p != NULL && field < 22; field++) {
        p = strchr(p + 1, ' ');
    }
    uint64_t ticks = 0;
    for (p = p != NULL ? p + 1 : ""; *p >= '0' && *p <= '9'; p++) {
        ticks = ticks * 10 + (uint64_t)(*p - '0');
    }
    return ticks;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void read_boot_id(uint8_t out[16])
{
    char text[64];
    size_t n = read_small("/proc/sys/kernel/random/boot_id", text, sizeof(text));
    size_t digits = 0;
    for (size_t i = 0; i < n && digits < 32; i++) {
        int digit = hex_digit(text[i]);
        if (digit >= 0) {
            out[digits / 2] = (uint8_t)(out[digits / 2] << 4 | digit);
            digits++;
        }
    }
}

static uint64_t random_epoch(void)
{
    uint64_t epoch = 0;
    if (getrandom(&epoch, sizeof(epoch), GRND_NONBLOCK) != (ssize_t)sizeof(epoch) || epoch == 0) {
        epoch = (now_ns(CLOCK_REALTIME) << 20 ^ now_ns(CLOCK_MONOTONIC)) + (uint64_t)getpid();
    }
    return epoch != 0 ? epoch : 1;
}

static void copy_text(char *out, size_t size, const char *text)
{
    size_t n = strnlen(text, size - 1);
    memcpy(out, text, n);
    memset(out + n, 0, size - n);
}

static void fill_header(struct roll_ring_header *h, const struct roll_ring_params *params, uint32_t capacity,
                        uint64_t defs_bytes)
{
    memcpy(h->magic, ROLL_RING_MAGIC, sizeof(h->magic));
    h->version = ROLL_RING_VERSION;
    h->oldest = ROLL_RING_NEEDS;
    h->header_bytes = ROLL_RING_HEADER_BYTES;
    h->record_bytes = ROLL_RECORD_BYTES;
    h->capacity = capacity;
    h->defs_offset = ROLL_RING_HEADER_BYTES;
    h->defs_bytes = defs_bytes;
    h->records_offset = h->defs_offset + defs_bytes;
    h->file_bytes = h->records_offset + (uint64_t)capacity * ROLL_RECORD_BYTES;
    h->pid = (uint32_t)getpid();
    h->world_rank = params->world_rank;
    h->world_size = params->world_size;
    h->local_rank = params->local_rank;
    h->restart = params->restart;
    h->start_ticks = start_ticks();
    h->epoch = random_epoch();
    read_boot_id(h->boot_id);
    char host[ROLL_NAME_BYTES] = "";
    if (params->host == NULL && gethostname(host, sizeof(host) - 1) != 0) {
        host[0] = '\0';
    }
    copy_text(h->job, sizeof(h->job), params->job != NULL ? params->job : "local");
    copy_text(h->host, sizeof(h->host), params->host != NULL ? params->host : host);
    copy_text(h->exe, sizeof(h->exe), params->exe != NULL ? params->exe : program_invocation_short_name);
    h->static_crc = roll_crc32c(0, h, STATIC_BYTES);
    atomic_store_explicit(&h->exit_status, ROLL_EXIT_UNKNOWN, memory_order_relaxed);
    atomic_store_explicit(&h->clock_mono_ns, now_ns(CLOCK_MONOTONIC), memory_order_relaxed);
    atomic_store_explicit(&h->clock_real_ns, now_ns(CLOCK_REALTIME), memory_order_relaxed);
    atomic_store_explicit(&h->state, ROLL_RING_ATTACHED, memory_order_release);
}

/* `h` is a checked copy of the header, and not the mapped header, which its writer could change at any moment. */
static void point_into(struct roll_ring *ring, void *base, size_t bytes, const struct roll_ring_header *h)
{
    ring->header = base;
    ring->defs = (uint8_t *)base + h->defs_offset;
    ring->records = (struct roll_record *)(void *)((uint8_t *)base + h->records_offset);
    ring->mask = (uint64_t)h->capacity - 1;
    ring->defs_bytes = h->defs_bytes;
    ring->bytes = bytes;
}

/* The geometry that params ask for; ARG when it is out of range. */
static int geometry(const struct roll_ring_params *params, uint32_t *capacity, uint64_t *defs_bytes)
{
    uint64_t wanted = params->capacity != 0 ? params->capacity : ROLL_RING_DEFAULT_RECORDS;
    uint64_t defs = params->defs_bytes != 0 ? params->defs_bytes : ROLL_RING_DEFAULT_DEFS_BYTES;
    if (wanted > ROLL_RING_MAX_RECORDS || defs > ROLL_RING_MAX_DEFS_BYTES || params->world_rank < -1 ||
        params->world_size < -1 || params->local_rank < -1) {
        return ROLL_E_ARG;
    }
    *capacity = ROLL_RING_MIN_RECORDS;
    while (*capacity < wanted) {
        *capacity *= 2;
    }
    *defs_bytes = (defs + PAGE_BYTES - 1) & ~(uint64_t)(PAGE_BYTES - 1);
    return ROLL_OK;
}

int roll_ring_create(const char *path, const struct roll_ring_params *params, struct roll_ring *ring)
{
    *ring = (struct roll_ring){0};
    uint32_t capacity;
    uint64_t defs_bytes;
    int err = geometry(params, &capacity, &defs_bytes);
    if (err < 0) {
        return err;
    }
    size_t bytes = ROLL_RING_HEADER_BYTES + (size_t)defs_bytes + (size_t)capacity * ROLL_RECORD_BYTES;
    struct roll_new_file file = {.fd = -1};
    err = path != NULL ? roll_file_make(path, bytes, &file) : ROLL_OK;
    if (err < 0) {
        return err;
    }
    int sharing = path != NULL ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    /* The pages are populated now, so that no call of the job pays for a page fault. */
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, sharing | MAP_POPULATE, file.fd, 0);
    if (base == MAP_FAILED) {
        err = errno == ENOMEM ? ROLL_E_LIMIT : roll_err_from_errno(errno);
        goto out;
    }
    fill_header(base, params, capacity, defs_bytes);
    err = path != NULL ? roll_file_publish(&file, path, true) : ROLL_OK;
    if (err < 0) {
        munmap(base, bytes);
        goto out;
    }
    point_into(ring, base, bytes, base);
    ring->writable = true;
    ring->anonymous = path == NULL;
out:
    roll_file_finish(&file);
    return err;
}

/* checking */

static bool terminated(const char *text, size_t size)
{
    return memchr(text, '\0', size) != NULL;
}

static int check_geometry(const struct roll_ring_header *h)
{
    bool power = h->capacity != 0 && (h->capacity & (h->capacity - 1)) == 0;
    if (h->header_bytes < ROLL_RING_HEADER_BYTES || h->header_bytes > HEADER_LIMIT || h->header_bytes % 64 != 0 ||
        h->record_bytes != ROLL_RECORD_BYTES || !power || h->capacity < ROLL_RING_MIN_RECORDS ||
        h->capacity > ROLL_RING_MAX_RECORDS || h->defs_bytes > ROLL_RING_MAX_DEFS_BYTES || h->defs_bytes % 64 != 0) {
        return ROLL_E_SIZE;
    }
    if (h->defs_offset != h->header_bytes || h->records_offset != h->defs_offset + h->defs_bytes ||
        h->file_bytes != h->records_offset + (uint64_t)h->capacity * ROLL_RECORD_BYTES) {
        return ROLL_E_SIZE;
    }
    return ROLL_OK;
}

static int check_meaning(const struct roll_ring_header *h)
{
    if (h->pid == 0 || h->epoch == 0 || h->world_rank < -1 || h->world_size < -1 || h->local_rank < -1) {
        return ROLL_E_CORRUPT;
    }
    if (!terminated(h->job, sizeof(h->job)) || !terminated(h->host, sizeof(h->host)) ||
        !terminated(h->exe, sizeof(h->exe))) {
        return ROLL_E_CORRUPT;
    }
    return ROLL_OK;
}

union static_part {
    uint8_t bytes[STATIC_BYTES + sizeof(uint32_t)];
    struct roll_ring_header header; /* only its static part is filled */
};

/* Copies the static part and checks the copy, so that what was checked is what is used. */
static int copy_header(const void *data, size_t bytes, union static_part *copy)
{
    const uint8_t *p = data;
    if (bytes >= 8 && memcmp(p, ROLL_RING_MAGIC, 8) != 0) {
        return ROLL_E_MAGIC;
    }
    if (bytes < ROLL_RING_HEADER_BYTES) {
        return ROLL_E_SHORT;
    }
    memcpy(copy->bytes, p, sizeof(copy->bytes));
    const struct roll_ring_header *h = &copy->header;
    if (h->version < ROLL_RING_OLDEST || h->oldest > ROLL_RING_VERSION) {
        return ROLL_E_VERSION;
    }
    if (roll_crc32c(0, h, STATIC_BYTES) != h->static_crc) {
        return ROLL_E_CHECKSUM;
    }
    int err = check_geometry(h);
    return err < 0 ? err : check_meaning(h);
}

static int copy_and_check(const void *data, size_t bytes, union static_part *copy)
{
    int err = copy_header(data, bytes, copy);
    if (err < 0) {
        return err;
    }
    return bytes < copy->header.file_bytes ? ROLL_E_SHORT : ROLL_OK;
}

int roll_ring_check_header(const void *data, size_t bytes)
{
    union static_part copy;
    return copy_header(data, bytes, &copy);
}

int roll_ring_check(const void *data, size_t bytes)
{
    union static_part copy;
    return copy_and_check(data, bytes, &copy);
}

/* opening */

int roll_ring_open(const char *path, bool writable, struct roll_ring *ring)
{
    *ring = (struct roll_ring){0};
    uint64_t bytes = 0;
    int fd = roll_file_open(path, writable, &bytes);
    if (fd < 0) {
        return fd;
    }
    int err = ROLL_OK;
    const uint64_t most = HEADER_LIMIT + ROLL_RING_MAX_DEFS_BYTES + (uint64_t)ROLL_RING_MAX_RECORDS * ROLL_RECORD_BYTES;
    if (bytes == 0 || bytes > most) {
        err = bytes == 0 ? ROLL_E_SHORT : ROLL_E_SIZE;
        goto out;
    }
    void *base = mmap(NULL, (size_t)bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        err = roll_err_from_errno(errno);
        goto out;
    }
    union static_part copy;
    err = copy_and_check(base, (size_t)bytes, &copy);
    if (err < 0) {
        munmap(base, (size_t)bytes);
        goto out;
    }
    point_into(ring, base, (size_t)bytes, &copy.header);
    ring->writable = writable;
out:
    close(fd);
    return err;
}

int roll_ring_view(const void *data, size_t bytes, struct roll_ring *ring)
{
    *ring = (struct roll_ring){0};
    if (((uintptr_t)data & 7) != 0) {
        return ROLL_E_ARG;
    }
    union static_part copy;
    int err = copy_and_check(data, bytes, &copy);
    if (err < 0) {
        return err;
    }
    /* The cast drops const, but nothing writes: `writable` is false. `bytes` 0 tells roll_ring_close that nothing is
     * mapped. */
    point_into(ring, (void *)(uintptr_t)data, 0, &copy.header);
    return ROLL_OK;
}

void roll_ring_close(struct roll_ring *ring)
{
    if (ring->header != NULL && ring->bytes > 0) {
        munmap(ring->header, ring->bytes);
    }
    *ring = (struct roll_ring){0};
}

/* reading */

enum look { LOOK_COPIED, LOOK_NEWER, LOOK_NOT_YET };

/*
 * One try to copy the record of `ticket` out of its slot. The acquire load pairs with the release of publish and
 * return; the fence before the second look pairs with the release fence of reserve: a byte of a later record in the
 * copy implies that the second look sees the later seal. Plain stores of the writer race with these loads by design,
 * hence no thread sanitizer here: the second look throws such a copy away.
 */
__attribute__((no_sanitize("thread"))) static enum look look(const struct roll_record *slot, uint64_t ticket,
                                                             struct roll_record *out)
{
    const uint64_t mine = roll_seal(ticket, ROLL_STATE_EMPTY);
    for (;;) {
        uint64_t seal = __atomic_load_n(&slot->seal, __ATOMIC_ACQUIRE);
        if ((seal & ~(uint64_t)0xff) != mine) {
            return seal > mine ? LOOK_NEWER : LOOK_NOT_YET;
        }
        if (roll_seal_state(seal) == ROLL_STATE_EMPTY) {
            return LOOK_NOT_YET;
        }
        uint64_t word[ROLL_RECORD_BYTES / 8];
        const uint64_t *from = (const uint64_t *)(const void *)slot;
        for (size_t i = 1; i < ROLL_RECORD_BYTES / 8; i++) {
            word[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
        }
        atomic_thread_fence(memory_order_acquire);
        uint64_t again = __atomic_load_n(&slot->seal, __ATOMIC_RELAXED);
        if (again == seal) {
            word[0] = seal;
            memcpy(out, word, sizeof(*out));
            return LOOK_COPIED;
        }
        /* The call returned meanwhile (at most twice in a record's life), or the slot was taken: look again. */
    }
}

size_t roll_ring_read(const struct roll_ring *ring, uint64_t from, struct roll_record *out, size_t max, uint64_t *next,
                      uint64_t *lost)
{
    uint64_t capacity = ring->mask + 1;
    uint64_t head = roll_ring_head(ring);
    uint64_t ticket = from;
    size_t n = 0;
    while (n < max && ticket < head) {
        if (head - ticket > capacity) {
            *lost += head - capacity - ticket;
            ticket = head - capacity;
        }
        enum look seen = look(&ring->records[ticket & ring->mask], ticket, &out[n]);
        if (seen == LOOK_NOT_YET) {
            uint64_t now = roll_ring_head(ring);
            if (now - ticket <= capacity || now < head) {
                break;
            }
            head = now; /* a whole lap was written meanwhile: the jump above counts what it cost */
            continue;
        }
        n += seen == LOOK_COPIED;
        *lost += seen == LOOK_NEWER;
        ticket++;
    }
    *next = ticket;
    return n;
}

int roll_ring_get(const struct roll_ring *ring, uint64_t ticket, struct roll_record *out)
{
    if (ticket >= roll_ring_head(ring)) {
        return ROLL_E_NOTFOUND;
    }
    return look(&ring->records[ticket & ring->mask], ticket, out) == LOOK_COPIED ? ROLL_OK : ROLL_E_NOTFOUND;
}
