/*
 * kernel_table.c: which kernels and variables of the device there are. A program that was compiled with kernels
 * registers them before main: for each, the function of the host that stands in launches, and the name. A framework
 * registers tens of thousands and launches a few hundred, so a registration costs one slot of a table; a kernel gets a
 * struct of its own when somebody asks for it.
 */
#include "hostnccl/cuda/kernel.h"

#include <stdlib.h>
#include <string.h>

enum { NAMES = 1024, SLOTS_FIRST = 1024, SHARED_DEFAULT_BYTES = 48 << 10 };

/* A file of device code; its address is what the program calls a handle. */
struct module {
    const void **hosts; /* owned: what it registered, so that its end need not look at what the others have */
    size_t count, room;
    bool is_whole; /* hosts has them all; else memory was short */
};

struct slot {
    const void *host; /* NULL: free */
    const char *name; /* the program's, valid until the module goes */
    struct hostcuda_function *function;
    struct module *module;
};

struct variable {
    struct variable *next;
    struct module *module;
    const void *host;
    void **managed; /* where the program looks for its address; NULL: not managed */
    size_t bytes;
    void *memory[HOSTCUDA_DEVICES_MAX]; /* of each device, when it was first asked for */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static struct slot *slots;
static size_t slot_count, used_count;
static struct hostcuda_function *names[NAMES];
static struct variable *variables;

static size_t place_of(const void *host, size_t count)
{
    return (size_t)(((uintptr_t)host >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (count - 1);
}

/* The slot of a function of the host, or the free slot where it belongs. NULL without a table. */
static struct slot *slot_of(const void *host)
{
    if (!slots) {
        return NULL;
    }
    size_t at = place_of(host, slot_count);
    while (slots[at].host && slots[at].host != host) {
        at = (at + 1) & (slot_count - 1);
    }
    return &slots[at];
}

/* Frees a slot, and moves those behind it that would not be found any more. */
static void remove_slot(struct slot *slot)
{
    size_t mask = slot_count - 1, hole = (size_t)(slot - slots), at = hole;
    used_count--;
    for (;;) {
        at = (at + 1) & mask;
        if (!slots[at].host) {
            slots[hole] = (struct slot){0};
            return;
        }
        size_t from_home = (at - place_of(slots[at].host, slot_count)) & mask;
        if (from_home >= ((at - hole) & mask)) {
            slots[hole] = slots[at];
            hole = at;
        }
    }
}

/* Makes a table of `count` slots, a power of two, without those of one module. False without memory. */
static bool rebuild(size_t count, const struct module *without)
{
    struct slot *old = slots;
    size_t old_count = slot_count;
    struct slot *fresh = calloc(count, sizeof(*fresh));
    if (!fresh) {
        return false;
    }
    slots = fresh;
    slot_count = count;
    used_count = 0;
    for (size_t i = 0; i < old_count; i++) {
        if (old[i].host && (!without || old[i].module != without)) {
            *slot_of(old[i].host) = old[i];
            used_count++;
        }
    }
    free(old);
    return true;
}

/* Notes what a module registered. */
static void note_host(struct module *module, const void *host)
{
    if (module->count == module->room) {
        size_t room = module->room ? 2 * module->room : 16;
        const void **grown = realloc(module->hosts, room * sizeof(*grown));
        if (!grown) {
            module->is_whole = false;
            return;
        }
        module->hosts = grown;
        module->room = room;
    }
    module->hosts[module->count++] = host;
}

/* Forgets the kernels of a module; false: some may be left. */
static bool forget_kernels(struct module *module)
{
    if (!slots) {
        return true;
    }
    if (!module->is_whole) {
        return rebuild(slot_count, module);
    }
    for (size_t i = 0; i < module->count; i++) {
        struct slot *slot = slot_of(module->hosts[i]);
        if (slot->host && slot->module == module) {
            remove_slot(slot);
        }
    }
    return true;
}

static bool has_room(void)
{
    return 2 * used_count < slot_count || rebuild(slot_count ? 2 * slot_count : SLOTS_FIRST, NULL);
}

static void never_released(struct hostcuda_handle *handle)
{
    (void)handle;
}

/* With the lock held. */
static struct hostcuda_function *function_named(const char *name)
{
    unsigned int hash = 5381;
    for (const char *c = name; *c; c++) {
        hash = hash * 33 + (unsigned char)*c;
    }
    struct hostcuda_function **head = &names[hash % NAMES], *function = *head;
    while (function && strcmp(function->name, name) != 0) {
        function = function->next;
    }
    if (function) {
        return function;
    }
    function = calloc(1, sizeof(*function));
    char *copy = function ? strdup(name) : NULL;
    if (!copy) {
        free(function);
        return NULL;
    }
    function->name = copy;
    function->handle.release = never_released;
    atomic_store(&function->handle.refs, 1);
    atomic_store(&function->dynamic_shared_bytes, SHARED_DEFAULT_BYTES);
    if (hostcuda_handle_add(HOSTCUDA_KERNEL, &function->handle)) {
        free(copy);
        free(function);
        return NULL;
    }
    function->next = *head;
    *head = function;
    return function;
}

struct hostcuda_function *hostcuda_function_named(const char *name)
{
    pthread_mutex_lock(&lock);
    struct hostcuda_function *function = function_named(name);
    pthread_mutex_unlock(&lock);
    return function;
}

struct hostcuda_function *hostcuda_function_of(const void *func)
{
    struct hostcuda_function *function = NULL;
    pthread_mutex_lock(&lock);
    struct slot *slot = func ? slot_of(func) : NULL;
    if (slot && slot->host) {
        if (!slot->function) {
            slot->function = function_named(slot->name);
        }
        function = slot->function;
    }
    pthread_mutex_unlock(&lock);
    if (!function && func) {
        function = (struct hostcuda_function *)hostcuda_handle_get(HOSTCUDA_KERNEL, func);
        hostcuda_handle_put(function ? &function->handle : NULL);
    }
    return function;
}

int hostcuda_twin_add(const char *name, hostcuda_kernel_fn *fn, size_t count, const size_t *bytes)
{
    if (!name || !*name || !fn || count > HOSTCUDA_PARAMETERS_MAX || (count && !bytes)) {
        return -1;
    }
    pthread_mutex_lock(&lock);
    struct hostcuda_function *function = function_named(name);
    bool is_new = function && !function->twin; /* a name means one function for good */
    if (is_new) {
        function->count = count;
        for (size_t i = 0; i < count; i++) {
            function->bytes[i] = bytes[i];
        }
        function->twin = fn;
    }
    pthread_mutex_unlock(&lock);
    return is_new ? 0 : -1;
}

/* What the compiler puts into every program with kernels. Nothing of it starts the runtime. */

HOSTCUDA_EXPORT void **__cudaRegisterFatBinary(void *image);
HOSTCUDA_EXPORT void __cudaRegisterFatBinaryEnd(void **handle);
HOSTCUDA_EXPORT void __cudaUnregisterFatBinary(void **handle);
HOSTCUDA_EXPORT char __cudaInitModule(void **handle);
HOSTCUDA_EXPORT void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit,
                                            uint3 *thread, uint3 *block, dim3 *threads, dim3 *grid, int *warp);
HOSTCUDA_EXPORT void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext, size_t bytes,
                                       int constant, int global);
HOSTCUDA_EXPORT void __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name, int ext,
                                              size_t bytes, int constant, int global);

HOSTCUDA_EXPORT void **__cudaRegisterFatBinary(void *image)
{
    (void)image;
    struct module *module = calloc(1, sizeof(*module));
    if (module) {
        module->is_whole = true;
    }
    return (void **)module;
}

HOSTCUDA_EXPORT void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

HOSTCUDA_EXPORT void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit,
                                            uint3 *thread, uint3 *block, dim3 *threads, dim3 *grid, int *warp)
{
    (void)device, (void)limit, (void)thread, (void)block, (void)threads, (void)grid, (void)warp;
    if (!host || !name) {
        return;
    }
    pthread_mutex_lock(&lock);
    if (has_room()) {
        struct slot *slot = slot_of(host);
        used_count += slot->host ? 0 : 1;
        *slot = (struct slot){.host = host, .name = name, .module = (struct module *)handle};
        if (handle) {
            note_host((struct module *)handle, host);
        }
    }
    pthread_mutex_unlock(&lock);
}

static void add_variable(void **handle, const void *host, void **managed, size_t bytes)
{
    struct variable *variable = calloc(1, sizeof(*variable));
    if (variable) {
        variable->module = (struct module *)handle;
        variable->host = host;
        variable->managed = managed;
        variable->bytes = bytes;
        pthread_mutex_lock(&lock);
        variable->next = variables;
        variables = variable;
        pthread_mutex_unlock(&lock);
    }
}

HOSTCUDA_EXPORT void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext, size_t bytes,
                                       int constant, int global)
{
    (void)device, (void)name, (void)ext, (void)constant, (void)global;
    add_variable(handle, host, NULL, bytes);
}

HOSTCUDA_EXPORT void __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name, int ext,
                                              size_t bytes, int constant, int global)
{
    (void)device, (void)name, (void)ext, (void)constant, (void)global;
    add_variable(handle, host, host, bytes);
}

HOSTCUDA_EXPORT void __cudaUnregisterFatBinary(void **handle)
{
    struct module *module = (struct module *)handle;
    if (!module) {
        return;
    }
    pthread_mutex_lock(&lock);
    bool is_gone = forget_kernels(module);
    for (struct variable **at = &variables; *at;) {
        struct variable *variable = *at;
        if (variable->module == module) { /* its memory stays: work that uses it may still be queued */
            *at = variable->next;
            free(variable);
        } else {
            at = &variable->next;
        }
    }
    pthread_mutex_unlock(&lock);
    if (is_gone) { /* else slots still name the module */
        free(module->hosts);
        free(module);
    }
}

/* Variables of the device have memory of their own on each device, zero until it is written: the device code that holds
 * the first value is not read. */
static cudaError_t memory_of(struct variable *variable, void **memory)
{
    void **own = &variable->memory[variable->managed ? 0 : hostcuda_self()->device];
    cudaError_t error = cudaSuccess;
    if (!*own) {
        error = variable->managed ? cudaMallocManaged(own, variable->bytes, cudaMemAttachGlobal)
                                  : cudaMalloc(own, variable->bytes);
    }
    *memory = *own;
    return error;
}

HOSTCUDA_EXPORT char __cudaInitModule(void **handle)
{
    char is_done = 1;
    pthread_mutex_lock(&lock);
    for (struct variable *variable = variables; variable; variable = variable->next) {
        if (variable->managed && variable->module == (struct module *)handle &&
            memory_of(variable, variable->managed)) {
            is_done = 0;
        }
    }
    pthread_mutex_unlock(&lock);
    return is_done;
}

cudaError_t hostcuda_variable(const void *symbol, void **address, size_t *bytes)
{
    cudaError_t error = cudaErrorInvalidSymbol;
    pthread_mutex_lock(&lock);
    for (struct variable *variable = variables; variable && error == cudaErrorInvalidSymbol;
         variable = variable->next) {
        if (variable->host == symbol) {
            *bytes = variable->bytes;
            error = memory_of(variable, address);
        }
    }
    pthread_mutex_unlock(&lock);
    return error;
}
