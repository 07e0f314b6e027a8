/*
 * device.c: devices: how many, which one a thread uses, and the calls between them. A device is only a number with a
 * memory limit and a list of streams; peers reach each other always, but the calls keep the books that CUDA keeps.
 */
#include "hostnccl/cuda/stream.h"

#include <stdio.h>
#include <string.h>

HOSTCUDA_EXPORT cudaError_t cudaGetDeviceCount(int *count)
{
    if (!count) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    cudaError_t error = hostcuda_enter();
    *count = error ? 0 : hostcuda_device_count();
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaSetDevice(int device)
{
    cudaError_t error = hostcuda_enter();
    if (!error && !hostcuda_device_of(device)) {
        error = cudaErrorInvalidDevice;
    }
    if (!error) {
        hostcuda_self()->device = device;
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaInitDevice(int device, unsigned int device_flags, unsigned int flags)
{
    cudaError_t error = hostcuda_enter();
    (void)device_flags;
    if (!error && !hostcuda_device_of(device)) {
        error = cudaErrorInvalidDevice;
    } else if (!error && flags & ~(unsigned int)cudaInitDeviceFlagsAreValid) {
        error = cudaErrorInvalidValue;
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaGetDevice(int *device)
{
    if (!device) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    cudaError_t error = hostcuda_enter();
    if (!error) {
        *device = hostcuda_self()->device;
    }
    return hostcuda_leave(error);
}

/*
 * Device flags only choose how a thread waits, and our threads always sleep; so the flags are kept and not acted upon.
 */
static _Atomic unsigned int device_flags[HOSTCUDA_DEVICES_MAX];

HOSTCUDA_EXPORT cudaError_t cudaSetDeviceFlags(unsigned int flags)
{
    cudaError_t error = hostcuda_enter();
    unsigned int schedule = flags & cudaDeviceScheduleMask;
    if (!error && (flags & ~(unsigned int)cudaDeviceMask || schedule & (schedule - 1))) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        atomic_store(&device_flags[hostcuda_self()->device], flags);
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaGetDeviceFlags(unsigned int *flags)
{
    cudaError_t error = flags ? hostcuda_enter() : cudaErrorInvalidValue;
    if (!error) {
        /* Host memory can always be mapped; the vendor's answer has this flag too. */
        *flags = atomic_load(&device_flags[hostcuda_self()->device]) | cudaDeviceMapHost;
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    cudaError_t error = can ? hostcuda_enter() : cudaErrorInvalidValue;
    if (!error && (!hostcuda_device_of(device) || !hostcuda_device_of(peer))) {
        error = cudaErrorInvalidDevice;
    }
    if (!error) {
        *can = device != peer;
    }
    return hostcuda_leave(error);
}

/* Enters, and finds the calling thread's device and the flag of its access to a peer. */
static cudaError_t enter_with_peer(int peer, atomic_bool **is_enabled)
{
    cudaError_t error = hostcuda_enter();
    if (error) {
        return error;
    }
    int device = hostcuda_self()->device;
    if (!hostcuda_device_of(peer) || peer == device) {
        return cudaErrorInvalidDevice;
    }
    *is_enabled = &hostcuda_device_of(device)->peers[peer];
    return cudaSuccess;
}

HOSTCUDA_EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    atomic_bool *is_enabled;
    cudaError_t error = flags ? cudaErrorInvalidValue : enter_with_peer(peer, &is_enabled);
    if (!error && atomic_exchange(is_enabled, true)) {
        error = cudaErrorPeerAccessAlreadyEnabled;
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    atomic_bool *is_enabled;
    cudaError_t error = enter_with_peer(peer, &is_enabled);
    if (!error && !atomic_exchange(is_enabled, false)) {
        error = cudaErrorPeerAccessNotEnabled;
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attribute, int src, int dst)
{
    cudaError_t error = value ? hostcuda_enter() : cudaErrorInvalidValue;
    if (!error && (!hostcuda_device_of(src) || !hostcuda_device_of(dst) || src == dst)) {
        error = cudaErrorInvalidDevice;
    }
    if (!error) {
        switch ((int)attribute) {
        case cudaDevP2PAttrAccessSupported:
        case cudaDevP2PAttrNativeAtomicSupported:
            *value = 1;
            break;
        case cudaDevP2PAttrPerformanceRank:
        case cudaDevP2PAttrCudaArrayAccessSupported:
        case 5: /* OnlyPartialNativeAtomicSupported, since CUDA 13 */
            *value = 0;
            break;
        default:
            error = cudaErrorInvalidValue;
        }
    }
    return hostcuda_leave(error);
}

/*
 * Like the vendor's function, it never waits: streams that still work are let go and keep the memory that they may be
 * using.
 */
HOSTCUDA_EXPORT cudaError_t cudaDeviceReset(void)
{
    cudaError_t error = hostcuda_enter_work();
    if (!error) {
        hostcuda_device_reset(hostcuda_self()->device);
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaProfilerStart(void);
HOSTCUDA_EXPORT cudaError_t cudaProfilerStop(void);

HOSTCUDA_EXPORT cudaError_t cudaProfilerStart(void)
{
    return hostcuda_leave(hostcuda_enter());
}

HOSTCUDA_EXPORT cudaError_t cudaProfilerStop(void)
{
    return hostcuda_leave(hostcuda_enter());
}
