/*
 * cookie.c: the keys of a user's own processes on one host, and which keys a client takes. See curve.h.
 *
 * Any local user reaches a port of the loopback interface, so being there proves nothing; a file that only the user can
 * read does. A password in the handshake was rejected: who listens on the port while the root is away would be told it.
 */
#include "daemon/base/dir.h"
#include "daemon/wire/curve.h"
#include "daemon/wire/net.h"
#include "trace/err.h"
#include "trace/ident.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The directory of the cookie, and its name there. */
static int place_of(char dir[PATH_MAX], const char **name)
{
    const char *given = getenv("ROLLCALL_COOKIE");
    if (!given || given[0] != '/') {
        *name = "cookie";
        return roll_default_dir(dir, PATH_MAX);
    }
    snprintf(dir, PATH_MAX, "%s", given);
    char *slash = strrchr(dir, '/');
    *name = given + (slash - dir) + 1;
    *slash = '\0';
    return **name ? 0 : ROLL_E_ARG;
}

/* Makes the cookie whole, under another name, before it has its own: of several processes the first one wins. */
static void make(int at, const char *name)
{
    char pub[ROLL_CURVE_KEY_BYTES], sec[ROLL_CURVE_KEY_BYTES + 1], temporary[64];
    if (zmq_curve_keypair(pub, sec) != 0) {
        return;
    }
    snprintf(temporary, sizeof(temporary), ".cookie.%d", (int)getpid());
    unlinkat(at, temporary, 0);
    int fd = openat(at, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0) {
        sec[ROLL_CURVE_KEY_BYTES - 1] = '\n';
        if (write(fd, sec, ROLL_CURVE_KEY_BYTES) == ROLL_CURVE_KEY_BYTES) {
            (void)!linkat(at, temporary, at, name, 0);
        }
        unlinkat(at, temporary, 0);
        close(fd);
    }
    explicit_bzero(sec, sizeof(sec));
}

int roll_curve_cookie(struct roll_curve_keys *keys, char *why, size_t why_size)
{
    char dir[PATH_MAX], line[64] = "";
    const char *name;
    struct stat st;
    int at;
    if (place_of(dir, &name) != 0) {
        snprintf(why, why_size, "ROLLCALL_COOKIE is no file");
        return ROLL_E_ARG;
    }
    int err = roll_dir_open(dir, ROLL_DIR_MAKE, &at, why, why_size);
    if (err) {
        return err;
    }
    const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int fd = openat(at, name, flags);
    if (fd < 0 && errno == ENOENT) {
        make(at, name);
        fd = openat(at, name, flags);
    }
    if (fd < 0 || fstat(fd, &st) != 0) {
        snprintf(why, why_size, "%s/%s: %s", dir, name, strerror(errno));
        err = ROLL_E_IO;
    } else if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077) != 0) {
        snprintf(why, why_size, "%s/%s is not a file of this user alone: remove it", dir, name);
        err = ROLL_E_DENIED;
    } else {
        ssize_t n = read(fd, line, sizeof(line) - 1);
        line[n > 0 ? n : 0] = '\0';
        line[strcspn(line, "\r\n")] = '\0';
        if (strlen(line) != ROLL_CURVE_KEY_BYTES - 1 || zmq_curve_public(keys->public_key, line) != 0) {
            snprintf(why, why_size, "%s/%s is no cookie: remove it", dir, name);
            err = ROLL_E_CORRUPT;
        } else {
            memcpy(keys->secret_key, line, ROLL_CURVE_KEY_BYTES);
            memcpy(keys->server_key, keys->public_key, ROLL_CURVE_KEY_BYTES);
        }
        explicit_bzero(line, sizeof(line));
    }
    if (fd >= 0) {
        close(fd);
    }
    close(at);
    return err;
}

int roll_curve_for(const char *endpoint, const char *curve_dir, struct roll_curve_keys *keys, bool *used, char *why,
                   size_t why_size)
{
    const char *insecure = getenv("ROLLCALL_INSECURE");
    *used = false;
    int err = 0;
    if (!roll_net_takes_keys(endpoint)) {
        return 0;
    }
    if (curve_dir && curve_dir[0]) {
        err = roll_curve_load(curve_dir, false, keys, why, why_size);
    } else if (!roll_net_beyond_loopback(endpoint) && !(insecure && strcmp(insecure, "1") == 0)) {
        err = roll_curve_cookie(keys, why, why_size);
    } else {
        return 0;
    }
    *used = !err;
    return err;
}
