/*
 * event_shared.c: events that several processes have (cudaEventInterprocess). Such an event is a pair of numbers in
 * memory that all of them map: how often it was recorded, and the latest record that has been reached. Whoever waits
 * takes the first number as it is at the call, and sleeps until the second has come so far. A record, and the wait of a
 * stream, are operations of that stream.
 *
 * The numbers of a process's own events lie in one file in memory, 64 bytes each. A handle says where another process
 * finds them: /proc/PID/fd/N of the owner, as for memory (ipc.c), and is good as long as the owner lives. A place whose
 * handle was given out is never used again. An event whose last record is of a process that has died is not reached.
 */
#include "hostnccl/cuda/stream.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PLACES_MAX = 1 << 20 };

struct place {
    _Atomic uint32_t recorded;
    _Atomic uint32_t reached; /* futex word; waiters of all processes */
    char unused[56];
};

struct hostcuda_shared_event {
    atomic_int refs; /* of the event, and of operations */
    struct place *place;
    void *mapping;  /* of another process's file; NULL: the place is ours */
    uint32_t index; /* of an own place */
    bool is_given;  /* its handle was given out */
};

/* What a handle holds; the vendor's has 64 bytes. */
struct ticket {
    char magic[8];
    int64_t pid;
    int64_t file;
    uint64_t inode; /* tells the file from a later one with the same number */
    uint64_t index;
    char unused[24];
};

_Static_assert(sizeof(struct ticket) == sizeof(cudaIpcEventHandle_t), "a handle is one ticket");
_Static_assert(sizeof(struct place) == 64, "a place has a cache line");

static const char MAGIC[8] = "hostevt1";

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static struct place *places;
static int file = -1;
static uint32_t used, *free_places; /* indices to be used again */
static uint32_t free_count, free_room;

/* With the lock held. */
static bool open_places(void)
{
    if (places) {
        return true;
    }
    size_t bytes = sizeof(struct place) * PLACES_MAX;
    int made = memfd_create("hostcuda-events", MFD_CLOEXEC);
    void *mapped = made < 0 || ftruncate(made, (off_t)bytes)
                       ? MAP_FAILED
                       : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, made, 0);
    if (mapped == MAP_FAILED) {
        if (made >= 0) {
            close(made);
        }
        return false;
    }
    file = made;
    places = mapped;
    return true;
}

struct hostcuda_shared_event *hostcuda_shared_event_new(void)
{
    struct hostcuda_shared_event *event = calloc(1, sizeof(*event));
    pthread_mutex_lock(&lock);
    bool is_there = event && open_places() && (free_count || used < PLACES_MAX);
    if (is_there) {
        atomic_init(&event->refs, 1);
        event->index = free_count ? free_places[--free_count] : used++;
        event->place = &places[event->index];
        atomic_store(&event->place->recorded, 0);
        atomic_store(&event->place->reached, 0);
    }
    pthread_mutex_unlock(&lock);
    if (!is_there) {
        free(event);
        return NULL;
    }
    return event;
}

void hostcuda_shared_event_put(struct hostcuda_shared_event *event)
{
    if (!event || atomic_fetch_sub_explicit(&event->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    pthread_mutex_lock(&lock);
    if (event->mapping) {
        munmap(event->mapping, (size_t)sysconf(_SC_PAGESIZE));
    } else if (!event->is_given) {
        if (free_count == free_room) {
            uint32_t room = free_room ? 2 * free_room : 64;
            uint32_t *grown = reallocarray(free_places, room, sizeof(*grown));
            free_places = grown ? grown : free_places;
            free_room = grown ? room : free_room;
        }
        if (free_count < free_room) { /* without memory the place is lost */
            free_places[free_count++] = event->index;
        }
    }
    pthread_mutex_unlock(&lock);
    free(event);
}

/* The numbers go round: a record is behind another by less than half of all. */
static bool has_come(const struct place *place, uint32_t number)
{
    return (int32_t)(atomic_load_explicit(&place->reached, memory_order_acquire) - number) >= 0;
}

static void reach(struct place *place, uint32_t number)
{
    uint32_t now = atomic_load(&place->reached);
    while ((int32_t)(number - now) > 0 &&
           !atomic_compare_exchange_weak_explicit(&place->reached, &now, number, memory_order_acq_rel,
                                                  memory_order_relaxed)) {
    }
    (void)syscall(SYS_futex, &place->reached, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void sleep_until(struct place *place, uint32_t number)
{
    while (!has_come(place, number)) {
        uint32_t now = atomic_load(&place->reached);
        if ((int32_t)(now - number) < 0) {
            (void)syscall(SYS_futex, &place->reached, FUTEX_WAIT, now, NULL, NULL, 0);
        }
    }
}

bool hostcuda_shared_event_reached(const struct hostcuda_shared_event *event)
{
    return has_come(event->place, atomic_load(&event->place->recorded));
}

void hostcuda_shared_event_wait(struct hostcuda_shared_event *event)
{
    sleep_until(event->place, atomic_load(&event->place->recorded));
}

/* An operation's part of an event, which it keeps alive. */
struct step {
    struct hostcuda_shared_event *event;
    uint32_t number;
};

static void run_record(struct hostcuda_op *op)
{
    struct step *step = op->arg.memory;
    reach(step->event->place, step->number);
    hostcuda_shared_event_put(step->event);
    free(step);
}

static void run_wait(struct hostcuda_op *op)
{
    struct step *step = op->arg.memory;
    sleep_until(step->event->place, step->number);
    hostcuda_shared_event_put(step->event);
    free(step);
}

static struct hostcuda_op *make(struct hostcuda_shared_event *event, void (*run)(struct hostcuda_op *))
{
    struct hostcuda_op *op = calloc(1, sizeof(*op));
    struct step *step = malloc(sizeof(*step));
    if (!op || !step) {
        free(op);
        free(step);
        return NULL;
    }
    atomic_fetch_add(&event->refs, 1);
    *step = (struct step){.event = event};
    op->run = run;
    op->arg.memory = step;
    return op;
}

struct hostcuda_op *hostcuda_shared_event_record(struct hostcuda_shared_event *event)
{
    struct hostcuda_op *op = make(event, run_record);
    if (op) {
        ((struct step *)op->arg.memory)->number = atomic_fetch_add(&event->place->recorded, 1) + 1;
    }
    return op;
}

struct hostcuda_op *hostcuda_shared_event_follow(struct hostcuda_shared_event *event)
{
    struct hostcuda_op *op = make(event, run_wait);
    if (op) {
        ((struct step *)op->arg.memory)->number = atomic_load(&event->place->recorded);
    }
    return op;
}

void hostcuda_shared_event_drop(struct hostcuda_op *op)
{
    struct step *step = op->arg.memory;
    if (op->run == run_record) {
        reach(step->event->place, step->number); /* nobody else would */
    }
    hostcuda_shared_event_put(step->event);
    free(step);
    free(op);
}

bool hostcuda_shared_event_give(struct hostcuda_shared_event *event, cudaIpcEventHandle_t *handle)
{
    struct stat about;
    if (event->mapping || fstat(file, &about)) {
        return false;
    }
    struct ticket ticket = {.pid = getpid(), .file = file, .inode = about.st_ino, .index = event->index};
    memcpy(ticket.magic, MAGIC, sizeof(MAGIC));
    memcpy(handle, &ticket, sizeof(ticket));
    pthread_mutex_lock(&lock);
    event->is_given = true;
    pthread_mutex_unlock(&lock);
    return true;
}

cudaError_t hostcuda_shared_event_open(struct hostcuda_shared_event **out, const cudaIpcEventHandle_t *handle)
{
    struct ticket ticket;
    struct stat about;
    char path[64];
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    memcpy(&ticket, handle, sizeof(ticket));
    if (memcmp(ticket.magic, MAGIC, sizeof(MAGIC)) != 0 || ticket.index >= PLACES_MAX) {
        return cudaErrorInvalidResourceHandle;
    }
    if (ticket.pid == getpid()) { /* as the vendor's: a handle is for another process */
        return cudaErrorDeviceUninitialized;
    }
    struct hostcuda_shared_event *event = calloc(1, sizeof(*event));
    if (!event) {
        return cudaErrorMemoryAllocation;
    }
    snprintf(path, sizeof(path), "/proc/%lld/fd/%lld", (long long)ticket.pid, (long long)ticket.file);
    int theirs = open(path, O_RDWR | O_CLOEXEC);
    size_t at = (size_t)ticket.index * sizeof(struct place);
    void *mapped = MAP_FAILED;
    if (theirs >= 0 && !fstat(theirs, &about) && about.st_ino == ticket.inode) {
        mapped = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, theirs, (off_t)(at / page * page));
    }
    if (theirs >= 0) {
        close(theirs);
    }
    if (mapped == MAP_FAILED) {
        free(event);
        return cudaErrorMapBufferObjectFailed;
    }
    atomic_init(&event->refs, 1);
    event->mapping = mapped;
    event->place = (struct place *)(void *)((char *)mapped + at % page);
    *out = event;
    return cudaSuccess;
}
