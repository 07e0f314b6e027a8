/*
 * segment.c: the shared memory of one communicator, and the rendezvous.
 *
 * A segment is a file $HOSTNCCL_DIR/hn-<16 hex digits>, named by the unique id (or, for a split or shrink, by what all
 * members can compute alike). The first rank makes the file without a name (O_TMPFILE), fills in the header and only
 * then links it, so no rank can see half a segment; the other ranks open it. When all ranks have joined, the name is
 * removed: a job that is killed later leaves nothing. The files of a job that died during init are recognised by their
 * lock: every attached rank holds a shared flock, and a file that can be locked exclusively belongs to no process.
 * Rejected: remembering the creator's pid, which is reused and means nothing in another pid namespace.
 *
 * Layout, of the ranks that are present (present.c): header, one hn_rank per rank, one hn_channel per ordered pair,
 * outboxes (HN_SLOTS pieces per rank, for collectives), rings (one per ordered pair, for point-to-point). The file is
 * sparse; every part is made real by posix_fallocate before its first use, so that a full file system is an error code
 * and not a SIGBUS.
 */
#include "hostnccl/nccl/segment.h"

#include <dirent.h>
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

static const uint64_t SEGMENT_MAGIC = 0x314c43434e545348u;
enum { SEGMENT_VERSION = 4, PAGE = 4096 };
_Static_assert(sizeof(struct hn_channel) == 128, "a channel is two cache lines: there are as many as pairs of ranks");

static size_t round_page(size_t n)
{
    return (n + PAGE - 1) / PAGE * PAGE;
}

/* Larger pieces mean fewer wake-ups; many ranks mean many buffers. The product stays near 2 MiB up to 64 ranks. */
static size_t chunk_for(uint32_t nranks)
{
    size_t chunk = nranks <= 8 ? 128u << 10 : nranks <= 16 ? 64u << 10 : 32u << 10;
    size_t least = round_page((size_t)nranks * 256); /* ReduceScatter cuts a piece into one part per rank */

    return chunk > least ? chunk : least;
}

static size_t window_for(uint32_t nranks)
{
    return nranks <= 8 ? 256u << 10 : nranks <= 16 ? 64u << 10 : nranks <= 32 ? 32u << 10 : 16u << 10;
}

static void lay_out(struct hn_map *map, uint32_t nranks, uint32_t places, const int *place)
{
    size_t n = places;

    map->nranks = nranks;
    map->places = places;
    map->place = place;
    map->chunk = chunk_for(nranks);
    map->window = window_for(places);
    map->ranks_at = PAGE;
    map->channels_at = round_page(map->ranks_at + n * sizeof(struct hn_rank));
    map->outbox_at = round_page(map->channels_at + n * n * sizeof(struct hn_channel));
    map->rings_at = map->outbox_at + n * HN_SLOTS * map->chunk;
    map->size = map->rings_at + n * n * map->window;
}

static size_t place_of(const struct hn_map *map, int rank)
{
    return (size_t)(map->place ? map->place[rank] : rank);
}

struct hn_rank *hn_map_rank(const struct hn_map *map, int rank)
{
    return (struct hn_rank *)(void *)hn_map_bytes(map, map->ranks_at) + place_of(map, rank);
}

struct hn_channel *hn_map_channel(const struct hn_map *map, int source, int destination)
{
    size_t index = place_of(map, source) * map->places + place_of(map, destination);

    return (struct hn_channel *)(void *)hn_map_bytes(map, map->channels_at) + index;
}

size_t hn_map_slot_at(const struct hn_map *map, int rank, uint32_t piece)
{
    return map->outbox_at + (place_of(map, rank) * HN_SLOTS + piece % HN_SLOTS) * map->chunk;
}

size_t hn_map_ring_at(const struct hn_map *map, int source, int destination)
{
    return map->rings_at + (place_of(map, source) * map->places + place_of(map, destination)) * map->window;
}

int hn_segment_dir(char *buf, size_t size)
{
    const char *dir = getenv("HOSTNCCL_DIR");
    int n = dir && *dir ? snprintf(buf, size, "%s", dir) : snprintf(buf, size, "/dev/shm/hostnccl-%u", getuid());

    if (n < 0 || (size_t)n >= size) {
        errno = ENAMETOOLONG;
        return -1;
    }
    if (!mkdir(buf, 0700)) {
        return 0;
    }
    if (errno != EEXIST) {
        return -1;
    }
    /*
     * Every user may write in /dev/shm: a directory of our name may belong to another user, who would then own the
     * ranks' memory. A directory that the user chose is the user's business.
     */
    struct stat st;
    if (!(dir && *dir) && (lstat(buf, &st) || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022))) {
        errno = EPERM;
        return -1;
    }
    return 0;
}

static int segment_path(char *buf, size_t size, uint64_t name)
{
    if (hn_segment_dir(buf, size)) {
        return -1;
    }
    size_t used = strlen(buf);
    int n = snprintf(buf + used, size - used, "/hn-%016" PRIx64, name);
    if (n < 0 || (size_t)n >= size - used) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return 0;
}

/* Removes segments that no living process holds: left by jobs that were killed during init. */
static void remove_stale(const char *dir)
{
    DIR *d = opendir(dir);

    if (!d) {
        return;
    }
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        if (strncmp(e->d_name, "hn-", 3)) {
            continue;
        }
        int fd = openat(dirfd(d), e->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0) {
            continue;
        }
        if (!flock(fd, LOCK_EX | LOCK_NB)) {
            (void)unlinkat(dirfd(d), e->d_name, 0);
        }
        close(fd);
    }
    closedir(d);
}

/*
 * posix_fallocate gives up at a signal, for which the program may have a handler of any purpose; so the call is
 * repeated. Returns 0 or the error.
 */
static int allocate(int fd, size_t at, size_t size)
{
    int err;

    do {
        err = posix_fallocate(fd, (off_t)at, (off_t)size);
    } while (err == EINTR);
    return err;
}

/* Makes the file under its final name. Returns its descriptor, or -1 with errno (EEXIST: another rank was first). */
static int create_file(const struct hn_map *map, uint32_t left_out_bytes, const char *dir, const char *path)
{
    struct hn_segment head = {.magic = SEGMENT_MAGIC,
                              .name = map->name,
                              .version = SEGMENT_VERSION,
                              .nranks = map->nranks,
                              .places = map->places,
                              .left_out_bytes = left_out_bytes};
    char self[64];
    int err;
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd < 0) {
        return -1;
    }
    err = flock(fd, LOCK_SH) ? errno : 0;
    if (!err && ftruncate(fd, (off_t)map->size)) {
        err = errno;
    }
    if (!err) {
        err = allocate(fd, 0, map->outbox_at);
    }
    if (!err && pwrite(fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head)) {
        err = EIO;
    }
    if (!err) {
        snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
        err = linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW) ? errno : 0;
    }
    if (err) {
        close(fd);
        errno = err;
        return -1;
    }
    return fd;
}

static int open_file(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);

    if (fd >= 0 && flock(fd, LOCK_SH | LOCK_NB)) {
        /* A cleaner holds it for an instant and will remove it: as if it had not been there. */
        close(fd);
        errno = ENOENT;
        return -1;
    }
    return fd;
}

static int check_header(const struct hn_map *map, uint32_t left_out_bytes)
{
    struct hn_segment head;

    if (pread(map->fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head) || head.magic != SEGMENT_MAGIC ||
        head.version != SEGMENT_VERSION || head.name != map->name) {
        errno = EINVAL;
        return -1;
    }
    return head.nranks != map->nranks              ? -2
           : head.left_out_bytes != left_out_bytes ? -3
           : head.places != map->places            ? -4
                                                   : 0;
}

int hn_map_open(struct hn_map *map, uint64_t name, uint32_t nranks, uint32_t places, const int *place,
                uint32_t left_out_bytes)
{
    char dir[PATH_MAX], path[PATH_MAX];
    void *base;
    int rc;

    *map = (struct hn_map){.fd = -1, .name = name};
    lay_out(map, nranks, places, place);
    if (hn_segment_dir(dir, sizeof(dir)) || segment_path(path, sizeof(path), name)) {
        return -1;
    }
    for (;;) {
        map->fd = open_file(path);
        if (map->fd >= 0 || errno != ENOENT) {
            break;
        }
        remove_stale(dir);
        map->fd = create_file(map, left_out_bytes, dir, path);
        if (map->fd >= 0) { /* once more by its name: /proc/PID/maps of every rank then shows it */
            int named = open_file(path);
            if (named >= 0) {
                close(map->fd);
                map->fd = named;
            }
            break;
        }
        if (errno != EEXIST) {
            break;
        }
    }
    if (map->fd < 0) {
        return -1;
    }
    rc = check_header(map, left_out_bytes);
    if (rc) {
        goto out;
    }
    base = mmap(NULL, map->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, map->fd, 0);
    if (base == MAP_FAILED) {
        rc = -1;
        goto out;
    }
    map->base = base;
out:
    if (rc) {
        int err = errno;
        close(map->fd);
        map->fd = -1;
        errno = err;
    }
    return rc;
}

void hn_map_unlink(const struct hn_map *map)
{
    char path[PATH_MAX];

    if (!segment_path(path, sizeof(path), map->name)) {
        (void)unlink(path);
    }
}

void hn_map_close(struct hn_map *map)
{
    if (map->base) {
        munmap(map->base, map->size);
        close(map->fd);
    }
    *map = (struct hn_map){.fd = -1};
}

int hn_map_reserve(const struct hn_map *map, size_t at, size_t size)
{
    int err = allocate(map->fd, at, size);

    if (err) {
        errno = err;
        return -1;
    }
    return 0;
}

void hn_map_release(const struct hn_map *map, size_t at, size_t size)
{
    size_t first = round_page(at), end = (at + size) / PAGE * PAGE;

    if (first < end) {
        (void)fallocate(map->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)first, (off_t)(end - first));
    }
}
