/*
 * symbol_file.c: reads one program or library with libdwfl: inlined functions and lines from DWARF, else the ELF
 * symbol, else module and offset.
 *
 * Debug information is looked for in the file and, by build id, below /usr/lib/debug. libdwfl's standard search was
 * rejected: it may ask a debuginfod server, and a verdict must not wait for a network. A file whose build id is not the
 * one that the rank noted is not used at all: a wrong line is worse than none.
 *
 * What libdwfl holds of a program is ten times what is asked of it (13 MiB of a small one and libc), and a root watches
 * runs for months. So all names are copied, and a file that rests is closed: what was looked up is remembered, and what
 * is asked later opens it again. One file for all runs that have it was rejected as the only cure: each build of a
 * program would still stay open for as long as its run is kept.
 */
#include "daemon/stack/symbol_file.h"

#include "daemon/base/array.h"
#include "daemon/stack/text_pool.h"

#include <dlfcn.h>
#include <dwarf.h>
#include <elfutils/libdw.h>
#include <elfutils/libdwfl.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEEN_FRAMES 16   /* frames remembered of an address; no call site shows more (ROLL_SYMBOL_FRAMES) */
#define SEEN_MOST   8192 /* addresses remembered per file */

struct roll_symbol_file {
    char *path;
    uint8_t build_id[20];
    size_t build_id_bytes;
    bool opened;
    Dwfl *dwfl;
    Dwfl_Module *module;        /* NULL when the file cannot be used */
    GElf_Addr bias;             /* address in dwfl = address in the file + bias */
    struct roll_text_pool name; /* all names that were given away: they outlive what libdwfl has read */
    struct seen *seen;          /* addresses that were looked up */
    size_t seen_used, seen_room;
    pthread_mutex_t
        lock; /* guards all members except path and build id: libdwfl's objects are for one thread at a time */
};

/* An address that was looked up, and its frames. */
struct seen {
    uint64_t address;
    size_t frames;
    struct roll_symbol_frame frame[SEEN_FRAMES];
};

static int find_no_elf(Dwfl_Module *module, void **user, const char *name, Dwarf_Addr base, char **file, Elf **elf)
{
    (void)module, (void)user, (void)name, (void)base, (void)file, (void)elf;
    return -1;
}

static int find_local_debuginfo(Dwfl_Module *module, void **user, const char *name, Dwarf_Addr base, const char *file,
                                const char *link, GElf_Word crc, char **out)
{
    return dwfl_build_id_find_debuginfo(module, user, name, base, file, link, crc, out);
}

static const Dwfl_Callbacks callbacks = {
    .find_elf = find_no_elf,
    .find_debuginfo = find_local_debuginfo,
    .section_address = dwfl_offline_section_address,
};

struct roll_symbol_file *roll_symbol_file_new(const char *path, size_t path_bytes, const uint8_t *build_id,
                                              size_t build_id_bytes)
{
    struct roll_symbol_file *file = calloc(1, sizeof(*file));
    if (file == NULL) {
        return NULL;
    }
    file->path = strndup(path, path_bytes);
    if (file->path == NULL) {
        free(file);
        return NULL;
    }
    file->build_id_bytes = build_id_bytes < sizeof(file->build_id) ? build_id_bytes : sizeof(file->build_id);
    memcpy(file->build_id, build_id, file->build_id_bytes);
    pthread_mutex_init(&file->lock, NULL);
    return file;
}

static void close_file(struct roll_symbol_file *file)
{
    if (file->dwfl != NULL) {
        dwfl_end(file->dwfl);
    }
    file->dwfl = NULL;
    file->module = NULL;
    file->opened = false;
}

void roll_symbol_file_rest(struct roll_symbol_file *file)
{
    pthread_mutex_lock(&file->lock);
    close_file(file);
    pthread_mutex_unlock(&file->lock);
}

bool roll_symbol_file_is_open(struct roll_symbol_file *file)
{
    pthread_mutex_lock(&file->lock);
    bool is_open = file->dwfl != NULL;
    pthread_mutex_unlock(&file->lock);
    return is_open;
}

void roll_symbol_file_destroy(struct roll_symbol_file **self)
{
    struct roll_symbol_file *file = *self;
    if (file == NULL) {
        return;
    }
    close_file(file);
    roll_text_pool_fini(&file->name);
    pthread_mutex_destroy(&file->lock);
    free(file->seen);
    free(file->path);
    free(file);
    *self = NULL;
}

bool roll_symbol_file_is(const struct roll_symbol_file *file, const char *path, size_t path_bytes,
                         const uint8_t *build_id, size_t build_id_bytes)
{
    return file->build_id_bytes == build_id_bytes && memcmp(file->build_id, build_id, build_id_bytes) == 0 &&
           strlen(file->path) == path_bytes && memcmp(file->path, path, path_bytes) == 0;
}

const char *roll_symbol_file_path(const struct roll_symbol_file *file)
{
    return file->path;
}

static bool same_build(const struct roll_symbol_file *file, Dwfl_Module *module)
{
    const unsigned char *bits;
    GElf_Addr where;
    int bytes = dwfl_module_build_id(module, &bits, &where);
    if (file->build_id_bytes == 0) {
        return true;
    }
    return bytes > 0 && (size_t)bytes >= file->build_id_bytes &&
           memcmp(bits, file->build_id, file->build_id_bytes) == 0;
}

int roll_symbol_file_open(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd >= 0 && (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void open_file(struct roll_symbol_file *file)
{
    file->opened = true;
    if (file->path[0] != '/') {
        return; /* "[vdso]", or a path relative to an unknown directory */
    }
    int fd = roll_symbol_file_open(file->path);
    file->dwfl = fd >= 0 ? dwfl_begin(&callbacks) : NULL;
    if (file->dwfl == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        return;
    }
    dwfl_report_begin(file->dwfl);
    Dwfl_Module *module = dwfl_report_offline(file->dwfl, file->path, file->path, fd);
    if (module == NULL) {
        close(fd); /* dwfl owns the descriptor only when it succeeds */
    }
    dwfl_report_end(file->dwfl, NULL, NULL);
    GElf_Addr bias;
    if (module != NULL && same_build(file, module) && dwfl_module_getelf(module, &bias) != NULL) {
        file->module = module;
        file->bias = bias;
    }
}

typedef char *demangler(const char *mangled, char *buffer, size_t *bytes, int *status);

static demangler *demangler_function; /* NULL: there is none */
static pthread_once_t demangler_once = PTHREAD_ONCE_INIT;

static void find_demangler(void)
{
    *(void **)&demangler_function = dlsym(RTLD_DEFAULT, "__cxa_demangle");
}

/* The name as it is shown, kept. C++ names become readable where the process has the C++ runtime anyway (libzmq brings
 * it); else they stay as they are. */
static const char *demangle(struct roll_symbol_file *file, const char *name)
{
    if (name == NULL) {
        return "";
    }
    pthread_once(&demangler_once, find_demangler);
    int status = -1;
    bool mangled = strncmp(name, "_Z", 2) == 0 && demangler_function != NULL;
    char *text = mangled ? demangler_function(name, NULL, NULL, &status) : NULL;
    const char *kept = roll_text_keep(&file->name, text != NULL ? text : name);
    free(text);
    return kept;
}

static const char *die_name(struct roll_symbol_file *file, Dwarf_Die *die)
{
    Dwarf_Attribute attribute;
    const char *linkage = dwarf_formstring(dwarf_attr_integrate(die, DW_AT_linkage_name, &attribute));
    return demangle(file, linkage != NULL ? linkage : dwarf_diename(die));
}

/* Reads where an inlined function was called from, which its entry in the debug information says. */
static void call_place(struct roll_symbol_file *file, Dwarf_Die *cu, Dwarf_Die *inlined, const char **path,
                       unsigned *line)
{
    Dwarf_Attribute attribute;
    Dwarf_Word number = 0;
    *path = "";
    *line = 0;
    if (dwarf_formudata(dwarf_attr(inlined, DW_AT_call_line, &attribute), &number) == 0) {
        *line = (unsigned)number;
    }
    Dwarf_Files *files;
    size_t count;
    if (dwarf_formudata(dwarf_attr(inlined, DW_AT_call_file, &attribute), &number) == 0 &&
        dwarf_getsrcfiles(cu, &files, &count) == 0) {
        const char *name = dwarf_filesrc(files, (size_t)number, NULL, NULL);
        *path = name != NULL ? roll_text_keep(&file->name, name) : "";
    }
}

/* The compilation unit that holds an address; *bias turns dwfl's addresses into its own. Not every compiler writes the
 * table by which libdwfl finds it (clang does not): then the units are asked one by one. */
static Dwarf_Die *find_unit(struct roll_symbol_file *file, GElf_Addr address, Dwarf_Addr *bias)
{
    Dwarf_Die *unit = dwfl_module_addrdie(file->module, address, bias);
    if (unit != NULL) { /* the table is by ranges, and a range may hold code without debug information */
        return dwarf_haspc(unit, address - *bias) == 1 ? unit : NULL;
    }
    while ((unit = dwfl_module_nextcu(file->module, unit, bias)) != NULL) {
        if (dwarf_haspc(unit, address - *bias) == 1) {
            return unit;
        }
    }
    return NULL;
}

static void set_line(struct roll_symbol_file *file, Dwarf_Die *unit, Dwarf_Addr address,
                     struct roll_symbol_frame *frame)
{
    Dwarf_Line *line = dwarf_getsrc_die(unit, address);
    const char *source = line != NULL ? dwarf_linesrc(line, NULL, NULL) : NULL;
    int number = 0;
    if (source != NULL && dwarf_lineno(line, &number) == 0 && number > 0) {
        frame->file = roll_text_keep(&file->name, source);
        frame->line = (unsigned)number;
    }
}

/* Functions around the address (in the unit's numbering), innermost first; 0 when the debug information has none. */
static size_t dwarf_frames(struct roll_symbol_file *file, Dwarf_Die *cu, Dwarf_Addr address,
                           const struct roll_symbol_frame *base, struct roll_symbol_frame *out, size_t max)
{
    Dwarf_Die *scope = NULL;
    int scopes = dwarf_getscopes(cu, address, &scope);
    if (scopes <= 0) {
        return 0;
    }
    /* The first answer leaves the physical nesting at an inlined function's own declaration; asking again for the
     * innermost scope gives the nesting as the code lies. */
    Dwarf_Die innermost = scope[0];
    free(scope);
    scope = NULL;
    scopes = dwarf_getscopes_die(&innermost, &scope);
    struct roll_symbol_frame frame = *base;
    size_t n = 0;
    for (int i = 0; i < scopes && n < max; i++) {
        int tag = dwarf_tag(&scope[i]);
        if (tag != DW_TAG_inlined_subroutine && tag != DW_TAG_subprogram) {
            continue;
        }
        frame.function = die_name(file, &scope[i]);
        out[n++] = frame;
        if (tag == DW_TAG_subprogram) {
            break;
        }
        call_place(file, cu, &scope[i], &frame.file, &frame.line);
    }
    free(scope);
    return n;
}

static size_t look_up(struct roll_symbol_file *file, uint64_t address, struct roll_symbol_frame *out, size_t max)
{
    if (!file->opened) {
        open_file(file);
    }
    struct roll_symbol_frame base = {.function = "", .file = "", .module = file->path, .offset = address};
    if (file->module == NULL) {
        out[0] = base;
        return 1;
    }
    GElf_Addr there = address + file->bias;
    Dwarf_Addr bias = 0;
    Dwarf_Die *unit = find_unit(file, there, &bias);
    size_t n = 0;
    if (unit != NULL) {
        set_line(file, unit, there - bias, &base);
        n = dwarf_frames(file, unit, there - bias, &base, out, max);
    }
    if (n == 0) {
        GElf_Off offset;
        GElf_Sym symbol;
        base.function = demangle(file, dwfl_module_addrinfo(file->module, there, &offset, &symbol, NULL, NULL, NULL));
        out[0] = base;
        n = 1;
    }
    return n;
}

static const struct seen *find_seen(const struct roll_symbol_file *file, uint64_t address)
{
    for (size_t i = 0; i < file->seen_used; i++) {
        if (file->seen[i].address == address) {
            return &file->seen[i];
        }
    }
    return NULL;
}

/* Looks the address up and remembers it; NULL when there is no room to remember it. */
static const struct seen *see(struct roll_symbol_file *file, uint64_t address)
{
    if (file->seen_used == SEEN_MOST || ROLL_GROW(file->seen, file->seen_room, file->seen_used + 1) != 0) {
        return NULL;
    }
    struct seen *seen = &file->seen[file->seen_used++];
    seen->address = address;
    seen->frames = look_up(file, address, seen->frame, SEEN_FRAMES);
    return seen;
}

static size_t copy_seen(const struct seen *seen, struct roll_symbol_frame *out, size_t max)
{
    size_t n = seen->frames < max ? seen->frames : max;
    memcpy(out, seen->frame, n * sizeof(*out));
    return n;
}

size_t roll_symbol_file_known(struct roll_symbol_file *file, uint64_t address, struct roll_symbol_frame *out,
                              size_t max)
{
    size_t n = 0;
    if (pthread_mutex_trylock(&file->lock) != 0) {
        return 0;
    }
    const struct seen *seen = find_seen(file, address);
    if (seen != NULL) {
        n = copy_seen(seen, out, max);
    }
    pthread_mutex_unlock(&file->lock);
    return n;
}

size_t roll_symbol_file_frames(struct roll_symbol_file *file, uint64_t address, struct roll_symbol_frame *out,
                               size_t max)
{
    if (max == 0) {
        return 0;
    }
    pthread_mutex_lock(&file->lock);
    const struct seen *seen = find_seen(file, address);
    seen = seen != NULL ? seen : see(file, address);
    size_t n = seen != NULL ? copy_seen(seen, out, max) : look_up(file, address, out, max);
    pthread_mutex_unlock(&file->lock);
    return n;
}
