/*
 * main.c: standins OUT PLACE...: stand-ins for NVIDIA's mathematics libraries, so that a program made for GPUs starts
 * without them. A place is a shared object, or a folder in which all shared objects are looked at (a Python's
 * site-packages).
 *
 * What the places want decides what is written: for each library of family.def that one of them names, OUT gets a
 * library of that soname with just the wanted symbols and versions, whatever release the program is of. Functions that
 * must answer are in libhoststandin.so (answers.c); all others do nothing (elf_write.c). Nothing of the libraries
 * themselves is read or copied.
 *
 * Standard output: a value for LD_PRELOAD. Preloading is the one way that works for programs with an RPATH: a library
 * whose soname is loaded already is not searched. Exit codes: 0; 1: nothing could be written; 2: wrong usage; 3:
 * written, but the program wants functions of the CUDA runtime, the driver or NCCL that are not here, and will not
 * start.
 */
#include "hostnccl/standin/standin.h"

#include <ctype.h>
#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char ANSWERS[] = "libhoststandin.so";

static const struct family {
    const char *stem, *prefix;
} families[] = {
#define FAMILY(stem, prefix) {stem, prefix},
#include "hostnccl/standin/family.def"
#undef FAMILY
};

/* The libraries that are ours as a whole: what is wanted of them must be there. */
static struct own {
    const char *stem, *prefix;
    char *soname; /* the one that the places want; NULL: none */
    struct offer *defined;
    size_t count, room;
    bool is_read;
} owns[] = {
    {.stem = "libcudart.so", .prefix = "cuda"},
    {.stem = "libcuda.so", .prefix = "cu"},
    {.stem = "libnccl.so", .prefix = "nccl"},
};

static struct stand_in *stand_ins;
static size_t stand_in_count;
static struct offer *answers; /* what libhoststandin.so defines */
static size_t answer_count, answer_room;
static char folder[PATH_MAX]; /* of this program, and of our libraries */
static size_t lacking, looked_at;

/* Functions of a family that a file wants without naming the library: another file of the program loads that. And those
 * that a file of the program has itself. */
static struct orphan {
    char *name;
    const struct family *family;
} * orphans;
static size_t orphan_count, orphan_room;
static struct offer *homes;
static size_t home_count, home_room;

/* The libraries that the file at hand needs. */
static char **needed;
static size_t needed_count, needed_room;

enum { COUNT_OF_FAMILIES = sizeof(families) / sizeof(*families), COUNT_OF_OWNS = sizeof(owns) / sizeof(*owns) };

static void *must(void *memory)
{
    if (!memory) {
        fprintf(stderr, "standins: no memory\n");
        exit(1);
    }
    return memory;
}

/* Makes room for one more element of an array. */
#define GROW(array, count, room)                                                                                       \
    if ((count) == (room)) {                                                                                           \
        (room) = (room) ? 2 * (room) : 64;                                                                             \
        (array) = must(realloc((array), (room) * sizeof(*(array))));                                                   \
    }

static bool has(const struct offer *offers, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (!strcmp(offers[i].name, name)) {
            return true;
        }
    }
    return false;
}

/* Whether a soname is that of a library, of any version. */
static bool is_of(const char *soname, const char *stem)
{
    size_t length = strlen(stem);
    return !strncmp(soname, stem, length) && (!soname[length] || soname[length] == '.');
}

static bool begins(const char *name, const char *prefix)
{
    size_t length = strlen(prefix);
    return !strncmp(name, prefix, length);
}

static struct stand_in *stand_in_of(const char *soname)
{
    for (size_t i = 0; i < stand_in_count; i++) {
        if (!strcmp(stand_ins[i].soname, soname)) {
            return &stand_ins[i];
        }
    }
    stand_ins = must(realloc(stand_ins, (stand_in_count + 1) * sizeof(*stand_ins)));
    struct stand_in *s = &stand_ins[stand_in_count++];
    *s = (struct stand_in){.soname = must(strdup(soname))};
    return s;
}

static size_t version_of(struct stand_in *s, const char *version)
{
    for (size_t i = 0; i < s->version_count; i++) {
        if (!strcmp(s->versions[i], version)) {
            return i + 1;
        }
    }
    GROW(s->versions, s->version_count, s->version_room)
    s->versions[s->version_count++] = must(strdup(version));
    return s->version_count;
}

static void offer(const char *soname, const char *symbol, const char *version)
{
    struct stand_in *s = stand_in_of(soname);
    size_t number = version ? version_of(s, version) : 0;
    if (has(answers, answer_count, symbol)) {
        return; /* the loader finds it there, whatever version is asked for */
    }
    for (size_t i = 0; i < s->offer_count; i++) {
        if (!strcmp(s->offers[i].name, symbol) && s->offers[i].version == number) {
            return;
        }
    }
    GROW(s->offers, s->offer_count, s->offer_room)
    s->offers[s->offer_count++] = (struct offer){must(strdup(symbol)), number};
}

static void add_definition(void *context, enum fact fact, const char *name, const char *version, const char *file)
{
    struct own *own = context;
    (void)version, (void)file;
    if (fact == FACT_DEFINES) {
        GROW(own->defined, own->count, own->room)
        own->defined[own->count++] = (struct offer){must(strdup(name)), 0};
    }
}

/* Looks for a function in a library of ours. A soname that is not here ends the program. */
static void want_own(struct own *own, const char *soname, const char *symbol, const char *by)
{
    char path[PATH_MAX + 64];
    if (!own->is_read) {
        own->is_read = true;
        own->soname = must(strdup(soname));
        snprintf(path, sizeof(path), "%s/%s", folder, soname);
        if (library_read(path, add_definition, own)) {
            fprintf(stderr,
                    "standins: %s wants %s, and there is none in %s: rollcall was built in part, or for another "
                    "release of CUDA\n",
                    by, soname, folder);
            exit(1);
        }
    }
    if (strcmp(own->soname, soname) != 0) {
        fprintf(stderr, "standins: %s wants %s, and another library wants %s: one process cannot have both here\n", by,
                soname, own->soname);
        exit(1);
    }
    if (!has(own->defined, own->count, symbol)) {
        lacking++;
        fprintf(stderr, "standins: %s wants %s of %s, which is not there\n", by, symbol, soname);
        add_definition(own, FACT_DEFINES, symbol, NULL, NULL); /* said once */
    }
}

/* The needed library with that stem; NULL: the file at hand names none. */
static const char *needed_of(const char *stem)
{
    for (size_t i = 0; i < needed_count; i++) {
        if (is_of(needed[i], stem)) {
            return needed[i];
        }
    }
    return NULL;
}

/* The family of a function: by its library where that is named, else by the longest prefix. NULL: none. */
static const struct family *family_of(const char *symbol, const char *file)
{
    const struct family *found = NULL;
    for (size_t i = 0; i < COUNT_OF_FAMILIES; i++) {
        const struct family *f = &families[i];
        if (file ? is_of(file, f->stem)
                 : begins(symbol, f->prefix) && (!found || strlen(f->prefix) > strlen(found->prefix))) {
            found = f;
        }
    }
    return found;
}

/* Whether a name is one of the vendor's: the prefix, and then a word. */
static bool is_word_of(const char *symbol, const struct family *family)
{
    return family && isupper((unsigned char)symbol[strlen(family->prefix)]);
}

static void want(const char *symbol, const char *version, const char *file, const char *by, bool is_weak)
{
    const struct family *found = family_of(symbol, file);
    const char *soname = !found ? NULL : file ? file : needed_of(found->stem);
    if (soname) {
        offer(soname, symbol, version);
    } else if (!is_weak && is_word_of(symbol, found)) {
        GROW(orphans, orphan_count, orphan_room)
        orphans[orphan_count++] = (struct orphan){must(strdup(symbol)), found};
    }
    for (size_t i = 0; !found && i < COUNT_OF_OWNS; i++) {
        struct own *own = &owns[i];
        bool is_named = begins(symbol, own->prefix) && isupper((unsigned char)symbol[strlen(own->prefix)]);
        soname = file ? (is_of(file, own->stem) ? file : NULL) : is_named ? needed_of(own->stem) : NULL;
        if (soname) {
            want_own(own, soname, symbol, by);
        }
    }
}

static void hear(void *context, enum fact fact, const char *name, const char *version, const char *file)
{
    if (fact == FACT_NEEDS) {
        GROW(needed, needed_count, needed_room)
        needed[needed_count++] = must(strdup(name));
        for (size_t i = 0; i < COUNT_OF_FAMILIES; i++) {
            if (is_of(name, families[i].stem)) {
                stand_in_of(name); /* it is loaded, wanted symbols or not */
            }
        }
    } else if (fact == FACT_DEFINES) {
        if (is_word_of(name, family_of(name, NULL))) {
            GROW(homes, home_count, home_room)
            homes[home_count++] = (struct offer){must(strdup(name)), 0};
        }
    } else {
        want(name, version, file, context, fact == FACT_ASKS);
    }
}

/* The loader looks for such a function in all that the process has loaded, so in the library that another file names.
 */
static void place_orphans(void)
{
    for (size_t i = 0; i < orphan_count; i++) {
        const struct orphan *o = &orphans[i];
        for (size_t k = 0; k < stand_in_count && !has(homes, home_count, o->name); k++) {
            if (is_of(stand_ins[k].soname, o->family->stem)) {
                offer(stand_ins[k].soname, o->name, NULL);
                break;
            }
        }
    }
}

/* A library that is stood in for wants nothing, since it is not loaded. */
static bool is_replaced(const char *name)
{
    for (size_t i = 0; i < COUNT_OF_FAMILIES; i++) {
        if (is_of(name, families[i].stem)) {
            return true;
        }
    }
    for (size_t i = 0; i < COUNT_OF_OWNS; i++) {
        if (is_of(name, owns[i].stem)) {
            return true;
        }
    }
    return begins(name, "libcudnn_") || begins(name, "libcufft") || begins(name, "nvshmem_") ||
           begins(name, "libcufile_") || begins(name, "libnvblas") || begins(name, "libnvperf") ||
           begins(name, "libcheckpoint");
}

static int look(const char *path, const struct stat *about, int kind, struct FTW *place)
{
    const char *name = path + place->base, *end = strstr(name, ".so");
    (void)about;
    if (kind != FTW_F || !end || (end[3] && end[3] != '.') || is_replaced(name)) {
        return 0;
    }
    char *by = must(strdup(name));
    if (!library_read(path, hear, by)) {
        looked_at++;
    }
    for (size_t i = 0; i < needed_count; i++) {
        free(needed[i]);
    }
    needed_count = 0;
    free(by);
    return 0;
}

static void find_folder(void)
{
    ssize_t length = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
    char *slash = length > 0 ? strrchr(folder, '/') : NULL;
    if (!slash) {
        fprintf(stderr, "standins: its own folder is not known: %s\n", strerror(errno));
        exit(1);
    }
    *slash = 0;
}

static void add_answer(void *context, enum fact fact, const char *name, const char *version, const char *file)
{
    (void)context, (void)version, (void)file;
    if (fact == FACT_DEFINES) {
        GROW(answers, answer_count, answer_room)
        answers[answer_count++] = (struct offer){must(strdup(name)), 0};
    }
}

/* Writes all, and says what to preload. The number of functions. */
static size_t write_all(const char *out)
{
    char path[PATH_MAX];
    size_t functions = 0;
    bool is_first = true;
    for (size_t i = 0; i < COUNT_OF_OWNS; i++) {
        if (owns[i].soname) {
            printf("%s%s/%s", is_first ? "" : ":", folder, owns[i].soname);
            is_first = false;
        }
    }
    if (stand_in_count) {
        printf("%s%s/%s", is_first ? "" : ":", folder, ANSWERS);
    }
    for (size_t i = 0; i < stand_in_count; i++) {
        int length = snprintf(path, sizeof(path), "%s/%s", out, stand_ins[i].soname);
        if (length < 0 || (size_t)length >= sizeof(path) || stand_in_write(&stand_ins[i], ANSWERS, path)) {
            fprintf(stderr, "standins: %s/%s: %s\n", out, stand_ins[i].soname, strerror(errno));
            exit(1);
        }
        functions += stand_ins[i].offer_count;
        printf(":%s", path);
    }
    printf("\n");
    return functions;
}

int main(int argc, char *argv[])
{
    char path[PATH_MAX + 64], out[PATH_MAX];
    if (argc < 3) {
        fprintf(stderr, "usage: standins OUT PLACE...\n"
                        "Writes stand-ins for the CUDA libraries that the shared objects in the places want into the "
                        "folder OUT, and prints a value for LD_PRELOAD.\n");
        return 2;
    }
    find_folder();
    snprintf(path, sizeof(path), "%s/%s", folder, ANSWERS);
    if (library_read(path, add_answer, NULL)) {
        fprintf(stderr, "standins: %s is missing\n", path);
        return 1;
    }
    if (mkdir(argv[1], 0777) && errno != EEXIST) {
        fprintf(stderr, "standins: %s: %s\n", argv[1], strerror(errno));
        return 1;
    }
    if (!realpath(argv[1], out)) {
        fprintf(stderr, "standins: %s: %s\n", argv[1], strerror(errno));
        return 1;
    }
    for (int i = 2; i < argc; i++) {
        if (nftw(argv[i], look, 32, FTW_PHYS)) {
            fprintf(stderr, "standins: %s: %s\n", argv[i], strerror(errno));
            return 1;
        }
    }
    if (!looked_at) {
        fprintf(stderr, "standins: no shared object of this machine in the places that were named\n");
        return 1;
    }
    place_orphans();
    size_t functions = write_all(out);
    fprintf(stderr, "standins: %zu shared objects want %zu libraries with %zu functions that do nothing\n", looked_at,
            stand_in_count, functions);
    return lacking ? 3 : 0;
}
