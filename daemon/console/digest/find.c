/*
 * find.c: the traces of a node: files, and all *.rtrc of a directory and of its direct subdirectories, as for analyze.
 */
#include "daemon/console/digest/digest.h"

#include "daemon/base/array.h"
#include "daemon/console/console.h"
#include "daemon/console/file.h"
#include "daemon/store/segment.h"
#include "daemon/store/trace_file.h"
#include "trace/err.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DEPTH_MOST 2

struct finding {
    struct roll_analyze_file *file;
    size_t room;
    struct roll_digest_found *found;
};

static bool ends(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* NOMEM, else 0: what cannot be read is told and counted. */
static int add_file(struct finding *f, const char *path)
{
    roll_trace_reader_t *reader = NULL;
    struct roll_analyze_file one = {.number = 0};
    int err = strlen(path) < sizeof(one.path) ? roll_trace_reader_new(path, &reader) : ROLL_E_LIMIT;
    roll_trace_reader_destroy(&reader);
    if (err) {
        f->found->unreadable += err != ROLL_E_NOMEM;
        if (err != ROLL_E_NOMEM) {
            roll_file_complain(path, err, ROLL_WANTED_TRACE);
        }
        return err == ROLL_E_NOMEM ? err : 0;
    }
    memcpy(one.path, path, strlen(path));
    if (!roll_segment_parse(path, one.series, sizeof(one.series), &one.number)) {
        memcpy(one.series, path, strlen(path));
    }
    err = ROLL_GROW(f->file, f->room, f->found->traces + 1);
    if (!err) {
        f->file[f->found->traces++] = one;
    }
    return err;
}

static int add_folder(struct finding *f, const char *path, int depth)
{
    struct dirent **entry = NULL;
    int err = 0, n = scandir(path, &entry, NULL, alphasort);
    if (n < 0) {
        roll_file_complain(path, roll_segment_errno(), ROLL_WANTED_TRACE);
        f->found->unreadable++;
        return 0;
    }
    for (int i = 0; i < n; i++) {
        const char *name = entry[i]->d_name;
        char inner[PATH_MAX];
        int len = snprintf(inner, sizeof(inner), "%s/%s", path, name);
        bool looks = !err && name[0] != '.' && len > 0 && (size_t)len < sizeof(inner);
        if (looks && ends(name, ".rtrc")) {
            err = add_file(f, inner);
        } else if (looks && ends(name, ".ring")) {
            f->found->rings++;
        } else if (looks && depth + 1 < DEPTH_MOST && is_directory(inner)) {
            err = add_folder(f, inner, depth + 1);
        }
        free(entry[i]);
    }
    free(entry);
    return err;
}

int roll_digest_find(char *const *path, size_t paths, struct roll_analyze_file **file, struct roll_digest_found *found)
{
    struct finding f = {.found = found};
    int err = 0;
    *found = (struct roll_digest_found){0};
    for (size_t i = 0; i < paths && !err; i++) {
        err = is_directory(path[i]) ? add_folder(&f, path[i], 0) : add_file(&f, path[i]);
    }
    *file = f.file;
    return err;
}
