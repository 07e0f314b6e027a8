/*
 * place.c: finds the daemon and the libraries relative to this very binary, so that a build tree, an installed tree and
 * a copied tree all work without a configuration. A search through PATH and the linker's path was rejected: it
 * would mix the console of one version with the preload library of another.
 */
#include "daemon/console/place.h"

#include "trace/err.h"
#include "trace/ident.h"
#include "trace/record.h"
#include "trace/ring.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* The library directory as seen from the directory of binaries; the build knows it (GNUInstallDirs). */
#ifndef ROLL_LIBDIR_FROM_BIN
#define ROLL_LIBDIR_FROM_BIN "../lib"
#endif

static const char *const preload_at[] = {"../lib/librollcall.so", ROLL_LIBDIR_FROM_BIN "/librollcall.so",
                                         ROLL_LIBDIR_FROM_BIN "/rollcall/librollcall.so"};
static const char *const audit_at[] = {"../lib/librollcall_audit.so", ROLL_LIBDIR_FROM_BIN "/librollcall_audit.so",
                                       ROLL_LIBDIR_FROM_BIN "/rollcall/librollcall_audit.so"};
static const char *const fronts_at[] = {"../lib/rollcall/front", ROLL_LIBDIR_FROM_BIN "/rollcall/front"};
static const char *const hostnccl_at[] = {"../lib/hostnccl/libnccl.so.2", ROLL_LIBDIR_FROM_BIN "/hostnccl/libnccl.so.2",
                                          ROLL_LIBDIR_FROM_BIN "/rollcall/hostnccl/libnccl.so.2"};
static const char *const python_at[] = {"../lib/rollcall/python", ROLL_LIBDIR_FROM_BIN "/rollcall/python"};
static const char *const zygote_at[] = {"../lib/rollcall/zygote.py", ROLL_LIBDIR_FROM_BIN "/rollcall/zygote.py"};
static const char *const replay_at[] = {"../lib/rollcall/roll_replay", ROLL_LIBDIR_FROM_BIN "/rollcall/roll_replay"};
static const char *const daemon_at[] = {"rollcalld"};

static void first_of(char out[PATH_MAX], const char *bin, const char *const *at, size_t n, int mode)
{
    out[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        char path[2 * PATH_MAX];
        snprintf(path, sizeof(path), "%s/%s", bin, at[i]);
        if (access(path, mode) == 0 && realpath(path, out) != NULL) {
            return;
        }
        out[0] = '\0';
    }
}

void roll_place_find(struct roll_place *place)
{
    char bin[PATH_MAX] = "";
    memset(place, 0, sizeof(*place));
    ssize_t n = readlink("/proc/self/exe", bin, sizeof(bin) - 1);
    if (n <= 0) {
        return;
    }
    bin[n] = '\0';
    char *slash = strrchr(bin, '/');
    if (slash == NULL) {
        return;
    }
    *slash = '\0';
    first_of(place->daemon, bin, daemon_at, sizeof(daemon_at) / sizeof(daemon_at[0]), X_OK);
    first_of(place->preload, bin, preload_at, sizeof(preload_at) / sizeof(preload_at[0]), R_OK);
    first_of(place->python, bin, python_at, sizeof(python_at) / sizeof(python_at[0]), R_OK | X_OK);
    first_of(place->zygote, bin, zygote_at, sizeof(zygote_at) / sizeof(zygote_at[0]), R_OK);
    first_of(place->replay, bin, replay_at, sizeof(replay_at) / sizeof(replay_at[0]), X_OK);
    first_of(place->audit, bin, audit_at, sizeof(audit_at) / sizeof(audit_at[0]), R_OK);
    first_of(place->fronts, bin, fronts_at, sizeof(fronts_at) / sizeof(fronts_at[0]), R_OK);
    /* realpath is asked for the directory, not for the library, because the library itself may be a link. */
    for (size_t i = 0; i < sizeof(hostnccl_at) / sizeof(hostnccl_at[0]); i++) {
        char path[2 * PATH_MAX];
        snprintf(path, sizeof(path), "%s/%s", bin, hostnccl_at[i]);
        if (access(path, R_OK) == 0) {
            *strrchr(path, '/') = '\0';
            if (realpath(path, place->hostnccl) != NULL) {
                return;
            }
        }
        place->hostnccl[0] = '\0';
    }
}

int roll_place_rings(char *out, int size)
{
    const char *dir = getenv("ROLLCALL_DIR");
    if (dir != NULL && dir[0] != '\0') {
        int n = snprintf(out, (size_t)size, "%s", dir);
        return n < size ? 0 : ROLL_E_SIZE;
    }
    return roll_default_dir(out, (size_t)size);
}

uint64_t roll_place_ring_records(void)
{
    const char *text = getenv("ROLLCALL_RING_RECORDS");
    unsigned long long records = text != NULL ? strtoull(text, NULL, 10) : 0;
    return records == 0 || records > ROLL_RING_MAX_RECORDS ? ROLL_RING_DEFAULT_RECORDS : records;
}

uint64_t roll_place_ring_bytes(void)
{
    return ROLL_RING_HEADER_BYTES + ROLL_RING_DEFAULT_DEFS_BYTES + roll_place_ring_records() * ROLL_RECORD_BYTES;
}

uint64_t roll_place_free_bytes(const char *dir)
{
    char path[PATH_MAX];
    struct statvfs fs;
    snprintf(path, sizeof(path), "%s", dir);
    while (access(path, F_OK) != 0) { /* the nearest folder above that is there */
        char *slash = strrchr(path, '/');
        snprintf(slash == NULL || slash == path ? path : slash, 2, "%s",
                 slash == NULL   ? "."
                 : slash == path ? "/"
                                 : "");
    }
    bool is_known = statvfs(path, &fs) == 0 && fs.f_blocks > 0;
    return is_known ? (uint64_t)fs.f_bavail * fs.f_frsize : UINT64_MAX;
}
