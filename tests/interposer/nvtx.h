/*
 * nvtx.h: what NVTX's headers compile into a program, by hand: tables of functions, and at the first call the offer of
 * them to the library that NVTX_INJECTION64_PATH names. Debian has no package of the headers; where they are (CUDA),
 * ROLL_REAL_NVTX takes them, and the same tests run with both.
 */
#ifndef ROLL_TESTS_INTERPOSER_NVTX_H
#define ROLL_TESTS_INTERPOSER_NVTX_H

#ifdef ROLL_REAL_NVTX
#include <nvtx3/nvToolsExt.h>
#else

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define NVTX_VERSION              3
#define NVTX_MESSAGE_TYPE_ASCII   1
#define NVTX_MESSAGE_TYPE_UNICODE 2

#define NVTX_MESSAGE_TYPE_REGISTERED 3

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t colorType;
    uint32_t color;
    int32_t payloadType, reserved0;
    uint64_t payload;
    int32_t messageType;
    union {
        const char *ascii;
        const wchar_t *unicode;
        const void *registered;
    } message;
} nvtxEventAttributes_t;

#define NVTX_EVENT_ATTRIB_STRUCT_SIZE ((uint16_t)sizeof(nvtxEventAttributes_t))

typedef const nvtxEventAttributes_t *nvtx_attributes_t;
typedef void (*nvtx_function_t)(void);

/* The slots that a tool may fill, by NVTX's numbers of its functions. */
static nvtx_function_t nvtx_core[16], nvtx_core2[16];
static nvtx_function_t *nvtx_core_at[17], *nvtx_core2_at[17];
static int nvtx_state; /* 0 = not asked yet; the programs here ask from one thread */

static int nvtx_module_table(int module, nvtx_function_t ***table, unsigned *size)
{
    *table = module == 1 ? nvtx_core_at : nvtx_core2_at;
    *size = 16;
    return module == 1 || module == 5;
}

static const void *nvtx_exports(uint32_t id)
{
    static const struct {
        size_t size;
        int (*module_table)(int, nvtx_function_t ***, unsigned *);
    } callbacks = {sizeof(callbacks), nvtx_module_table};
    return id == 1 ? &callbacks : NULL;
}

static void nvtx_begin(void)
{
    const char *path = getenv("NVTX_INJECTION64_PATH");
    void *tool = nvtx_state == 0 && path != NULL ? dlopen(path, RTLD_LAZY) : NULL;
    int (*begin)(const void *(*)(uint32_t)) = NULL;
    for (int i = 1; i < 16; i++) { /* number 0 is no function */
        nvtx_core_at[i] = &nvtx_core[i];
        nvtx_core2_at[i] = &nvtx_core2[i];
    }
    nvtx_state = 1;
    *(void **)&begin = tool != NULL ? dlsym(tool, "InitializeInjectionNvtx2") : NULL;
    if (begin != NULL) {
        (void)begin(nvtx_exports);
    }
}

#define NVTX_CALL(ret, none, name, table, id, params, args)                                                            \
    static inline ret name params                                                                                      \
    {                                                                                                                  \
        if (nvtx_state == 0) {                                                                                         \
            nvtx_begin();                                                                                              \
        }                                                                                                              \
        return table[id] != NULL ? ((ret(*) params)table[id])args : (ret)none;                                         \
    }
NVTX_CALL(int, -2, nvtxRangePushA, nvtx_core, 9, (const char *text), (text))
NVTX_CALL(int, -2, nvtxRangePushW, nvtx_core, 10, (const wchar_t *text), (text))
NVTX_CALL(int, -2, nvtxRangePushEx, nvtx_core, 8, (nvtx_attributes_t a), (a))
NVTX_CALL(int, -2, nvtxRangePop, nvtx_core, 11, (void), ())
NVTX_CALL(uint64_t, 0, nvtxRangeStartA, nvtx_core, 5, (const char *text), (text))
NVTX_CALL(void, 0, nvtxMarkA, nvtx_core, 2, (const char *text), (text))
NVTX_CALL(void, 0, nvtxMarkEx, nvtx_core, 1, (nvtx_attributes_t a), (a))
NVTX_CALL(int, -2, nvtxDomainRangePushEx, nvtx_core2, 4, (void *domain, nvtx_attributes_t a), (domain, a))
NVTX_CALL(void *, NULL, nvtxDomainCreateA, nvtx_core2, 12, (const char *text), (text))
NVTX_CALL(const void *, NULL, nvtxDomainRegisterStringA, nvtx_core2, 10, (void *domain, const char *text),
          (domain, text))
#undef NVTX_CALL

#endif
#endif
