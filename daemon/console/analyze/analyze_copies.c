/*
 * analyze_copies.c: traces that were given twice, as another copy of a directory: read once, and told.
 *
 * Two copies fed as two nodes would be two clocks of one node. Names alone do not tell: nodes in containers may all be
 * called localhost. So two files are copies when they have one name, one size and the same bytes.
 */
#include "daemon/console/analyze/analyze.h"

#include "daemon/console/console.h"
#include "trace/err.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct named {
    struct roll_analyze_file *file; /* borrowed */
    const char *name;               /* without the directory */
    struct stat st;
    bool copy;
};

static int by_name_and_size(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    order = order ? order : (x->st.st_size > y->st.st_size) - (x->st.st_size < y->st.st_size);
    return order ? order : strcmp(x->file->path, y->file->path);
}

static const void *map(const struct named *n)
{
    int fd = open(n->file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, (size_t)n->st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (fd >= 0) {
        close(fd);
    }
    return at;
}

static bool same_bytes(const struct named *a, const struct named *b)
{
    size_t bytes = (size_t)a->st.st_size;
    const void *x = map(a), *y = map(b);
    bool same = x != MAP_FAILED && y != MAP_FAILED && memcmp(x, y, bytes) == 0;
    if (x != MAP_FAILED) {
        munmap((void *)(uintptr_t)x, bytes);
    }
    if (y != MAP_FAILED) {
        munmap((void *)(uintptr_t)y, bytes);
    }
    return same;
}

static bool same_file(const struct named *a, const struct named *b)
{
    return a->st.st_dev == b->st.st_dev && a->st.st_ino == b->st.st_ino;
}

/* The file that this one is a copy of, or is by another path; NULL: it is neither. */
static const struct named *original(const struct named *all, size_t i)
{
    for (size_t k = i; k-- > 0 && all[k].st.st_size == all[i].st.st_size && strcmp(all[k].name, all[i].name) == 0;) {
        if (!all[k].copy && (same_file(&all[k], &all[i]) || same_bytes(&all[k], &all[i]))) {
            return &all[k];
        }
    }
    return NULL;
}

int roll_analyze_leave_out_copies(struct roll_analyze_file *file, size_t *n)
{
    struct named *all = calloc(*n + 1, sizeof(*all));
    size_t used = 0, kept = 0;
    if (!all) {
        return ROLL_E_NOMEM;
    }
    for (size_t i = 0; i < *n; i++) {
        const char *slash = strrchr(file[i].path, '/');
        struct named one = {.file = &file[i], .name = slash ? slash + 1 : file[i].path};
        if (stat(file[i].path, &one.st) == 0 && S_ISREG(one.st.st_mode) && one.st.st_size > 0) {
            all[used++] = one;
        }
    }
    if (used > 1) {
        qsort(all, used, sizeof(*all), by_name_and_size);
    }
    for (size_t i = 1; i < used; i++) {
        const struct named *other = original(all, i);
        all[i].copy = other != NULL;
        if (other && !same_file(other, &all[i])) {
            roll_say("%s: the same trace as %s, which is read", all[i].file->path, other->file->path);
        }
    }
    for (size_t i = 0; i < used; i++) {
        if (all[i].copy) {
            all[i].file->path[0] = '\0';
        }
    }
    for (size_t i = 0; i < *n; i++) {
        if (file[i].path[0] != '\0') {
            file[kept++] = file[i];
        }
    }
    *n = kept;
    free(all);
    return 0;
}
