/*
 * test_aarch64.c: the library that is written on an AArch64 machine, looked at on any: its tables lead to its symbols,
 * and its code, run by the few instructions that it has, returns 0 and writes the address of a handle.
 */
#include <elf.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "hostnccl/standin/standin.h"

static char *file;
static size_t file_size;

static void read_back(const char *path)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    file_size = (size_t)ftell(f);
    rewind(f);
    file = malloc(file_size);
    assert_non_null(file);
    assert_int_equal(fread(file, 1, file_size, f), file_size);
    fclose(f);
}

/* Bytes at an address: addresses are places in the file. */
static const void *at(uint64_t place, size_t bytes)
{
    assert_true(place < file_size && bytes <= file_size - place);
    return file + place;
}

static uint64_t entry(int64_t tag)
{
    Elf64_Ehdr head;
    memcpy(&head, at(0, sizeof(head)), sizeof(head));
    for (int i = 0; i < head.e_phnum; i++) {
        Elf64_Phdr part;
        memcpy(&part, at(head.e_phoff + (size_t)i * sizeof(part), sizeof(part)), sizeof(part));
        for (size_t k = 0; part.p_type == PT_DYNAMIC && k < part.p_filesz / sizeof(Elf64_Dyn); k++) {
            Elf64_Dyn dyn;
            memcpy(&dyn, at(part.p_offset + k * sizeof(dyn), sizeof(dyn)), sizeof(dyn));
            if (dyn.d_tag == tag) {
                return dyn.d_un.d_val;
            }
        }
    }
    fail_msg("no entry %lld", (long long)tag);
    return 0;
}

static const char *text_at(uint64_t offset)
{
    assert_true(offset < entry(DT_STRSZ));
    return at(entry(DT_STRTAB) + offset, 1);
}

static uint32_t word(uint64_t place)
{
    uint32_t value;
    memcpy(&value, at(place, sizeof(value)), sizeof(value));
    return value;
}

/* The symbol as the loader finds it; 0 where it is not found. Also gives its number. */
static uint64_t look_up(const char *name, uint32_t *number)
{
    uint32_t h = 0;
    for (const char *c = name; *c; c++) {
        h = (h << 4) + (unsigned char)*c;
        h = (h ^ ((h & 0xf0000000) >> 24)) & 0x0fffffff;
    }
    uint64_t table = entry(DT_HASH);
    uint32_t buckets = word(table), count = word(table + 4);
    for (uint32_t i = word(table + 8 + 4 * (h % buckets)); i; i = word(table + 8 + 4 * (buckets + (uint64_t)i))) {
        Elf64_Sym symbol;
        assert_true(i < count);
        memcpy(&symbol, at(entry(DT_SYMTAB) + i * sizeof(symbol), sizeof(symbol)), sizeof(symbol));
        if (strcmp(text_at(symbol.st_name), name) == 0) {
            assert_int_equal(symbol.st_info, ELF64_ST_INFO(STB_GLOBAL, STT_FUNC));
            assert_int_not_equal(symbol.st_shndx, SHN_UNDEF);
            *number = i;
            return symbol.st_value;
        }
    }
    return 0;
}

/* Runs a function with its first parameter; what it stored through that goes to *stored. Its result. */
static uint64_t run(uint64_t pc, uint64_t x0, uint64_t *stored)
{
    uint64_t x[2] = {x0, 0};
    for (int steps = 0; steps < 32; steps++) {
        uint32_t code = word(pc);
        uint64_t next = pc + 4;
        if (code == 0xd503245f) { /* bti c: where a call may land */
            assert_int_equal(steps, 0);
        } else if (code == 0xd65f03c0) { /* ret */
            return x[0];
        } else if (code == 0x52800000) { /* mov w0, 0 */
            x[0] = 0;
        } else if ((code & 0xff00001f) == 0xb4000000) { /* cbz x0, forward */
            next = x[0] ? next : pc + 4 * (code >> 5 & 0x3ffff);
        } else if ((code & 0x9f00001f) == 0x90000001) { /* adrp x1, forward */
            x[1] =
                (pc & ~UINT64_C(0xfff)) + ((uint64_t)(code >> 5 & 0x7ffff) << 14) + ((uint64_t)(code >> 29 & 3) << 12);
        } else if ((code & 0xffc003ff) == 0x91000021) { /* add x1, x1, number */
            x[1] += code >> 10 & 0xfff;
        } else if (code == 0xf9000001) { /* str x1, [x0] */
            assert_int_not_equal(x[0], 0);
            *stored = x[1];
        } else {
            fail_msg("an instruction that this test does not know: %08x", code);
        }
        pc = next;
    }
    fail_msg("the function does not return");
    return 0;
}

static void test_the_loader_and_the_processor_find_what_they_need(void **state)
{
    (void)state;
    struct offer offers[] = {{"cublasSgemm_v2", 1}, {"cublasCreate_v2", 1}, {"cublasSetStream_v2", 2}, {"plain", 0}};
    char *versions[] = {"libcublas.so.12", "libcublas.so.12.1"};
    const struct stand_in library = {
        .soname = "libcublas.so.12", .offers = offers, .offer_count = 4, .versions = versions, .version_count = 2};
    char path[] = "/tmp/standin-XXXXXX";
    int made = mkstemp(path);
    assert_true(made >= 0);
    close(made);
    assert_int_equal(stand_in_write(&library, "libhoststandin.so", path), 0);
    read_back(path);
    unlink(path);

    Elf64_Ehdr head;
    memcpy(&head, at(0, sizeof(head)), sizeof(head));
    assert_memory_equal(head.e_ident, ELFMAG, SELFMAG);
    assert_int_equal(head.e_machine, EM_AARCH64);
    assert_int_equal(head.e_type, ET_DYN);
    uint64_t code_end = 0, data = 0, data_end = 0;
    for (int i = 0; i < head.e_phnum; i++) {
        Elf64_Phdr part;
        memcpy(&part, at(head.e_phoff + (size_t)i * sizeof(part), sizeof(part)), sizeof(part));
        if (part.p_type == PT_LOAD) {
            assert_int_equal(part.p_align, 0x10000); /* the largest page of AArch64 */
            assert_int_equal(part.p_offset % part.p_align, part.p_vaddr % part.p_align);
            code_end = part.p_flags & PF_X ? part.p_vaddr + part.p_filesz : code_end;
            data = part.p_flags & PF_W ? part.p_vaddr : data;
            data_end = part.p_flags & PF_W ? part.p_vaddr + part.p_memsz : data_end;
            assert_int_not_equal(part.p_flags & (PF_W | PF_X), PF_W | PF_X);
        }
    }
    assert_string_equal(text_at(entry(DT_SONAME)), "libcublas.so.12");
    assert_string_equal(text_at(entry(DT_NEEDED)), "libhoststandin.so");
    assert_int_equal(entry(DT_VERDEFNUM), 3);

    uint32_t number = 0;
    for (size_t i = 0; i < 4; i++) {
        uint64_t function = look_up(offers[i].name, &number), stored = 0;
        uint16_t version;
        assert_int_not_equal(function, 0);
        assert_true(function % 4 == 0 && function < code_end);
        memcpy(&version, at(entry(DT_VERSYM) + 2 * (uint64_t)number, sizeof(version)), sizeof(version));
        assert_int_equal(version, 1 + offers[i].version);
        assert_int_equal(run(function, 0, &stored), 0); /* a null pointer is nothing to write through */
        assert_int_equal(stored, 0);
        assert_int_equal(run(function, 8, &stored), 0);
        if (i == 1) { /* a handle is an address that may be read and written */
            assert_true(stored >= data && stored + 4096 <= data_end);
        } else {
            assert_int_equal(stored, 0);
        }
    }
    assert_int_equal(look_up("cublasDestroy_v2", &number), 0);
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_loader_and_the_processor_find_what_they_need),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
