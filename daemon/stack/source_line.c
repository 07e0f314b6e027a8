/*
 * source_line.c: reads one line of a file that another process has named, or the lines around it.
 *
 * The name is the job's, and may be any: a device, a pipe, a link out of a container, a file of somebody else. So the
 * path is resolved within the process's root, what it leads to is looked at before it is opened, and only what belongs
 * to a process of our own user is read: with other rights than the process has, the line would tell what the process
 * may not know. Which process that is, the ring says, and the job can write anything there: so the process must map the
 * ring, which must belong to our own user, and must not be this one, which maps all rings. What was changed since the
 * process began is not what it runs, and a wrong line is worse than none; a process that was forked and runs no new
 * program has the modules of its parent, so the time is that of the oldest such parent.
 */
#include "daemon/stack/source_line.h"

#include "daemon/base/proc.h"
#include "trace/python_layout.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FILE_BYTES (4u << 20)
#define PARENTS    8
#define LATE_NS    20000000 /* of the time at which a process began, which the kernel tells in hundredths */
#define SECOND_NS  INT64_C(1000000000)

/* text */

/* One character of UTF-8; its bytes. What is none counts as one byte. */
static size_t take_utf8(const unsigned char *at, size_t left, uint32_t *out)
{
    size_t n = at[0] < 0x80 ? 1 : at[0] >= 0xf0 && at[0] < 0xf5 ? 4 : at[0] >= 0xe0 ? 3 : at[0] >= 0xc2 ? 2 : 0;
    uint32_t c = n == 1 ? at[0] : at[0] & (0x7fu >> n);
    if (n == 0 || n > left || at[0] >= 0xf5) {
        *out = '?';
        return 1;
    }
    for (size_t i = 1; i < n; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            *out = '?';
            return 1;
        }
        c = c << 6 | (at[i] & 0x3f);
    }
    *out = c > 0x10ffff || (n == 3 && c < 0x800) || (n == 4 && c < 0x10000) ? '?' : c;
    return n;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\f';
}

/* Where line number `line` begins; NULL: there is none. */
static const char *find_line(const char *bytes, size_t size, uint32_t line)
{
    const char *at = bytes, *end = bytes + size;
    for (uint32_t i = 1; i < line && at != NULL; i++) {
        at = memchr(at, '\n', (size_t)(end - at));
        at = at != NULL ? at + 1 : NULL;
    }
    return at == end || line == 0 ? NULL : at;
}

/* Takes the text of the line at `at`. indented: with the blanks before it. */
static void take_text(const char *at, const char *end, bool indented, char out[ROLL_TEXT_BYTES + 1])
{
    static const char cut[] = "\u2026";
    const char *stop = memchr(at, '\n', (size_t)(end - at));
    stop = stop != NULL ? stop : end;
    while (at < stop && is_blank(*at) && !indented) {
        at++;
    }
    while (stop > at && is_blank(stop[-1])) {
        stop--;
    }
    size_t used = 0, fits = 0; /* so much of it stays when an ellipsis comes behind it */
    while (at < stop) {
        uint32_t c;
        char one[4];
        at += take_utf8((const unsigned char *)at, (size_t)(stop - at), &c);
        size_t n = roll_put_utf8(one, c == '\t' ? ' ' : c);
        if (used + n > ROLL_TEXT_BYTES) {
            memcpy(out + fits, cut, sizeof(cut) - 1);
            used = fits + sizeof(cut) - 1;
            break;
        }
        memcpy(out + used, one, n);
        used += n;
        fits = used <= ROLL_TEXT_BYTES - (sizeof(cut) - 1) ? used : fits;
    }
    out[used] = '\0';
}

bool roll_source_line_of(const char *bytes, size_t size, uint32_t line, char out[ROLL_TEXT_BYTES + 1])
{
    const char *at = find_line(bytes, size, line);
    if (at != NULL) {
        take_text(at, bytes + size, false, out);
    }
    return at != NULL && out[0] != '\0';
}

bool roll_source_around_of(const char *bytes, size_t size, uint32_t line, struct roll_source_lines *out)
{
    const char *end = bytes + size;
    out->first = line > ROLL_SOURCE_AROUND ? line - ROLL_SOURCE_AROUND : 1;
    out->lines = 0;
    if (find_line(bytes, size, line) == NULL) {
        return false;
    }
    const char *at = find_line(bytes, size, out->first);
    for (uint32_t i = out->first; i <= line + ROLL_SOURCE_AROUND && at != NULL && at < end; i++) {
        take_text(at, end, true, out->text[out->lines++]);
        at = memchr(at, '\n', (size_t)(end - at));
        at = at != NULL ? at + 1 : NULL;
    }
    return true;
}

/* the process */

/* Whether the process is there. A ring that does not know its time of birth gets that of now, for later looks. */
static bool is_it(struct roll_source_process *p)
{
    struct roll_proc_stat stat;
    if (roll_proc_stat(p->pid, 0, &stat) != 0 || (p->start_ticks != 0 && stat.start_ticks != p->start_ticks)) {
        return false;
    }
    p->start_ticks = stat.start_ticks;
    return true;
}

/*
 * Looks through the mappings of a process: for the file at an address (at != 0), or for a file, whose device and inode
 * are given. A process of the real kind has some thousands of mappings.
 */
static bool find_mapping(pid_t pid, unsigned long at, char file[48])
{
    char path[64], line[PATH_MAX + 256], found[sizeof(((struct roll_source_mapping *)0)->file)];
    bool is_there = false;
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(path, "re");
    while (maps != NULL && !is_there && fgets(line, sizeof(line), maps) != NULL) {
        unsigned long from, to;
        char device[16], inode[24];
        if (sscanf(line, "%lx-%lx %*s %*s %15s %23s", &from, &to, device, inode) != 4 || strcmp(inode, "0") == 0) {
            continue;
        }
        snprintf(found, sizeof(found), "%s %s", device, inode);
        is_there = at != 0 ? from <= at && at < to : strcmp(found, file) == 0;
    }
    if (maps != NULL) {
        fclose(maps);
    }
    if (is_there && at != 0) {
        memcpy(file, found, sizeof(found));
    }
    return is_there;
}

bool roll_source_mapping(const void *at, const char *path, struct roll_source_mapping *out)
{
    struct stat st;
    *out = (struct roll_source_mapping){.owner = 0};
    /* The device of a file is another one in `struct stat` on some file systems; the inode is not. */
    bool is_it = find_mapping(getpid(), (unsigned long)(uintptr_t)at, out->file) && lstat(path, &st) == 0 &&
                 S_ISREG(st.st_mode) && strtoull(strchr(out->file, ' '), NULL, 10) == st.st_ino;
    out->owner = is_it ? st.st_uid : 0;
    return is_it;
}

/* Whether the process maps the ring, which is asked once for each process: that costs milliseconds. */
static bool has_ring(const struct roll_source_process *p)
{
    static _Thread_local struct roll_source_process last;
    char file[sizeof(p->ring.file)];
    if (last.pid == p->pid && last.start_ticks == p->start_ticks && strcmp(last.ring.file, p->ring.file) == 0) {
        return true;
    }
    memcpy(file, p->ring.file, sizeof(file));
    bool has = find_mapping(p->pid, 0, file);
    last = has ? *p : last;
    return has;
}

/* Whether the process is of our own user, and writes the ring that has named it. */
static bool is_ours(const struct roll_source_process *p)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof(path), "/proc/%d", (int)p->pid);
    return stat(path, &st) == 0 && st.st_uid == geteuid() &&
           (p->ring.file[0] == '\0' || (p->ring.owner == geteuid() && p->pid != getpid() && has_ring(p)));
}

bool roll_source_is_writer(const struct roll_source_process *process)
{
    struct roll_source_process p = *process;
    return p.pid > 0 && p.ring.file[0] != '\0' && is_it(&p) && is_ours(&p);
}

/* What the kernel says of a process that a fork leaves as it is and an exec does not: where its code and its stack
 * begin. */
struct image {
    pid_t parent;
    unsigned long long code, stack, ticks;
};

static bool image_of(pid_t pid, struct image *out)
{
    char path[64], text[2048];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    size_t n = file != NULL ? fread(text, 1, sizeof(text) - 1, file) : 0;
    text[n] = '\0';
    if (file != NULL) {
        fclose(file);
    }
    const char *at = strrchr(text, ')'); /* the name before it may hold anything */
    *out = (struct image){.parent = 0};
    for (int field = 3; at != NULL && field <= 28; field++) {
        at = strchr(at, ' ');
        at += at != NULL;
        unsigned long long value = at != NULL && field > 3 ? strtoull(at, NULL, 10) : 0;
        out->parent = field == 4 ? (pid_t)value : out->parent;
        out->ticks = field == 22 ? value : out->ticks;
        out->code = field == 26 ? value : out->code;
        out->stack = field == 28 ? value : out->stack;
    }
    return at != NULL && out->ticks != 0;
}

/* When the process began, or the oldest parent that it was forked from without a new program: wall clock; INT64_MIN:
 * not known. */
static int64_t begin_of(pid_t pid)
{
    struct image own, parent;
    if (!image_of(pid, &own)) {
        return INT64_MIN;
    }
    for (int i = 0; i < PARENTS && own.parent > 1 && image_of(own.parent, &parent) && parent.code == own.code &&
                    parent.stack == own.stack;
         i++) {
        own = parent;
    }
    struct timespec real, boot;
    long hertz = sysconf(_SC_CLK_TCK);
    if (hertz <= 0 || clock_gettime(CLOCK_REALTIME, &real) != 0 || clock_gettime(CLOCK_BOOTTIME, &boot) != 0) {
        return INT64_MIN;
    }
    int64_t started = (real.tv_sec - boot.tv_sec) * SECOND_NS + real.tv_nsec - boot.tv_nsec;
    return started + (int64_t)(own.ticks / (unsigned long long)hertz) * SECOND_NS +
           (int64_t)(own.ticks % (unsigned long long)hertz) * (SECOND_NS / hertz);
}

/* the file */

/* Finds a file as the process would, without opening what it is; -1: not found, or this kernel cannot. */
static int find_file(pid_t pid, const char *path)
{
    char root[64];
    struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
    snprintf(root, sizeof(root), "/proc/%d/root", (int)pid);
    int at = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int fd = at >= 0 ? (int)syscall(SYS_openat2, at, path, &how, sizeof(how)) : -1;
    if (at >= 0) {
        close(at);
    }
    return fd;
}

static bool is_older(const struct stat *st, int64_t begin)
{
    int64_t changed = st->st_mtim.tv_sec * SECOND_NS + st->st_mtim.tv_nsec;
    int64_t moved = st->st_ctim.tv_sec * SECOND_NS + st->st_ctim.tv_nsec;
    return begin != INT64_MIN && changed <= begin + LATE_NS && moved <= begin + LATE_NS;
}

/* Opens what find_file has found, when it is a plain file of a fitting size and age. */
static int open_file(int found, int64_t begin, size_t *size)
{
    char path[64];
    struct stat st;
    if (fstat(found, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size <= 0 || st.st_size > (off_t)FILE_BYTES ||
        !is_older(&st, begin)) {
        return -1;
    }
    *size = (size_t)st.st_size;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", found);
    return open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
}

static char *read_all(int fd, size_t *size)
{
    char *bytes = malloc(*size);
    size_t used = 0;
    while (bytes != NULL && used < *size) {
        ssize_t n = read(fd, bytes + used, *size - used);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            break;
        }
        used += (size_t)n;
    }
    *size = used;
    return bytes;
}

static bool is_python(const char *path)
{
    size_t n = strlen(path);
    return n > 3 && strcmp(path + n - 3, ".py") == 0;
}

/* Whether what was found, behind all links, is called as a file of Python is. */
static bool leads_to_python(int found)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", found);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    path[n > 0 ? n : 0] = '\0';
    return is_python(path);
}

/* Reads the file at a path as a process sees it; python: if it is one of Python. NULL: not, or not surely what the
 * process runs. Returns owned. */
static char *read_file(const struct roll_source_process *process, const char *path, bool python, size_t *size)
{
    struct roll_source_process is = *process, *p = &is;
    struct stat st;
    char *bytes = NULL;
    if (path[0] != '/' || !is_it(p) || !is_ours(p)) {
        return NULL; /* a path that is not absolute was so in a directory that the process may have left */
    }
    int64_t begin = begin_of(p->pid);
    int found = find_file(p->pid, path);
    bool fits = found >= 0 && (!python || leads_to_python(found));
    int fd = fits ? open_file(found, begin, size) : -1;
    if (fd >= 0) {
        bytes = read_all(fd, size);
        if (bytes != NULL && (fstat(fd, &st) != 0 || !is_older(&st, begin) || !is_it(p))) {
            free(bytes);
            bytes = NULL;
        }
        close(fd);
    }
    if (found >= 0) {
        close(found);
    }
    return bytes;
}

bool roll_source_line(const struct roll_source_process *process, const char *path, uint32_t line,
                      char out[ROLL_TEXT_BYTES + 1])
{
    size_t size = 0;
    char *bytes = read_file(process, path, false, &size);
    bool said = bytes != NULL && roll_source_line_of(bytes, size, line, out);
    free(bytes);
    return said;
}

bool roll_source_around(const struct roll_source_process *process, const char *path, uint32_t line,
                        struct roll_source_lines *out)
{
    size_t size = 0;
    char *bytes = is_python(path) ? read_file(process, path, true, &size) : NULL;
    bool said = bytes != NULL && roll_source_around_of(bytes, size, line, out);
    free(bytes);
    return said;
}
