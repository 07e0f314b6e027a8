/*
 * curve.c: key files, and the authenticator that accepts listed clients only.
 *
 * CURVE without an authenticator accepts any client that knows the server's public key, so the two always come together
 * here. The authenticator's thread reads allowed/ anew for each handshake: handshakes are rare, and so a list that
 * changes while the root runs needs no signal. czmq's zauth was rejected with the rest of czmq (net.c).
 */
#include "daemon/wire/curve.h"

#include "daemon/base/dir.h"
#include "daemon/base/file.h"
#include "daemon/base/log.h"
#include "trace/err.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#define KEY_CHARS    (ROLL_CURVE_KEY_BYTES - 1)
#define ZAP_ENDPOINT "inproc://zeromq.zap.01"
#define ZAP_PARTS    8 /* version, id, domain, address, identity, mechanism, credentials; one more is an error */

static int complain(int err, char *why, size_t size, const char *what, const char *path, const char *hint)
{
    snprintf(why, size, "%s: %s%s%s", path, what, hint[0] ? ": " : "", hint);
    return err;
}

/* The files that one call has made: all of them stay, or none. */
struct made {
    struct {
        int at;
        char name[ROLL_NAME_BYTES + 16];
    } file[6];
    size_t used;
};

static void unmake(const struct made *made)
{
    for (size_t i = 0; i < made->used; i++) {
        unlinkat(made->file[i].at, made->file[i].name, 0);
    }
}

/* Writes all of it, and has it on the disk. 0 or errno. */
static int put(int fd, const char *line, size_t n)
{
    return roll_write_all(fd, line, n) != n ? errno : fsync(fd) != 0 ? errno : 0;
}

/* Writes one file, beside its place first: on a full disk nobody finds a key of no bytes that is never overwritten. The
 * name that it gets then replaces nothing that is there. */
static int write_key(struct made *made, int at, const char *dir, const char *name, const char *key, const char *about,
                     mode_t mode, char *why, size_t size)
{
    char path[PATH_MAX], beside[ROLL_NAME_BYTES + 24], line[ROLL_CURVE_KEY_BYTES + 2 * ROLL_NAME_BYTES];
    int n = snprintf(line, sizeof(line), "%s\n%s", key, about);
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    snprintf(beside, sizeof(beside), ".%s.new", name);
    unlinkat(at, beside, 0); /* of a call that was killed */
    int fd = openat(at, beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    int number = fd < 0 ? errno : put(fd, line, (size_t)n);
    explicit_bzero(line, sizeof(line));
    if (fd >= 0) {
        number = close(fd) != 0 && number == 0 ? errno : number;
        number = number == 0 && renameat2(at, beside, at, name, RENAME_NOREPLACE) != 0 ? errno : number;
        if (number == EINVAL) { /* a file system that cannot rename so: a link does not replace what is there either */
            number = linkat(at, beside, at, name, 0) != 0 ? errno : 0;
            unlinkat(at, beside, 0);
        } else if (number != 0) {
            unlinkat(at, beside, 0);
        }
    }
    if (number == 0 && made->used < sizeof(made->file) / sizeof(made->file[0])) {
        made->file[made->used].at = at;
        snprintf(made->file[made->used++].name, sizeof(made->file[0].name), "%s", name);
    }
    return number == 0        ? 0
           : number == EEXIST ? complain(ROLL_E_BUSY, why, size, "exists already", path, "keys are never overwritten")
           : number == EACCES ? complain(ROLL_E_DENIED, why, size, strerror(number), path, "")
                              : complain(ROLL_E_IO, why, size, strerror(number), path, "nothing was made");
}

static int read_key(const char *dir, const char *name, bool secret, char key[ROLL_CURVE_KEY_BYTES], char *why,
                    size_t size);

/* Makes a pair and writes it as BASE.key and BASE.pub. */
static int write_pair(struct made *made, int at, const char *dir, const char *base, char pub[ROLL_CURVE_KEY_BYTES],
                      char *why, size_t size)
{
    char sec[ROLL_CURVE_KEY_BYTES], name[32];
    if (zmq_curve_keypair(pub, sec) != 0) {
        return complain(ROLL_E_UNSUPPORTED, why, size, "cannot make a key pair", dir, zmq_strerror(errno));
    }
    snprintf(name, sizeof(name), "%s.key", base);
    int err = write_key(made, at, dir, name, sec, "", 0600, why, size);
    explicit_bzero(sec, sizeof(sec));
    snprintf(name, sizeof(name), "%s.pub", base);
    return err ? err : write_key(made, at, dir, name, pub, "", 0644, why, size);
}

/* Opens dir and dir/allowed. */
static int open_both(const char *dir, unsigned flags, int fd[2], char *why, size_t why_size)
{
    char allowed[PATH_MAX];
    snprintf(allowed, sizeof(allowed), "%s/allowed", dir);
    fd[0] = fd[1] = -1;
    if (!zmq_has("curve")) {
        return complain(ROLL_E_UNSUPPORTED, why, why_size, "this libzmq has no CURVE", dir, "");
    }
    int err = roll_dir_open(dir, flags, &fd[0], why, why_size);
    return err ? err : roll_dir_open(allowed, flags, &fd[1], why, why_size);
}

static void close_both(const int fd[2])
{
    for (int i = 0; i < 2; i++) {
        if (fd[i] >= 0) {
            close(fd[i]);
        }
    }
}

int roll_curve_keygen(const char *dir, char *why, size_t why_size)
{
    char pub[ROLL_CURVE_KEY_BYTES];
    struct made made = {.used = 0};
    int fd[2];
    int err = open_both(dir, ROLL_DIR_MAKE, fd, why, why_size);
    err = err ? err : write_pair(&made, fd[0], dir, "server", pub, why, why_size);
    err = err ? err : write_pair(&made, fd[0], dir, "client", pub, why, why_size);
    err = err ? err : write_key(&made, fd[1], dir, "client.pub", pub, "", 0644, why, why_size);
    if (err) {
        unmake(&made);
    }
    close_both(fd);
    return err;
}

int roll_curve_keygen_client(const char *dir, const char *name, const char *roles, const char *host, char *why,
                             size_t why_size)
{
    char path[PATH_MAX], entry[ROLL_NAME_BYTES + 8], about[2 * ROLL_NAME_BYTES], pub[ROLL_CURVE_KEY_BYTES];
    struct roll_role role;
    struct roll_curve_keys server = {.server_key = ""};
    struct made made = {.used = 0};
    int fd[2] = {-1, -1}, own = -1;
    size_t length = strlen(name);
    if (length == 0 || length >= ROLL_NAME_BYTES || name[0] == '.' || strcmp(name, "allowed") == 0 ||
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") != length) {
        return complain(ROLL_E_ARG, why, why_size, "no name for a client: letters, digits and ._-", name, "");
    }
    if (!roll_role_read(roles, host, &role)) {
        return complain(ROLL_E_ARG, why, why_size,
                        host ? "roles are node, viewer and operator, and a host is a host's name"
                             : "roles are node, viewer and operator, with commas between",
                        roles, host ? host : "");
    }
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    snprintf(entry, sizeof(entry), "%s.pub", name);
    snprintf(about, sizeof(about), "role %s\n%s%s%s", roles, host ? "host " : "", host ? host : "", host ? "\n" : "");
    int err = open_both(dir, 0, fd, why, why_size);
    err = err ? err : read_key(dir, "server.pub", false, server.server_key, why, why_size);
    err = err ? err : roll_dir_open(path, ROLL_DIR_MAKE, &own, why, why_size);
    err = err ? err : write_pair(&made, own, path, "client", pub, why, why_size);
    err = err ? err : write_key(&made, own, path, "server.pub", server.server_key, "", 0644, why, why_size);
    err = err ? err : write_key(&made, fd[1], dir, entry, pub, about, 0644, why, why_size);
    if (err) {
        unmake(&made);
    }
    close_both(fd);
    if (own >= 0) {
        close(own);
    }
    return err;
}

/* Reads one key. A secret key must not be readable by others. */
static int read_key(const char *dir, const char *name, bool secret, char key[ROLL_CURVE_KEY_BYTES], char *why,
                    size_t size)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return errno == ENOENT ? complain(ROLL_E_NOTFOUND, why, size, "no such key file", path,
                                          "make keys with: rollcall keygen DIR")
                               : complain(ROLL_E_DENIED, why, size, strerror(errno), path, "");
    }
    struct stat st;
    char line[64] = "";
    ssize_t n = fstat(fd, &st) == 0 ? read(fd, line, sizeof(line) - 1) : -1;
    close(fd);
    if (n < 0) {
        return complain(ROLL_E_DENIED, why, size, "cannot be read", path, "");
    }
    if (secret && (st.st_mode & 077) != 0) {
        return complain(ROLL_E_DENIED, why, size, "a secret key that others can read is refused", path, "chmod 600 it");
    }
    line[strcspn(line, "\r\n")] = '\0';
    uint8_t raw[32];
    if (strlen(line) != KEY_CHARS || !zmq_z85_decode(raw, line)) {
        return complain(ROLL_E_CORRUPT, why, size, "not a key (one line of 40 characters, Z85)", path, "");
    }
    memcpy(key, line, ROLL_CURVE_KEY_BYTES);
    explicit_bzero(line, sizeof(line));
    explicit_bzero(raw, sizeof(raw));
    return 0;
}

int roll_curve_load(const char *dir, bool server, struct roll_curve_keys *keys, char *why, size_t why_size)
{
    char allowed[PATH_MAX];
    int fd = -1;
    int err = roll_dir_open(dir, 0, &fd, why, why_size);
    if (err == ROLL_E_NOTFOUND) {
        return complain(err, why, why_size, "no such key file", dir,
                        "server.pub and the others are made with: rollcall keygen DIR");
    }
    if (!err) {
        close(fd);
        snprintf(allowed, sizeof(allowed), "%s/allowed", dir);
        err = server ? roll_dir_open(allowed, 0, &fd, why, why_size) : ROLL_E_NOTFOUND;
        if (!err) {
            close(fd);
        }
        err = err == ROLL_E_NOTFOUND ? 0 : err; /* a list that is not there lets nobody in */
    }
    if (!err) {
        err = read_key(dir, "server.pub", false, keys->server_key, why, why_size);
    }
    if (!err) {
        err = read_key(dir, server ? "server.pub" : "client.pub", false, keys->public_key, why, why_size);
    }
    if (!err) {
        err = read_key(dir, server ? "server.key" : "client.key", true, keys->secret_key, why, why_size);
    }
    return err;
}

/* What an entry of the list says after its key. One that says what is not understood lets nobody in. */
static bool read_role(int at, const char *name, struct roll_role *role)
{
    char text[512] = "", roles[64] = "", host[ROLL_NAME_BYTES] = "";
    int fd = openat(at, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
    if (fd >= 0) {
        close(fd);
    }
    memset(role, 0, sizeof(*role));
    bool good = n > 0;
    char *save = NULL, *line = strtok_r(text, "\r\n", &save); /* the key */
    while (good && line && (line = strtok_r(NULL, "\r\n", &save)) != NULL) {
        good = sscanf(line, "role %63s", roles) == 1 || sscanf(line, "host %63s", host) == 1;
    }
    return good &&
           (!roles[0] && !host[0] ? true : roll_role_read(roles[0] ? roles : "node", host[0] ? host : NULL, role));
}

bool roll_curve_allowed(const char *dir, const char *public_key, struct roll_role *role)
{
    char path[PATH_MAX], why[PATH_MAX + 128], key[ROLL_CURVE_KEY_BYTES];
    int fd;
    snprintf(path, sizeof(path), "%s/allowed", dir);
    if (roll_dir_open(path, 0, &fd, why, sizeof(why)) != 0) {
        return false;
    }
    DIR *d = fdopendir(fd);
    if (!d) {
        close(fd);
        return false;
    }
    bool found = false;
    struct dirent *entry;
    while (!found && (entry = readdir(d)) != NULL) {
        size_t n = strlen(entry->d_name);
        if (n > 4 && strcmp(entry->d_name + n - 4, ".pub") == 0) {
            found = read_key(path, entry->d_name, false, key, why, sizeof(why)) == 0 && strcmp(key, public_key) == 0 &&
                    read_role(dirfd(d), entry->d_name, role);
        }
    }
    closedir(d);
    return found;
}

/* ZAP */

struct roll_curve_zap {
    void *context, *socket, *stop; /* stop: a PAIR; a message on it ends the thread */
    pthread_t thread;
    char dir[PATH_MAX]; /* "" = who has the keys of the server */
    char server_key[ROLL_CURVE_KEY_BYTES];
    char stop_endpoint[64];
};

/* Answers one request, whose parts were read into `parts`; `used` of them are valid. */
static void answer(roll_curve_zap_t *zap, zmq_msg_t parts[ZAP_PARTS], int used)
{
    const char *code = "400", *text = "not on the list";
    char user[ROLL_ROLE_TEXT_BYTES] = "";
    struct roll_role role = {.denied = 0};
    if (used == 7 && zmq_msg_size(&parts[5]) == 5 && memcmp(zmq_msg_data(&parts[5]), "CURVE", 5) == 0 &&
        zmq_msg_size(&parts[6]) == 32) {
        char key[ROLL_CURVE_KEY_BYTES];
        zmq_z85_encode(key, zmq_msg_data(&parts[6]), 32);
        if (zap->dir[0] ? roll_curve_allowed(zap->dir, key, &role) : strcmp(key, zap->server_key) == 0) {
            code = "200";
            text = "OK";
            roll_role_text(&role, user);
        } else {
            char whom[ROLL_NAME_BYTES];
            snprintf(whom, sizeof(whom), "%.*s", (int)zmq_msg_size(&parts[3]), (const char *)zmq_msg_data(&parts[3]));
            roll_log_about(ROLL_LOG_WARNING, whom, "root: key refused: %s uses public key %s, which is not in %s%s",
                           whom, key, zap->dir[0] ? zap->dir : "the cookie", zap->dir[0] ? "/allowed" : "");
        }
    }
    zmq_send(zap->socket, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(zap->socket, used > 1 ? zmq_msg_data(&parts[1]) : "", used > 1 ? zmq_msg_size(&parts[1]) : 0, ZMQ_SNDMORE);
    zmq_send(zap->socket, code, 3, ZMQ_SNDMORE);
    zmq_send(zap->socket, text, strlen(text), ZMQ_SNDMORE);
    zmq_send(zap->socket, user, strlen(user), ZMQ_SNDMORE);
    zmq_send(zap->socket, "", 0, 0);
}

static void *zap_main(void *argument)
{
    roll_curve_zap_t *zap = argument;
    void *stop = zmq_socket(zap->context, ZMQ_PAIR);
    if (!stop || zmq_connect(stop, zap->stop_endpoint) != 0) {
        roll_log(ROLL_LOG_ERROR, "root: the authenticator cannot run: %s", zmq_strerror(errno));
        return NULL;
    }
    zmq_pollitem_t items[] = {{zap->socket, 0, ZMQ_POLLIN, 0}, {stop, 0, ZMQ_POLLIN, 0}};
    while (zmq_poll(items, 2, -1) >= 0 || errno == EINTR) {
        if (items[1].revents) {
            break;
        }
        if (!items[0].revents) {
            continue;
        }
        zmq_msg_t parts[ZAP_PARTS];
        int used = 0, more = 1;
        while (more) {
            zmq_msg_t *part = &parts[used < ZAP_PARTS ? used : ZAP_PARTS - 1];
            if (used >= ZAP_PARTS) {
                zmq_msg_close(part);
            }
            zmq_msg_init(part);
            if (zmq_msg_recv(part, zap->socket, 0) < 0) {
                break;
            }
            more = zmq_msg_more(part);
            used++;
        }
        answer(zap, parts, used);
        for (int i = 0; i < used && i < ZAP_PARTS; i++) {
            zmq_msg_close(&parts[i]);
        }
    }
    zmq_close(stop);
    return NULL;
}

int roll_curve_zap_new(void *context, const char *dir, const struct roll_curve_keys *server, roll_curve_zap_t **out)
{
    roll_curve_zap_t *zap = calloc(1, sizeof(*zap));
    if (!zap) {
        return ROLL_E_NOMEM;
    }
    zap->context = context;
    snprintf(zap->dir, sizeof(zap->dir), "%s", dir ? dir : "");
    memcpy(zap->server_key, server->server_key, sizeof(zap->server_key));
    snprintf(zap->stop_endpoint, sizeof(zap->stop_endpoint), "inproc://zap-stop-%p", (void *)zap);
    zap->socket = zmq_socket(context, ZMQ_REP);
    zap->stop = zmq_socket(context, ZMQ_PAIR);
    int linger = 0;
    if (!zap->socket || !zap->stop || zmq_setsockopt(zap->socket, ZMQ_LINGER, &linger, sizeof(linger)) != 0 ||
        zmq_bind(zap->socket, ZAP_ENDPOINT) != 0 || zmq_bind(zap->stop, zap->stop_endpoint) != 0) {
        goto out;
    }
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int err = pthread_create(&zap->thread, NULL, zap_main, zap);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err == 0) {
        *out = zap;
        return 0;
    }
out:
    if (zap->socket) {
        zmq_close(zap->socket);
    }
    if (zap->stop) {
        zmq_close(zap->stop);
    }
    free(zap);
    return ROLL_E_IO;
}

void roll_curve_zap_destroy(roll_curve_zap_t **pointer)
{
    roll_curve_zap_t *zap = *pointer;
    if (!zap) {
        return;
    }
    zmq_send(zap->stop, "", 0, 0);
    pthread_join(zap->thread, NULL);
    zmq_close(zap->socket);
    zmq_close(zap->stop);
    free(zap);
    *pointer = NULL;
}
