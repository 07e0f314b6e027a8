/*
 * curve.c: key files, and the authenticator that accepts listed clients only.
 *
 * CURVE without an authenticator accepts any client that knows the server's public key, so the two always come together
 * here. The authenticator's thread reads allowed/ anew for each handshake: handshakes are rare, and so a list that
 * changes while the root runs needs no signal. czmq's zauth was rejected with the rest of czmq (net.c).
 */
#include "daemon/wire/curve.h"

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

static int make_dir(const char *path, char *why, size_t size)
{
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        return complain(ROLL_E_IO, why, size, strerror(errno), path, "");
    }
    return 0;
}

static int write_key(const char *dir, const char *name, const char *key, mode_t mode, char *why, size_t size)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0) {
        return errno == EEXIST
                   ? complain(ROLL_E_BUSY, why, size, "exists already", path, "keys are never overwritten")
                   : complain(errno == EACCES ? ROLL_E_DENIED : ROLL_E_IO, why, size, strerror(errno), path, "");
    }
    char line[ROLL_CURVE_KEY_BYTES + 1];
    int n = snprintf(line, sizeof(line), "%s\n", key);
    int err = 0;
    if (write(fd, line, (size_t)n) != n) {
        err = complain(ROLL_E_IO, why, size, "cannot write", path, "");
    }
    close(fd);
    return err;
}

int roll_curve_keygen(const char *dir, char *why, size_t why_size)
{
    if (!zmq_has("curve")) {
        return complain(ROLL_E_UNSUPPORTED, why, why_size, "this libzmq has no CURVE", dir, "");
    }
    char allowed[PATH_MAX];
    snprintf(allowed, sizeof(allowed), "%s/allowed", dir);
    int err = make_dir(dir, why, why_size);
    if (!err) {
        err = make_dir(allowed, why, why_size);
    }
    static const struct {
        const char *secret, *public;
    } pairs[] = {{"server.key", "server.pub"}, {"client.key", "client.pub"}};
    for (size_t i = 0; i < 2 && !err; i++) {
        char pub[ROLL_CURVE_KEY_BYTES], sec[ROLL_CURVE_KEY_BYTES];
        if (zmq_curve_keypair(pub, sec) != 0) {
            return complain(ROLL_E_UNSUPPORTED, why, why_size, "cannot make a key pair", dir, zmq_strerror(errno));
        }
        err = write_key(dir, pairs[i].secret, sec, 0600, why, why_size);
        if (!err) {
            err = write_key(dir, pairs[i].public, pub, 0644, why, why_size);
        }
        if (!err && i == 1) {
            err = write_key(allowed, "client.pub", pub, 0644, why, why_size);
        }
        explicit_bzero(sec, sizeof(sec));
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
    int err = read_key(dir, "server.pub", false, keys->server_key, why, why_size);
    if (!err) {
        err = read_key(dir, server ? "server.pub" : "client.pub", false, keys->public_key, why, why_size);
    }
    if (!err) {
        err = read_key(dir, server ? "server.key" : "client.key", true, keys->secret_key, why, why_size);
    }
    return err;
}

bool roll_curve_allowed(const char *dir, const char *public_key)
{
    char path[PATH_MAX], why[PATH_MAX + 128], key[ROLL_CURVE_KEY_BYTES];
    snprintf(path, sizeof(path), "%s/allowed", dir);
    DIR *d = opendir(path);
    if (!d) {
        return false;
    }
    bool found = false;
    struct dirent *entry;
    while (!found && (entry = readdir(d)) != NULL) {
        size_t n = strlen(entry->d_name);
        if (n > 4 && strcmp(entry->d_name + n - 4, ".pub") == 0) {
            found = read_key(path, entry->d_name, false, key, why, sizeof(why)) == 0 && strcmp(key, public_key) == 0;
        }
    }
    closedir(d);
    return found;
}

/* ZAP */

struct roll_curve_zap {
    void *context, *socket, *stop; /* stop: a PAIR; a message on it ends the thread */
    pthread_t thread;
    char dir[PATH_MAX];
    char stop_endpoint[64];
};

/* Answers one request, whose parts were read into `parts`; `used` of them are valid. */
static void answer(roll_curve_zap_t *zap, zmq_msg_t parts[ZAP_PARTS], int used)
{
    const char *code = "400", *text = "not on the list";
    if (used == 7 && zmq_msg_size(&parts[5]) == 5 && memcmp(zmq_msg_data(&parts[5]), "CURVE", 5) == 0 &&
        zmq_msg_size(&parts[6]) == 32) {
        char key[ROLL_CURVE_KEY_BYTES];
        zmq_z85_encode(key, zmq_msg_data(&parts[6]), 32);
        if (roll_curve_allowed(zap->dir, key)) {
            code = "200";
            text = "OK";
        } else {
            roll_log(ROLL_LOG_WARNING, "root: key refused: %.*s uses public key %s, which is not in %s/allowed",
                     (int)zmq_msg_size(&parts[3]), (const char *)zmq_msg_data(&parts[3]), key, zap->dir);
        }
    }
    zmq_send(zap->socket, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(zap->socket, used > 1 ? zmq_msg_data(&parts[1]) : "", used > 1 ? zmq_msg_size(&parts[1]) : 0, ZMQ_SNDMORE);
    zmq_send(zap->socket, code, 3, ZMQ_SNDMORE);
    zmq_send(zap->socket, text, strlen(text), ZMQ_SNDMORE);
    zmq_send(zap->socket, "", 0, ZMQ_SNDMORE);
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

int roll_curve_zap_new(void *context, const char *dir, roll_curve_zap_t **out)
{
    roll_curve_zap_t *zap = calloc(1, sizeof(*zap));
    if (!zap) {
        return ROLL_E_NOMEM;
    }
    zap->context = context;
    snprintf(zap->dir, sizeof(zap->dir), "%s", dir);
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
