/*
 * window.c: registered memory of every rank, which the others reach.
 *
 * Registering is a collective call: it waits for all ranks, as in NCCL. With NCCL_WIN_COLL_SYMMETRIC the memory really
 * becomes shared, in its place: device memory has files under it, or gets one (hostcuda's ipc.c and virtual.c), and
 * what else lies at these addresses, other mappings of the same memory and other processes that have it by a handle,
 * keeps seeing what is written. For memory of the host a file is made, which takes what the pages hold and is mapped in
 * their place. Each rank writes down which pieces of which of its files its window is, in the directory of the
 * segments; the others map these pieces one behind the other, by /proc/PID/fd, and the lists lose their names: a job
 * that is killed later leaves nothing, and what a job leaves that is killed in between is removed like a segment
 * (segment.c), by its lock. Pages that nobody has touched stay untouched, because a large window may only be reserved.
 * Rejected: carrying a put in a buffer until its target waits for the signal, because a put waits for nobody and the
 * buffer would need any size. A new file over device memory: whoever had the memory before would be cut off in silence.
 */
#include "hostnccl/nccl/window.h"
#include "hostnccl/cuda/private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = NCCL_WIN_REQUIRED_ALIGNMENT, EXCHANGE_WINDOW = 2, EXCHANGE_MAPPED = 3, LOOKED_AT = 512 };

/* Of one rank's memory: where it lies in this process, and its length. */
struct part {
    char *base;
    size_t size;
};

/* What a rank tells the others of its part. */
struct told {
    int64_t pid, file;
    uint64_t inode; /* tells the file from a later one with the same number */
    uint64_t at, bytes;
};

/* Host memory that lies in a file of ours, as long as a window of it lives. */
struct host_part {
    struct host_part *next;
    uintptr_t start, end;
    int file;
    int windows;
};

static pthread_mutex_t host_lock = PTHREAD_MUTEX_INITIALIZER;
static struct host_part *host_parts; /* guarded by host_lock, with what it leads to */

struct hn_window {
    struct hn_window *next;
    ncclComm_t comm; /* no reference: a window does not outlive its communicator */
    void *buff;
    size_t size;
    struct part *parts; /* one per rank; NULL: nothing is shared */
    int nparts;
    struct host_part *host; /* one of its windows is this one; NULL: device memory, or nothing is shared */
};

static size_t round_page(size_t n)
{
    return (n + PAGE - 1) / PAGE * PAGE;
}

/* Ends a window of host memory; the memory stays in the file, whose descriptor is closed with the last window. */
static void host_part_put(struct host_part *h)
{
    if (!h) {
        return;
    }
    pthread_mutex_lock(&host_lock);
    if (--h->windows == 0) {
        struct host_part **at = &host_parts;
        while (*at != h) {
            at = &(*at)->next;
        }
        *at = h->next;
        close(h->file);
        free(h);
    }
    pthread_mutex_unlock(&host_lock);
}

static void window_free(struct hn_window *w)
{
    host_part_put(w->host);
    for (int r = 0; w->parts && r < w->nparts; r++) {
        if (r != w->comm->rank && w->parts[r].base) {
            munmap(w->parts[r].base, round_page(w->parts[r].size));
        }
    }
    free(w->parts);
    free(w);
}

void hn_windows_free(ncclComm_t comm)
{
    for (struct hn_window *w = comm->windows, *next; w; w = next) {
        next = w->next;
        window_free(w);
    }
    comm->windows = NULL;
}

static void add(ncclComm_t comm, struct hn_window *w)
{
    pthread_mutex_lock(&comm->lock);
    w->next = comm->windows;
    comm->windows = w;
    pthread_mutex_unlock(&comm->lock);
}

static struct hn_window *take_off(ncclComm_t comm, const void *handle)
{
    struct hn_window *found = NULL;

    pthread_mutex_lock(&comm->lock);
    for (struct hn_window **at = &comm->windows; *at; at = &(*at)->next) {
        if (*at == handle) {
            found = *at;
            *at = found->next;
            break;
        }
    }
    pthread_mutex_unlock(&comm->lock);
    return found;
}

bool hn_window_is_of(ncclComm_t comm, ncclWindow_t window)
{
    bool found = false;

    pthread_mutex_lock(&comm->lock);
    for (struct hn_window *w = comm->windows; w && !found; w = w->next) {
        found = w == (void *)window;
    }
    pthread_mutex_unlock(&comm->lock);
    return found;
}

bool hn_window_holds(ncclComm_t comm, const void *at, size_t bytes)
{
    bool found = false;

    pthread_mutex_lock(&comm->lock);
    for (struct hn_window *w = comm->windows; w && !found; w = w->next) {
        uintptr_t from = (uintptr_t)w->buff, here = (uintptr_t)at;
        found = w->parts && here >= from && here - from <= w->size && bytes <= w->size - (here - from);
    }
    pthread_mutex_unlock(&comm->lock);
    return found;
}

ncclResult_t hn_window_of_peer(ncclWindow_t window, int peer, char **base, size_t *size)
{
    const struct hn_window *w = (const void *)window;

    if (!w->parts) {
        return hn_fail(ncclInvalidUsage,
                       "the window was registered without NCCL_WIN_COLL_SYMMETRIC, so no peer has it");
    }
    if (peer < 0 || peer >= w->nparts) {
        return hn_fail(ncclInvalidArgument, "rank %d of a window of %d ranks", peer, w->nparts);
    }
    *base = w->parts[peer].base;
    *size = w->parts[peer].size;
    return ncclSuccess;
}

/* The list of a rank's part of the window that is registered in host exchange `index`. */
static int part_path(char *buf, size_t size, ncclComm_t comm, uint64_t index, int rank)
{
    if (hn_segment_dir(buf, size)) {
        return -1;
    }
    size_t used = strlen(buf);
    int n = snprintf(buf + used, size - used, "/hn-%016" PRIx64 "-%" PRIu64 "-%d", comm->hash, index, rank);
    if (n < 0 || (size_t)n >= size - used) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return 0;
}

/* Writes to the file what the pages hold, apart from pages that nobody has touched. 0, or -1 with errno. */
static int copy_touched(int fd, const char *from, size_t size)
{
    const uint64_t has_content = 3ull << 62; /* in memory, or swapped out */
    uint64_t entry[LOOKED_AT];
    int pages = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    int rc = 0;

    for (size_t first = 0; first < size / PAGE && !rc; first += LOOKED_AT) {
        size_t n = size / PAGE - first < LOOKED_AT ? size / PAGE - first : LOOKED_AT;
        off_t place = (off_t)(((uintptr_t)from / PAGE + first) * sizeof(*entry));
        bool is_known = pages >= 0 && pread(pages, entry, n * sizeof(*entry), place) == (ssize_t)(n * sizeof(*entry));
        for (size_t i = 0; i < n && !rc; i++) {
            size_t at = (first + i) * PAGE;
            if (!is_known || entry[i] & has_content) {
                rc = pwrite(fd, from + at, PAGE, (off_t)at) == PAGE ? 0 : -1;
            }
        }
    }
    if (pages >= 0) {
        close(pages);
    }
    return rc;
}

/* Makes the list of this rank's part, locked before it has a name. Returns its descriptor, or -1 with errno. */
static int make_list(ncclComm_t comm, uint64_t index, const struct told *told, size_t count)
{
    char dir[PATH_MAX], path[PATH_MAX], self[64];
    bool is_named = !hn_segment_dir(dir, sizeof(dir)) && !part_path(path, sizeof(path), comm, index, comm->rank);
    int fd = is_named ? open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : -1;
    ssize_t bytes = (ssize_t)(count * sizeof(*told));

    if (fd < 0) {
        return -1;
    }
    snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    errno = ENOSPC; /* of a write that is cut short */
    if (flock(fd, LOCK_SH) || write(fd, told, (size_t)bytes) != bytes ||
        linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW)) {
        int err = errno;
        close(fd);
        errno = err;
        return -1;
    }
    return fd;
}

/* Puts a mapping of a new file in the place of pages of the host. Returns its descriptor; -1 with errno: the pages are
 * as they were. */
static int move_to_file(char *buff, size_t size)
{
    int fd = memfd_create("hostnccl", MFD_CLOEXEC);
    void *mapped = fd < 0 || ftruncate(fd, (off_t)size) || copy_touched(fd, buff, size)
                       ? MAP_FAILED
                       : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);

    if (mapped != MAP_FAILED && mremap(mapped, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, buff) != MAP_FAILED) {
        return fd;
    }
    int err = errno;
    if (mapped != MAP_FAILED) {
        munmap(mapped, size);
    }
    if (fd >= 0) {
        close(fd);
    }
    errno = err;
    return -1;
}

/* With host_lock held. The part that holds the pages, which is made where none of them is in one; NULL with errno,
 * EBUSY where some of them are. */
static struct host_part *host_part_of(char *buff, size_t size)
{
    uintptr_t start = (uintptr_t)buff, end = start + size;
    struct host_part *h = host_parts;

    while (h && (h->end <= start || end <= h->start)) {
        h = h->next;
    }
    if (h) {
        errno = EBUSY;
        return start >= h->start && end <= h->end ? h : NULL;
    }
    h = calloc(1, sizeof(*h));
    if (!h) {
        return NULL;
    }
    *h = (struct host_part){.next = host_parts, .start = start, .end = end, .file = move_to_file(buff, size)};
    if (h->file < 0) {
        int err = errno;
        free(h);
        errno = err;
        return NULL;
    }
    host_parts = h;
    return h;
}

/* The one piece of a window of host memory. */
static ncclResult_t share_host(struct hn_window *w, struct hostcuda_piece *piece)
{
    int err = 0;

    pthread_mutex_lock(&host_lock);
    w->host = host_part_of(w->buff, round_page(w->size));
    if (w->host) {
        w->host->windows++;
        *piece = (struct hostcuda_piece){
            .file = w->host->file, .at = (off_t)((uintptr_t)w->buff - w->host->start), .bytes = w->size};
    } else {
        err = errno;
    }
    pthread_mutex_unlock(&host_lock);
    if (err == EBUSY) {
        return hn_fail(ncclInvalidUsage,
                       "the window's %zu bytes at %p overlap a window of host memory that ends "
                       "elsewhere",
                       w->size, w->buff);
    }
    return err ? hn_fail(ncclSystemError, "cannot share the window's %zu bytes: %s", w->size, strerror(err))
               : ncclSuccess;
}

/* Shares the window's memory and writes the list of its pieces, of which *fd holds the lock. */
static ncclResult_t share(struct hn_window *w, uint64_t index, int *fd)
{
    struct hostcuda_piece *pieces = NULL, host;
    struct told *told;
    struct stat about;
    size_t count = 0;
    cudaError_t err = hn_cuda()->pieces_of(w->buff, w->size, &pieces, &count);
    ncclResult_t rc = ncclSuccess;

    if (err == cudaErrorNotSupported) {
        return hn_fail(ncclInvalidUsage, "the window's memory at %p is another process's (cudaIpcOpenMemHandle)",
                       w->buff);
    }
    if (err != cudaSuccess) {
        return hn_fail(err == cudaErrorInvalidValue ? ncclInvalidArgument : ncclSystemError,
                       "cannot share the window's %zu bytes at %p, which must lie in one allocation: %s", w->size,
                       w->buff, hn_cuda()->error_text(err));
    }
    if (!count) {
        rc = share_host(w, &host);
        count = 1;
    }
    told = calloc(count, sizeof(*told));
    for (size_t i = 0; rc == ncclSuccess && told && i < count; i++) {
        const struct hostcuda_piece *piece = pieces ? &pieces[i] : &host;
        if (fstat(piece->file, &about)) {
            rc = hn_fail(ncclSystemError, "cannot share the window: %s", strerror(errno));
        }
        told[i] = (struct told){.pid = getpid(),
                                .file = piece->file,
                                .inode = about.st_ino,
                                .at = (uint64_t)piece->at,
                                .bytes = round_page(piece->bytes)};
    }
    if (rc == ncclSuccess && (!told || (*fd = make_list(w->comm, index, told, count)) < 0)) {
        rc = hn_fail(ncclSystemError, "cannot share the window's %zu bytes: %s", w->size, strerror(errno));
    }
    free(told);
    free(pieces);
    return rc;
}

/* Maps one piece of another rank's memory at an address. False with errno. */
static bool map_piece(char *at, const struct told *piece)
{
    char path[64];
    struct stat about;

    snprintf(path, sizeof(path), "/proc/%lld/fd/%lld", (long long)piece->pid, (long long)piece->file);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    errno = ESTALE;
    bool is_mapped = !fstat(fd, &about) && about.st_ino == piece->inode &&
                     mmap(at, (size_t)piece->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd,
                          (off_t)piece->at) != MAP_FAILED;
    int err = errno;
    close(fd);
    errno = err;
    return is_mapped;
}

/* Maps the pieces of another rank's part one behind the other. NULL with errno. */
static void *map_peer(ncclComm_t comm, uint64_t index, int rank, size_t size)
{
    char path[PATH_MAX];
    struct told piece;
    size_t done = 0;
    int list = part_path(path, sizeof(path), comm, index, rank) ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    char *base =
        list < 0 ? MAP_FAILED : mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    bool is_good = base != MAP_FAILED;

    while (is_good && done < size) {
        errno = EPROTO;
        is_good = read(list, &piece, sizeof(piece)) == (ssize_t)sizeof(piece) && piece.bytes &&
                  piece.bytes <= size - done && piece.bytes % PAGE == 0 && piece.at % PAGE == 0 &&
                  map_piece(base + done, &piece);
        done += is_good ? (size_t)piece.bytes : 0;
    }
    int err = errno;
    if (!is_good && base != MAP_FAILED) {
        munmap(base, size);
    }
    if (list >= 0) {
        close(list);
    }
    errno = err;
    return is_good ? base : NULL;
}

struct window_args {
    void *buff;
    size_t size;
    bool is_shared;
    ncclWindow_t *out;
};

/* All ranks have shared their parts: maps those of the others. */
static ncclResult_t map_all(struct hn_window *w, uint64_t index, uint64_t (*all)[HN_CTL_WORDS])
{
    ncclComm_t comm = w->comm;

    w->parts = calloc((size_t)comm->nranks, sizeof(*w->parts));
    if (!w->parts) {
        return hn_fail(ncclSystemError, "out of memory");
    }
    w->nparts = comm->nranks;
    for (int r = 0; r < comm->nranks; r++) {
        w->parts[r].size = (size_t)all[r][1];
        w->parts[r].base = r == comm->rank ? w->buff : map_peer(comm, index, r, round_page(w->parts[r].size));
        if (!w->parts[r].base) {
            return hn_fail(ncclSystemError, "cannot map the window of rank %d: %s", r, strerror(errno));
        }
    }
    return ncclSuccess;
}

/*
 * Exchanges sizes, then that all have mapped what they need. Every rank comes to both exchanges, whatever failed on it,
 * and the call fails on all ranks when it failed on one: the last word of an exchange says so.
 */
static ncclResult_t exchange(const struct window_args *a, struct hn_window *w)
{
    ncclComm_t comm = w->comm;
    uint64_t index = comm->ctl_count;
    uint64_t mine[HN_CTL_WORDS] = {EXCHANGE_WINDOW, a->size, a->is_shared};
    uint64_t(*all)[HN_CTL_WORDS] = calloc((size_t)comm->nranks, sizeof(*all));
    ncclResult_t own = ncclSuccess;
    char path[PATH_MAX];
    bool failed = false;
    int fd = -1;

    if (!all) {
        return hn_fail(ncclSystemError, "out of memory");
    }
    if (a->is_shared) {
        own = share(w, index, &fd);
    }
    mine[3] = own != ncclSuccess;
    ncclResult_t rc = hn_exchange(comm, mine, all);
    for (int r = 0; rc == ncclSuccess && r < comm->nranks; r++) {
        failed = failed || all[r][3];
    }
    if (rc == ncclSuccess && a->is_shared && !failed) {
        own = map_all(w, index, all);
    }
    if (rc == ncclSuccess && a->is_shared) {
        mine[0] = EXCHANGE_MAPPED;
        mine[3] = own != ncclSuccess;
        rc = hn_exchange(comm, mine, all);
        for (int r = 0; rc == ncclSuccess && r < comm->nranks; r++) {
            failed = failed || all[r][3];
        }
    }
    if (a->is_shared && !part_path(path, sizeof(path), comm, index, comm->rank)) {
        (void)unlink(path);
    }
    if (fd >= 0) {
        close(fd);
    }
    free(all);
    if (rc == ncclSuccess && failed) {
        rc = own != ncclSuccess ? own : hn_fail(ncclSystemError, "another rank could not share its window");
    }
    return rc;
}

static ncclResult_t window_job(struct hn_job *job)
{
    const struct window_args *a = job->args;
    struct hn_window *w = calloc(1, sizeof(*w));

    if (!w) {
        return hn_fail(ncclSystemError, "out of memory");
    }
    *w = (struct hn_window){.comm = job->comm, .buff = a->buff, .size = a->size};
    ncclResult_t rc = exchange(a, w);
    if (rc == ncclSuccess) {
        add(job->comm, w);
        *a->out = (ncclWindow_t)(void *)w;
    } else {
        window_free(w);
    }
    return rc;
}

static ncclResult_t submit_window(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int flags)
{
    const int strict_ordering = 2; /* of 2.30; puts are in order here anyway */
    ncclResult_t rc = hn_comm_awake(comm, "ncclCommWindowRegister");
    struct window_args *args;

    if (rc != ncclSuccess) {
        return rc;
    }
    if (!buff || !size || !win || (flags & ~(NCCL_WIN_COLL_SYMMETRIC | strict_ordering)) || (uintptr_t)buff % PAGE) {
        return hn_fail(ncclInvalidArgument, "ncclCommWindowRegister: buff %p (4096-aligned) size %zu win %p flags %d",
                       buff, size, (void *)win, flags);
    }
    if (flags & NCCL_WIN_COLL_SYMMETRIC) { /* the memory of ranks that are stood in for is nowhere */
        rc = hn_present_whole(comm, "ncclCommWindowRegister with NCCL_WIN_COLL_SYMMETRIC");
        if (rc != ncclSuccess) {
            return rc;
        }
    }
    args = malloc(sizeof(*args));
    if (!args) {
        return hn_fail(ncclSystemError, "out of memory");
    }
    *args = (struct window_args){buff, size, (flags & NCCL_WIN_COLL_SYMMETRIC) != 0, win};
    return hn_submit_job(window_job, comm, comm, comm->blocking, args, free);
}

HN_API(ncclResult_t, ncclCommWindowRegister, ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags)
{
    hn_debug("ncclCommWindowRegister comm %p buff %p size %zu flags %d", (void *)comm, buff, size, winFlags);
    hn_group_start();
    ncclResult_t rc = hn_group_error(submit_window(comm, buff, size, win, winFlags));
    ncclResult_t end = hn_group_end();

    return rc != ncclSuccess ? rc : end;
}

HN_API(ncclResult_t, ncclCommWindowDeregister, ncclComm_t comm, ncclWindow_t win)
{
    ncclResult_t rc = hn_comm_check(comm, "ncclCommWindowDeregister");
    struct hn_window *w = rc == ncclSuccess && win ? take_off(comm, win) : NULL;

    if (w) {
        window_free(w);
    } else if (rc == ncclSuccess && win) {
        rc = hn_fail(ncclInvalidArgument, "ncclCommWindowDeregister: %p is not a window of this communicator",
                     (void *)win);
    }
    return rc;
}

HN_API(ncclResult_t, ncclWinGetUserPtr, ncclComm_t comm, ncclWindow_t win, void **outUserPtr)
{
    ncclResult_t rc = hn_comm_check(comm, "ncclWinGetUserPtr");

    if (rc == ncclSuccess && (!outUserPtr || !hn_window_is_of(comm, win))) {
        rc = hn_fail(ncclInvalidArgument, "ncclWinGetUserPtr: window %p, result %p", (void *)win, (void *)outUserPtr);
    }
    if (rc == ncclSuccess) {
        *outUserPtr = ((const struct hn_window *)(const void *)win)->buff;
    }
    return rc;
}
