/*
 * elf_write.c: writes a shared object that offers functions which do nothing. A compiler was rejected, because the
 * machine on which a job is rehearsed may have none, and libraries made beforehand, because every release of a
 * framework wants other symbols. What is needed of the format is small: all functions of a kind share the same few
 * bytes of code, so there is nothing to relocate.
 *
 * In the file: headers, symbols, strings, hash table, versions and code in one segment, which is read and run; the
 * dynamic table, and room for what handles point at, in a second one, which the loader may write.
 */
#include "hostnccl/standin/standin.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    ALIGN = 0x10000, /* the largest page of both machines */
    HANDLE_BYTES = 4096,
    HEADERS = 4,
    ENTRIES = 12, /* of the dynamic table, at most */
    BASE_VERSION = 1
};

/* A file in memory. */
struct image {
    char *bytes;
    size_t size, room;
    bool is_short; /* of memory */
};

/* Appends bytes (zeroes, where from is NULL) at a multiple of 16; returns their place. */
static size_t put(struct image *image, const void *from, size_t size)
{
    size_t place = (image->size + 15) / 16 * 16;
    if (place + size > image->room) {
        size_t room = 2 * (place + size);
        char *grown = realloc(image->bytes, room);
        if (!grown) {
            image->is_short = true;
            return 0;
        }
        memset(grown + image->room, 0, room - image->room);
        image->bytes = grown;
        image->room = room;
    }
    if (from) {
        memcpy(image->bytes + place, from, size);
    }
    image->size = place + size;
    return place;
}

/* Strings, each with its zero; the first is empty. */
struct strings {
    char *bytes;
    size_t size;
    bool is_short;
};

static uint32_t string(struct strings *strings, const char *text)
{
    size_t place = strings->size, size = strlen(text) + 1;
    char *grown = realloc(strings->bytes, place + size);
    if (!grown) {
        strings->is_short = true;
        return 0;
    }
    strings->bytes = grown;
    memcpy(grown + place, text, size);
    strings->size = place + size;
    return (uint32_t)place;
}

/* The hash of System V's format. */
static uint32_t hash(const char *name)
{
    uint32_t h = 0;
    for (; *name; name++) {
        h = (h << 4) + (unsigned char)*name;
        h = (h ^ ((h & 0xf0000000) >> 24)) & 0x0fffffff;
    }
    return h;
}

static size_t put_hash(struct image *image, const struct stand_in *s)
{
    size_t symbols = s->offer_count + 1;
    uint32_t *table = calloc(2 + 2 * symbols, sizeof(*table));
    if (!table) {
        image->is_short = true;
        return 0;
    }
    uint32_t *buckets = table + 2, *chains = buckets + symbols;
    table[0] = table[1] = (uint32_t)symbols;
    for (size_t i = 1; i < symbols; i++) {
        uint32_t *bucket = &buckets[hash(s->offers[i - 1].name) % symbols];
        chains[i] = *bucket;
        *bucket = (uint32_t)i;
    }
    size_t place = put(image, table, (2 + 2 * symbols) * sizeof(*table));
    free(table);
    return place;
}

/* One definition of a version: a head and its name. The first stands for the library. */
static size_t put_versions(struct image *image, const struct stand_in *s, struct strings *strings)
{
    struct {
        Elf64_Verdef head;
        Elf64_Verdaux name;
    } one;
    size_t place = 0;
    for (size_t i = 0; i <= s->version_count; i++) {
        const char *name = i ? s->versions[i - 1] : s->soname;
        memset(&one, 0, sizeof(one));
        one.head.vd_version = VER_DEF_CURRENT;
        one.head.vd_flags = i ? 0 : VER_FLG_BASE;
        one.head.vd_ndx = (uint16_t)(BASE_VERSION + i);
        one.head.vd_cnt = 1;
        one.head.vd_hash = hash(name);
        one.head.vd_aux = sizeof(one.head);
        one.name.vda_name = string(strings, name);
        size_t stride = (sizeof(one) + 15) / 16 * 16; /* as put() lays them out */
        one.head.vd_next = i < s->version_count ? (uint32_t)stride : 0;
        size_t at = put(image, &one, sizeof(one));
        place = i ? place : at;
    }
    return place;
}

static size_t put_version_numbers(struct image *image, const struct stand_in *s)
{
    size_t place = put(image, NULL, (s->offer_count + 1) * sizeof(uint16_t));
    for (size_t i = 0; i < s->offer_count && !image->is_short; i++) {
        uint16_t number = (uint16_t)(BASE_VERSION + s->offers[i].version);
        memcpy(image->bytes + place + (i + 1) * sizeof(number), &number, sizeof(number));
    }
    return place;
}

/* The code: first "return 0", then "write a handle, return 0", of which the address of the handle is filled in. A test
 * on one machine looks at what would be written on the other one. */
#if defined(__x86_64__) && !defined(STANDIN_WRITES_AARCH64)
enum { MACHINE = EM_X86_64, CREATE_AT = 16 };
static const unsigned char code[] = {
    0xf3, 0x0f, 0x1e, 0xfa,                /* endbr64 */
    0x31, 0xc0, 0xc3,                      /* xor eax, eax; ret */
    0,    0,    0,    0,    0, 0, 0, 0, 0, /* up to 16 */
    0xf3, 0x0f, 0x1e, 0xfa,                /* endbr64 */
    0x48, 0x85, 0xff,                      /* test rdi, rdi */
    0x74, 0x0a,                            /* je 10 further */
    0x48, 0x8d, 0x05, 0,    0, 0, 0,       /* lea rax, [rip + distance], at 25 */
    0x48, 0x89, 0x07,                      /* mov [rdi], rax */
    0x31, 0xc0, 0xc3,                      /* xor eax, eax; ret */
};

static void aim(char *place, size_t code_at, size_t handle_at)
{
    int32_t distance = (int32_t)(handle_at - (code_at + 32)); /* counted from the end of lea */
    memcpy(place + 28, &distance, sizeof(distance));
}
#else
enum { MACHINE = EM_AARCH64, CREATE_AT = 16 };
static const uint32_t code[] = {
    0xd503245f,             /* bti c */
    0x52800000, 0xd65f03c0, /* mov w0, 0; ret */
    0,          0xd503245f, /* bti c */
    0xb4000080,             /* cbz x0, 4 further */
    0x90000001,             /* adrp x1, page */
    0x91000021,             /* add x1, x1, offset */
    0xf9000001,             /* str x1, [x0] */
    0x52800000, 0xd65f03c0, /* mov w0, 0; ret */
};

static void aim(char *place, size_t code_at, size_t handle_at)
{
    uint32_t pages = (uint32_t)((handle_at >> 12) - ((code_at + 24) >> 12)); /* the handle begins a page */
    uint32_t adrp = code[6] | (pages & 3) << 29 | (pages >> 2 & 0x7ffff) << 5;
    memcpy(place + 24, &adrp, sizeof(adrp));
}
#endif

static bool creates(const char *name)
{
    return strstr(name, "Create") || strstr(name, "create");
}

static size_t put_symbols(struct image *image, const struct stand_in *s, struct strings *strings)
{
    size_t place = put(image, NULL, (s->offer_count + 1) * sizeof(Elf64_Sym));
    for (size_t i = 0; i < s->offer_count && !image->is_short; i++) {
        Elf64_Sym symbol = {.st_name = string(strings, s->offers[i].name),
                            .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                            .st_shndx = 1, /* of no section: any number but that of undefined symbols */
                            .st_size = CREATE_AT};
        memcpy(image->bytes + place + (i + 1) * sizeof(symbol), &symbol, sizeof(symbol));
    }
    return place;
}

/* Where the parts lie. */
struct layout {
    size_t symbols, hash, numbers, versions, strings, code, data, dynamic;
};

static void put_dynamic(struct image *image, const struct stand_in *s, struct layout *l, uint32_t soname,
                        uint32_t needed, size_t string_bytes)
{
    Elf64_Dyn table[ENTRIES] = {
        {.d_tag = DT_SONAME, .d_un.d_val = soname},
        {.d_tag = DT_NEEDED, .d_un.d_val = needed},
        {.d_tag = DT_HASH, .d_un.d_ptr = l->hash},
        {.d_tag = DT_SYMTAB, .d_un.d_ptr = l->symbols},
        {.d_tag = DT_STRTAB, .d_un.d_ptr = l->strings},
        {.d_tag = DT_STRSZ, .d_un.d_val = string_bytes},
        {.d_tag = DT_SYMENT, .d_un.d_val = sizeof(Elf64_Sym)},
    };
    size_t count = 7;
    if (s->version_count) {
        table[count++] = (Elf64_Dyn){.d_tag = DT_VERSYM, .d_un.d_ptr = l->numbers};
        table[count++] = (Elf64_Dyn){.d_tag = DT_VERDEF, .d_un.d_ptr = l->versions};
        table[count++] = (Elf64_Dyn){.d_tag = DT_VERDEFNUM, .d_un.d_val = s->version_count + 1};
    }
    l->dynamic = put(image, table, sizeof(table)); /* the last entry is DT_NULL, 0 */
}

static void put_headers(struct image *image, const struct layout *l, size_t read_bytes)
{
    Elf64_Ehdr head = {.e_type = ET_DYN,
                       .e_machine = MACHINE,
                       .e_version = EV_CURRENT,
                       .e_phoff = sizeof(head),
                       .e_ehsize = sizeof(head),
                       .e_phentsize = sizeof(Elf64_Phdr),
                       .e_phnum = HEADERS};
    size_t written = image->size - l->data, dynamic = sizeof(Elf64_Dyn[ENTRIES]);
    const Elf64_Phdr parts[HEADERS] = {
        {.p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_filesz = read_bytes, .p_memsz = read_bytes, .p_align = ALIGN},
        {.p_type = PT_LOAD,
         .p_flags = PF_R | PF_W,
         .p_offset = l->data,
         .p_vaddr = l->data,
         .p_paddr = l->data,
         .p_filesz = written,
         .p_memsz = written,
         .p_align = ALIGN},
        {.p_type = PT_DYNAMIC,
         .p_flags = PF_R | PF_W,
         .p_offset = l->dynamic,
         .p_vaddr = l->dynamic,
         .p_paddr = l->dynamic,
         .p_filesz = dynamic,
         .p_memsz = dynamic,
         .p_align = 8},
        {.p_type = PT_GNU_STACK, .p_flags = PF_R | PF_W, .p_align = 16},
    };
    memcpy(head.e_ident, ELFMAG, SELFMAG);
    head.e_ident[EI_CLASS] = ELFCLASS64;
    head.e_ident[EI_DATA] = ELFDATA2LSB;
    head.e_ident[EI_VERSION] = EV_CURRENT;
    memcpy(image->bytes, &head, sizeof(head));
    memcpy(image->bytes + sizeof(head), parts, sizeof(parts));
}

/* Symbols get their addresses when the code has its place. */
static void aim_symbols(struct image *image, const struct stand_in *s, const struct layout *l)
{
    for (size_t i = 0; i < s->offer_count; i++) {
        char *at = image->bytes + l->symbols + (i + 1) * sizeof(Elf64_Sym) + offsetof(Elf64_Sym, st_value);
        Elf64_Addr value = l->code + (creates(s->offers[i].name) ? CREATE_AT : 0);
        memcpy(at, &value, sizeof(value));
    }
    aim(image->bytes + l->code, l->code, l->data);
}

/* -1 with errno. */
static int store(const struct image *image, const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    if (file < 0) {
        return -1;
    }
    size_t done = 0;
    while (done < image->size) {
        ssize_t n = write(file, image->bytes + done, image->size - done);
        if (n <= 0) {
            close(file);
            return -1;
        }
        done += (size_t)n;
    }
    return close(file);
}

int stand_in_write(const struct stand_in *s, const char *needed, const char *path)
{
    struct image image = {0};
    struct strings strings = {0};
    struct layout l = {0};
    put(&image, NULL, sizeof(Elf64_Ehdr) + HEADERS * sizeof(Elf64_Phdr));
    string(&strings, "");
    uint32_t soname = string(&strings, s->soname), other = string(&strings, needed);
    l.symbols = put_symbols(&image, s, &strings);
    l.hash = put_hash(&image, s);
    if (s->version_count) {
        l.numbers = put_version_numbers(&image, s);
        l.versions = put_versions(&image, s, &strings);
    }
    l.strings = put(&image, strings.bytes, strings.size);
    l.code = put(&image, code, sizeof(code));
    size_t read_bytes = image.size;
    l.data = (image.size + ALIGN - 1) / ALIGN * ALIGN;
    image.size = l.data;
    put(&image, NULL, HANDLE_BYTES);
    put_dynamic(&image, s, &l, soname, other, strings.size);
    int rc = -1;
    if (image.is_short || strings.is_short) {
        errno = ENOMEM;
    } else {
        aim_symbols(&image, s, &l);
        put_headers(&image, &l, read_bytes);
        rc = store(&image, path);
    }
    free(image.bytes);
    free(strings.bytes);
    return rc;
}
