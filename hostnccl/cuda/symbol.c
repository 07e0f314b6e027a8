/*
 * symbol.c: copies to and from variables of the device, by the name that the program has for them.
 */
#include "hostnccl/cuda/kernel.h"

/* The bytes of a variable that a copy touches. */
static cudaError_t find(const void *symbol, size_t bytes, size_t offset, char **at)
{
    void *address = NULL;
    size_t size = 0;
    cudaError_t error = hostcuda_enter_work();
    if (!error) {
        error = hostcuda_variable(symbol, &address, &size);
    }
    if (!error && (offset > size || bytes > size - offset)) {
        error = cudaErrorInvalidValue;
    }
    *at = (char *)address + offset;
    return error;
}

HOSTCUDA_EXPORT cudaError_t cudaGetSymbolAddress(void **address, const void *symbol)
{
    char *at;
    cudaError_t error = address ? find(symbol, 0, 0, &at) : cudaErrorInvalidValue;
    if (!error) {
        *address = at;
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaGetSymbolSize(size_t *bytes, const void *symbol)
{
    void *address;
    size_t size;
    cudaError_t error = bytes ? hostcuda_enter_work() : cudaErrorInvalidValue;
    if (!error) {
        error = hostcuda_variable(symbol, &address, &size);
    }
    if (!error) {
        *bytes = size;
    }
    return hostcuda_leave(error);
}

/* COPY(call, parameters, arguments of find, the copy itself): both forms of a call. */
#define COPY(call, suffix, parameters, symbol, copy)                                                                   \
    HOSTCUDA_EXPORT cudaError_t call##suffix parameters;                                                               \
    HOSTCUDA_EXPORT cudaError_t call##suffix parameters                                                                \
    {                                                                                                                  \
        char *at;                                                                                                      \
        cudaError_t error = find(symbol, bytes, offset, &at);                                                          \
        return error ? hostcuda_leave(error) : copy;                                                                   \
    }
#define OWN(stream) ((stream) ? (stream) : cudaStreamPerThread)

/* The vendor's header does not declare the second forms. */
cudaError_t cudaMemcpy_ptds(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind);

#define TO   (const void *symbol, const void *src, size_t bytes, size_t offset, enum cudaMemcpyKind kind)
#define FROM (void *dst, const void *symbol, size_t bytes, size_t offset, enum cudaMemcpyKind kind)
#define TO_LATER                                                                                                       \
    (const void *symbol, const void *src, size_t bytes, size_t offset, enum cudaMemcpyKind kind, cudaStream_t s)
#define FROM_LATER                                                                                                     \
    (void *dst, const void *symbol, size_t bytes, size_t offset, enum cudaMemcpyKind kind, cudaStream_t s)

COPY(cudaMemcpyToSymbol, , TO, symbol, cudaMemcpy(at, src, bytes, kind))
COPY(cudaMemcpyToSymbol, _ptds, TO, symbol, cudaMemcpy_ptds(at, src, bytes, kind))
COPY(cudaMemcpyFromSymbol, , FROM, symbol, cudaMemcpy(dst, at, bytes, kind))
COPY(cudaMemcpyFromSymbol, _ptds, FROM, symbol, cudaMemcpy_ptds(dst, at, bytes, kind))
COPY(cudaMemcpyToSymbolAsync, , TO_LATER, symbol, cudaMemcpyAsync(at, src, bytes, kind, s))
COPY(cudaMemcpyToSymbolAsync, _ptsz, TO_LATER, symbol, cudaMemcpyAsync(at, src, bytes, kind, OWN(s)))
COPY(cudaMemcpyFromSymbolAsync, , FROM_LATER, symbol, cudaMemcpyAsync(dst, at, bytes, kind, s))
COPY(cudaMemcpyFromSymbolAsync, _ptsz, FROM_LATER, symbol, cudaMemcpyAsync(dst, at, bytes, kind, OWN(s)))
