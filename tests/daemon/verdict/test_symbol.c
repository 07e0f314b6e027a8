/*
 * test_symbol.c: call sites of this very program, by its own debug information and without it.
 *
 * The functions below note where they were called from and on which line; copies of the program without debug
 * information and without symbols lie beside it (CMakeLists.txt).
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/stack/symbol.h"
#include "trace/err.h"

#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t noted_pc;
static volatile int keep;

/* Not a tail call, not inlined: its return address lies behind the call in its caller. */
static __attribute__((noinline)) void note(void)
{
    noted_pc = (uint64_t)(uintptr_t)__builtin_return_address(0);
    keep++;
}

static unsigned plain_line;
__attribute__((noinline)) void plain_caller(void);
void plain_caller(void)
{
    plain_line = __LINE__ + 1;
    note();
    keep++;
}

static unsigned inner_line;
static inline __attribute__((always_inline)) void inlined_caller(void)
{
    inner_line = __LINE__ + 1;
    note();
    keep++;
}

static unsigned outer_line;
__attribute__((noinline)) void outer_caller(void);
void outer_caller(void)
{
    outer_line = __LINE__ + 1;
    inlined_caller();
    keep++;
}

/* What a C++ compiler would call moe::train(). */
__attribute__((noinline)) void mangled_caller(void) __asm__("_ZN3moe5trainEv");
void mangled_caller(void)
{
    note();
    keep++;
}

struct self {
    struct roll_def def;
    char path[4096];
};

static void find_build_id(const struct dl_phdr_info *info, struct roll_def_module *module)
{
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_NOTE) {
            continue;
        }
        const char *p = (const char *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        const char *end = p + info->dlpi_phdr[i].p_memsz;
        while (p + sizeof(ElfW(Nhdr)) <= end) {
            const ElfW(Nhdr) *head = (const ElfW(Nhdr) *)(const void *)p;
            const char *desc = p + sizeof(*head) + ((head->n_namesz + 3) & ~3u);
            if (head->n_type == NT_GNU_BUILD_ID && head->n_descsz <= 20) {
                module->build_id_bytes = head->n_descsz;
                memcpy(module->build_id, desc, head->n_descsz);
            }
            p = desc + ((head->n_descsz + 3) & ~3u);
        }
    }
}

static int find_self(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    struct roll_def_module *module = arg;
    module->bias = info->dlpi_addr;
    module->start = UINT64_MAX;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_LOAD) {
            uint64_t start = info->dlpi_addr + segment->p_vaddr;
            module->start = start < module->start ? start : module->start;
            module->end = start + segment->p_memsz > module->end ? start + segment->p_memsz : module->end;
        }
    }
    find_build_id(info, module);
    return 1; /* the first one is the program */
}

static struct self read_self(const char *suffix)
{
    struct self self = {.def = {.type = ROLL_DEF_MODULE, .id = 1}};
    ssize_t n = readlink("/proc/self/exe", self.path, sizeof(self.path) - 32);
    assert_true(n > 0);
    strcpy(self.path + n, suffix);
    dl_iterate_phdr(find_self, &self.def.module.info);
    self.def.module.info.path_bytes = (uint32_t)strlen(self.path);
    return self;
}

static void define_self(roll_symbols_t *symbols, struct self *self)
{
    self->def.module.path = self->path;
    assert_int_equal(roll_symbols_define(symbols, 7, &self->def), 0);
}

static void define_callsite(roll_symbols_t *symbols, uint32_t id, uint64_t pc)
{
    struct roll_def def = {.type = ROLL_DEF_CALLSITE, .id = id, .callsite = {.depth = 1, .pc = {pc}}};
    assert_int_equal(roll_symbols_define(symbols, 7, &def), 0);
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text);
    return n >= strlen(end) && strcmp(text + n - strlen(end), end) == 0;
}

static void a_call_has_function_file_and_line(void **state)
{
    (void)state;
    struct self self = read_self("");
    assert_int_equal(self.def.module.info.build_id_bytes, 20);
    roll_symbols_t *symbols = roll_symbols_new();
    define_self(symbols, &self);
    plain_caller();
    define_callsite(symbols, 1, noted_pc);
    struct roll_symbol_frame frame[ROLL_SYMBOL_FRAMES];
    for (int twice = 0; twice < 2; twice++) { /* read, then remembered */
        assert_int_equal(roll_symbols_callsite(symbols, 7, 1, frame, ROLL_SYMBOL_FRAMES), 1);
        assert_string_equal(frame[0].function, "plain_caller");
        assert_true(ends_with(frame[0].file, "test_symbol.c"));
        assert_int_equal(frame[0].line, plain_line);
        assert_string_equal(frame[0].module, self.path);
        assert_int_equal(frame[0].offset, noted_pc - 1 - self.def.module.info.bias);
    }
    assert_int_equal(roll_symbols_callsite(symbols, 7, 1, frame, 0), 0);
    roll_symbols_destroy(&symbols);
    assert_null(symbols);
}

static void an_inlined_call_shows_both_functions(void **state)
{
    (void)state;
    struct self self = read_self("");
    roll_symbols_t *symbols = roll_symbols_new();
    define_self(symbols, &self);
    outer_caller();
    define_callsite(symbols, 2, noted_pc);
    struct roll_symbol_frame frame[ROLL_SYMBOL_FRAMES];
    assert_int_equal(roll_symbols_callsite(symbols, 7, 2, frame, ROLL_SYMBOL_FRAMES), 2);
    assert_string_equal(frame[0].function, "inlined_caller");
    assert_int_equal(frame[0].line, inner_line);
    assert_string_equal(frame[1].function, "outer_caller");
    assert_int_equal(frame[1].line, outer_line);
    assert_true(ends_with(frame[1].file, "test_symbol.c"));
    roll_symbols_destroy(&symbols);
}

static void lines_are_found_without_the_table_of_units(void **state)
{
    (void)state;
    struct self self = read_self(".noaranges");
    roll_symbols_t *symbols = roll_symbols_new();
    define_self(symbols, &self);
    outer_caller();
    define_callsite(symbols, 2, noted_pc);
    struct roll_symbol_frame frame[ROLL_SYMBOL_FRAMES];
    assert_int_equal(roll_symbols_callsite(symbols, 7, 2, frame, ROLL_SYMBOL_FRAMES), 2);
    assert_int_equal(frame[0].line, inner_line);
    assert_string_equal(frame[1].function, "outer_caller");
    assert_int_equal(frame[1].line, outer_line);
    roll_symbols_destroy(&symbols);
}

static void without_debug_information_the_symbol_remains(void **state)
{
    (void)state;
    struct self self = read_self(".nodebug");
    roll_symbols_t *symbols = roll_symbols_new();
    define_self(symbols, &self);
    plain_caller();
    define_callsite(symbols, 1, noted_pc);
    mangled_caller();
    define_callsite(symbols, 2, noted_pc);
    struct roll_symbol_frame frame;
    assert_int_equal(roll_symbols_callsite(symbols, 7, 1, &frame, 1), 1);
    assert_string_equal(frame.function, "plain_caller");
    assert_string_equal(frame.file, "");
    assert_int_equal(frame.line, 0);
    assert_int_equal(roll_symbols_callsite(symbols, 7, 2, &frame, 1), 1);
    bool runtime = dlsym(RTLD_DEFAULT, "__cxa_demangle") != NULL;
    assert_string_equal(frame.function, runtime ? "moe::train()" : "_ZN3moe5trainEv");
    roll_symbols_destroy(&symbols);
}

static void check_bare(struct self *self)
{
    roll_symbols_t *symbols = roll_symbols_new();
    define_self(symbols, self);
    plain_caller();
    define_callsite(symbols, 1, noted_pc);
    struct roll_symbol_frame frame;
    assert_int_equal(roll_symbols_callsite(symbols, 7, 1, &frame, 1), 1);
    assert_string_equal(frame.function, "");
    assert_string_equal(frame.file, "");
    assert_string_equal(frame.module, self->path);
    assert_int_equal(frame.offset, noted_pc - 1 - self->def.module.info.bias);
    roll_symbols_destroy(&symbols);
}

static void without_symbols_module_and_offset_remain(void **state)
{
    (void)state;
    struct self self = read_self(".stripped");
    check_bare(&self);
}

static void a_rebuilt_program_gives_no_wrong_line(void **state)
{
    (void)state;
    struct self self = read_self("");
    self.def.module.info.build_id[0] ^= 1;
    check_bare(&self);
}

static void a_missing_file_gives_module_and_offset(void **state)
{
    (void)state;
    struct self self = read_self(".gone");
    check_bare(&self);
}

static void an_address_outside_all_modules_is_shown_as_it_is(void **state)
{
    (void)state;
    roll_symbols_t *symbols = roll_symbols_new();
    define_callsite(symbols, 1, 0x1235);
    struct roll_symbol_frame frame;
    assert_int_equal(roll_symbols_callsite(symbols, 7, 1, &frame, 1), 1);
    assert_string_equal(frame.module, "");
    assert_int_equal(frame.offset, 0x1234);
    assert_int_equal(roll_symbols_callsite(symbols, 7, 2, &frame, 1), 0);
    assert_int_equal(roll_symbols_callsite(symbols, 8, 1, &frame, 1), 0);
    roll_symbols_destroy(&symbols);
}

static void frames_of_our_own_library_are_left_out(void **state)
{
    (void)state;
    roll_symbols_t *symbols = roll_symbols_new();
    struct roll_def module = {.type = ROLL_DEF_MODULE, .id = 1};
    module.module.info = (struct roll_def_module){.start = 0x1000, .end = 0x2000};
    module.module.path = "/usr/lib/librollcall.so";
    module.module.info.path_bytes = (uint32_t)strlen(module.module.path);
    assert_int_equal(roll_symbols_define(symbols, 7, &module), 0);
    struct roll_def site = {.type = ROLL_DEF_CALLSITE, .id = 1, .callsite = {.depth = 2, .pc = {0x1500, 0x9000}}};
    assert_int_equal(roll_symbols_define(symbols, 7, &site), 0);
    struct roll_symbol_frame frame[2];
    assert_int_equal(roll_symbols_callsite(symbols, 7, 1, frame, 2), 1);
    assert_int_equal(frame[0].offset, 0x8fff);
    roll_symbols_destroy(&symbols);
}

static void a_library_loaded_where_another_was_wins(void **state)
{
    (void)state;
    roll_symbols_t *symbols = roll_symbols_new();
    static const char *const paths[] = {"/nowhere/old.so", "/nowhere/new.so"};
    for (uint32_t i = 0; i < 2; i++) {
        struct roll_def module = {.type = ROLL_DEF_MODULE, .id = i + 1};
        module.module.info = (struct roll_def_module){.start = 0x1000, .end = 0x2000, .bias = 0x1000};
        module.module.path = paths[i];
        module.module.info.path_bytes = (uint32_t)strlen(paths[i]);
        assert_int_equal(roll_symbols_define(symbols, 7, &module), 0);
    }
    define_callsite(symbols, 1, 0x1501);
    struct roll_symbol_frame frame;
    assert_int_equal(roll_symbols_callsite(symbols, 7, 1, &frame, 1), 1);
    assert_string_equal(frame.module, "/nowhere/new.so");
    assert_int_equal(frame.offset, 0x500);
    roll_symbols_destroy(&symbols);
}

static void many_rings_with_many_call_sites_are_kept_apart(void **state)
{
    (void)state;
    roll_symbols_t *symbols = roll_symbols_new();
    for (uint64_t stream = 1; stream <= 300; stream++) {
        for (uint32_t id = 1; id <= 70; id += 23) {
            struct roll_def def = {
                .type = ROLL_DEF_CALLSITE, .id = id, .callsite = {.depth = 1, .pc = {stream * 1000 + id}}};
            assert_int_equal(roll_symbols_define(symbols, stream << 32, &def), 0);
        }
    }
    for (uint64_t stream = 1; stream <= 300; stream++) {
        struct roll_symbol_frame frame;
        assert_int_equal(roll_symbols_callsite(symbols, stream << 32, 70, &frame, 1), 1);
        assert_int_equal(frame.offset, stream * 1000 + 69);
        assert_int_equal(roll_symbols_callsite(symbols, stream << 32, 2, &frame, 1), 0);
    }
    roll_symbols_destroy(&symbols);
}

/* Whoever looks first, the same is shown: all call sites at once while the thread is at work, and after it had time. */
static void names_read_ahead_are_the_names(void **state)
{
    (void)state;
    struct self self = read_self("");
    struct roll_symbol_frame cold[ROLL_SYMBOL_FRAMES], warm[ROLL_SYMBOL_FRAMES];
    plain_caller();
    for (int wait = 0; wait < 3; wait++) {
        roll_symbols_t *late = roll_symbols_new(), *early = roll_symbols_new();
        roll_symbols_warm(early);
        roll_symbols_warm(early); /* once is enough */
        define_self(late, &self);
        define_self(early, &self);
        for (uint32_t id = 1; id <= 200; id++) {
            define_callsite(late, id, noted_pc - 3 * (id - 1));
            define_callsite(early, id, noted_pc - 3 * (id - 1));
        }
        usleep((unsigned)wait * 20000);
        for (uint32_t id = 1; id <= 200; id++) {
            int n = roll_symbols_callsite(late, 7, id, cold, ROLL_SYMBOL_FRAMES);
            assert_true(n > 0);
            assert_int_equal(roll_symbols_callsite(early, 7, id, warm, ROLL_SYMBOL_FRAMES), n);
            for (int i = 0; i < n; i++) {
                assert_string_equal(warm[i].function, cold[i].function);
                assert_string_equal(warm[i].file, cold[i].file);
                assert_string_equal(warm[i].module, cold[i].module);
                assert_int_equal(warm[i].line, cold[i].line);
                assert_int_equal(warm[i].offset, cold[i].offset);
            }
        }
        roll_symbols_destroy(&late);
        roll_symbols_destroy(&early);
    }
}

static unsigned threads(void)
{
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/task");
    assert_non_null(dir);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        n += entry->d_name[0] != '.';
    }
    closedir(dir);
    return n;
}

/* A root has a table for each run, and one for each case: one thread reads for all of them, and none is left when the
 * last one goes. Who goes while it waits takes nothing of the others' with it. */
static void all_tables_share_one_thread(void **state)
{
    (void)state;
    struct self self = read_self("");
    struct roll_symbol_frame frame[ROLL_SYMBOL_FRAMES];
    unsigned before = threads();
    plain_caller();
    for (int round = 0; round < 2; round++) { /* the second: it begins anew */
        roll_symbols_t *table[4];
        for (size_t i = 0; i < 4; i++) {
            table[i] = roll_symbols_new();
            roll_symbols_warm(table[i]);
            define_self(table[i], &self);
        }
        assert_int_equal(threads(), before + 1);
        for (uint32_t id = 1; id <= 200; id++) {
            for (size_t i = 0; i < 4; i++) {
                define_callsite(table[i], id, noted_pc - 3 * (id - 1));
            }
        }
        roll_symbols_destroy(&table[0]);
        roll_symbols_destroy(&table[2]);
        for (size_t i = 1; i < 4; i += 2) {
            assert_true(roll_symbols_callsite(table[i], 7, 1, frame, ROLL_SYMBOL_FRAMES) > 0);
            assert_string_equal(frame[0].function, "plain_caller");
            roll_symbols_destroy(&table[i]);
        }
        for (int i = 0; threads() > before && i < 30000; i++) { /* it is over before the kernel has taken it off */
            usleep(1000);
        }
        assert_int_equal(threads(), before);
    }
}

/* A daemon lives for months, and a program that is open costs megabytes. */
static void files_of_which_nothing_is_asked_are_closed(void **state)
{
    (void)state;
    struct self self = read_self("");
    struct roll_symbol_frame before[ROLL_SYMBOL_FRAMES], frame[ROLL_SYMBOL_FRAMES];
    roll_symbols_t *symbols = roll_symbols_new();
    roll_symbols_warm(symbols);
    define_self(symbols, &self);
    outer_caller();
    define_callsite(symbols, 1, noted_pc);
    assert_int_equal(roll_symbols_callsite(symbols, 7, 1, before, ROLL_SYMBOL_FRAMES), 2);
    for (int i = 0; roll_symbols_open(symbols) > 0 && i < 30000; i++) {
        usleep(10000);
    }
    assert_int_equal(roll_symbols_open(symbols), 0);
    /* What was told is still there, and is told again without the file. */
    assert_string_equal(before[0].function, "inlined_caller");
    assert_string_equal(before[1].function, "outer_caller");
    assert_true(ends_with(before[0].file, "test_symbol.c"));
    assert_int_equal(roll_symbols_callsite(symbols, 7, 1, frame, ROLL_SYMBOL_FRAMES), 2);
    assert_memory_equal(frame, before, 2 * sizeof(*frame));
    assert_int_equal(roll_symbols_open(symbols), 0);
    mangled_caller(); /* and what is new opens it again */
    define_callsite(symbols, 2, noted_pc);
    assert_int_equal(roll_symbols_callsite(symbols, 7, 2, frame, ROLL_SYMBOL_FRAMES), 1);
    assert_string_equal(frame[0].function, "moe::train()");
    roll_symbols_destroy(&symbols);
}

/* Who asks again and again, for all ranks, must neither read files nor wait for who does. */
static void what_is_known_by_now_is_told_without_reading(void **state)
{
    (void)state;
    for (int warm = 0; warm < 2; warm++) {
        struct self self = read_self("");
        struct roll_symbol_frame frame[ROLL_SYMBOL_FRAMES], known[ROLL_SYMBOL_FRAMES];
        char place[128], want[128];
        roll_symbols_t *symbols = roll_symbols_new();
        if (warm) {
            roll_symbols_warm(symbols);
        }
        define_self(symbols, &self);
        outer_caller();
        define_callsite(symbols, 1, noted_pc);
        int n = roll_symbols_known(symbols, 7, 1, known, ROLL_SYMBOL_FRAMES);
        if (!warm) {
            assert_int_equal(n, 0);
            assert_int_equal(roll_symbols_open(symbols), 0);
            assert_int_equal(roll_symbols_callsite(symbols, 7, 1, frame, ROLL_SYMBOL_FRAMES), 2);
            n = roll_symbols_known(symbols, 7, 1, known, ROLL_SYMBOL_FRAMES);
        }
        for (int i = 0; n == 0 && i < 30000; i++) { /* the thread comes to it */
            usleep(10000);
            n = roll_symbols_known(symbols, 7, 1, known, ROLL_SYMBOL_FRAMES);
        }
        assert_int_equal(n, 2);
        assert_int_equal(roll_symbols_callsite(symbols, 7, 1, frame, ROLL_SYMBOL_FRAMES), 2);
        assert_memory_equal(frame, known, 2 * sizeof(*frame));
        snprintf(want, sizeof(want), "test_symbol.c:%d inlined_caller", (int)inner_line);
        assert_true(roll_symbols_native_place(known, 2, place, sizeof(place)));
        assert_string_equal(place, want);
        known[0].line = 0; /* of the frames the innermost one whose line is known */
        snprintf(want, sizeof(want), "test_symbol.c:%d outer_caller", (int)outer_line);
        assert_true(roll_symbols_native_place(known, 2, place, sizeof(place)));
        assert_string_equal(place, want);
        known[1].python = true;
        assert_false(roll_symbols_native_place(known, 2, place, sizeof(place)));
        roll_symbols_destroy(&symbols);
    }
}

/* Lines of Python come first, as they were defined; a line that was never defined is left out; ids are a ring's own. */
static void lines_of_python_stand_first(void **state)
{
    (void)state;
    roll_symbols_t *symbols = roll_symbols_new();
    struct roll_symbol_frame frame[ROLL_SYMBOL_FRAMES];
    struct roll_def source = {.type = ROLL_DEF_SOURCE, .id = 3, .source = {"/x/job.pyJUNK", 9}};
    struct roll_def own = {.type = ROLL_DEF_LINE, .id = 1};
    struct roll_def library = {.type = ROLL_DEF_LINE, .id = 70};
    struct roll_def site = {.type = ROLL_DEF_CALLSITE,
                            .id = 5,
                            .callsite = {.depth = 1, .lines = 3, .pc = {0x123}, .line = {{70, 0}, {9, 2}, {1, 4}}}};
    own.line.info = (struct roll_def_line){.source = 3, .line = 48, .function_bytes = 7};
    own.line.function = "metricsJUNK";
    library.line.info = (struct roll_def_line){.source = 99, .line = 7, .flags = 1, .function_bytes = 10};
    library.line.function = "all_reduce";
    assert_int_equal(roll_symbols_define(symbols, 7, &source), 0);
    assert_int_equal(roll_symbols_define(symbols, 7, &own), 0);
    assert_int_equal(roll_symbols_define(symbols, 7, &library), 0);
    assert_int_equal(roll_symbols_define(symbols, 7, &site), 0);
    assert_int_equal(roll_symbols_define(symbols, 8, &site), 0);
    assert_int_equal(roll_symbols_callsite(symbols, 7, 5, frame, ROLL_SYMBOL_FRAMES), 3);
    assert_string_equal(frame[0].function, "all_reduce");
    assert_string_equal(frame[0].file, "");
    assert_true(frame[0].python && frame[0].library);
    assert_string_equal(frame[1].function, "metrics");
    assert_string_equal(frame[1].file, "/x/job.py");
    assert_int_equal(frame[1].line, 48);
    assert_int_equal(frame[1].folded, 4);
    assert_true(frame[1].python && !frame[1].library);
    assert_false(frame[2].python);
    assert_int_equal(frame[2].offset, 0x122);
    assert_int_equal(roll_symbols_callsite(symbols, 8, 5, frame, ROLL_SYMBOL_FRAMES), 1);
    assert_false(frame[0].python);
    roll_symbols_destroy(&symbols);
}

/* Where the main thread stood comes behind the thread's own lines, and the text of a line whenever that comes. */
static void where_the_main_thread_stood_and_what_the_line_says(void **state)
{
    (void)state;
    roll_symbols_t *symbols = roll_symbols_new();
    struct roll_symbol_frame frame[ROLL_SYMBOL_FRAMES];
    const char *text = NULL;
    char place[128];
    struct roll_def source = {.type = ROLL_DEF_SOURCE, .id = 1, .source = {"/x/train.py", 11}};
    struct roll_def hook = {.type = ROLL_DEF_LINE, .id = 1}, backward = {.type = ROLL_DEF_LINE, .id = 2};
    struct roll_def step = {.type = ROLL_DEF_LINE, .id = 3};
    struct roll_def stand = {.type = ROLL_DEF_STAND, .id = 5, .stand = {.lines = 2, .line = {{2, 0}, {3, 1}}}};
    struct roll_def site = {
        .type = ROLL_DEF_CALLSITE, .id = 5, .callsite = {.depth = 1, .lines = 1, .pc = {0x123}, .line = {{1, 0}}}};
    struct roll_def says = {.type = ROLL_DEF_TEXT, .id = 3, .text = {"loss.backward()JUNK", 15}};
    hook.line.info = (struct roll_def_line){.source = 1, .line = 7, .flags = 1, .function_bytes = 4};
    hook.line.function = "hook";
    backward.line.info = (struct roll_def_line){.source = 1, .line = 8, .flags = 1, .function_bytes = 12};
    backward.line.function = "run_backward";
    step.line.info = (struct roll_def_line){.source = 1, .line = 88, .function_bytes = 4};
    step.line.function = "step";
    assert_int_equal(roll_symbols_define(symbols, 7, &stand), 0);
    struct roll_def *const all[] = {&source, &hook, &backward, &step, &site};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        assert_int_equal(roll_symbols_define(symbols, 7, all[i]), 0);
    }
    assert_int_equal(roll_symbols_callsite(symbols, 7, 5, frame, ROLL_SYMBOL_FRAMES), 4);
    assert_true(frame[0].python && !frame[0].stand);
    assert_true(frame[1].python && frame[1].stand && frame[1].library);
    assert_true(frame[2].stand && !frame[2].library);
    assert_int_equal(frame[2].folded, 1);
    assert_string_equal(frame[2].text, "");
    assert_false(frame[3].python);
    assert_int_equal(roll_symbols_define(symbols, 7, &says), 0);
    assert_int_equal(roll_symbols_callsite(symbols, 7, 5, frame, ROLL_SYMBOL_FRAMES), 4);
    assert_string_equal(frame[2].text, "loss.backward()");
    assert_int_equal(roll_symbols_lines(symbols, 7, 5, frame, ROLL_SYMBOL_FRAMES), 3);
    assert_true(roll_symbols_place(frame, 3, place, sizeof(place), &text));
    assert_string_equal(place, "in backward, started at train.py:88 step");
    assert_string_equal(text, "loss.backward()");
    assert_true(roll_symbols_place(frame + 2, 1, place, sizeof(place), &text));
    assert_string_equal(place, "while the main thread was at train.py:88 step");
    frame[2].stand = false;
    assert_true(roll_symbols_place(frame + 2, 1, place, sizeof(place), &text));
    assert_string_equal(place, "train.py:88 step");
    assert_true(roll_symbols_place(frame, 1, place, sizeof(place), &text));
    assert_string_equal(place, "train.py:7 hook");
    assert_false(roll_symbols_place(frame, 0, place, sizeof(place), &text));
    roll_symbols_destroy(&symbols);
}

int main(void)
{
    /* rollcalld has the C++ runtime through libzmq; here it is asked for. */
    dlopen("libstdc++.so.6", RTLD_NOW | RTLD_GLOBAL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_has_function_file_and_line),
        cmocka_unit_test(names_read_ahead_are_the_names),
        cmocka_unit_test(all_tables_share_one_thread),
        cmocka_unit_test(files_of_which_nothing_is_asked_are_closed),
        cmocka_unit_test(what_is_known_by_now_is_told_without_reading),
        cmocka_unit_test(lines_of_python_stand_first),
        cmocka_unit_test(where_the_main_thread_stood_and_what_the_line_says),
        cmocka_unit_test(an_inlined_call_shows_both_functions),
        cmocka_unit_test(lines_are_found_without_the_table_of_units),
        cmocka_unit_test(without_debug_information_the_symbol_remains),
        cmocka_unit_test(without_symbols_module_and_offset_remain),
        cmocka_unit_test(a_rebuilt_program_gives_no_wrong_line),
        cmocka_unit_test(a_missing_file_gives_module_and_offset),
        cmocka_unit_test(an_address_outside_all_modules_is_shown_as_it_is),
        cmocka_unit_test(frames_of_our_own_library_are_left_out),
        cmocka_unit_test(a_library_loaded_where_another_was_wins),
        cmocka_unit_test(many_rings_with_many_call_sites_are_kept_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
