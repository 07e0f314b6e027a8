/*
 * client.c: see client.h. The socket is a DEALER and not a REQ, because a lost reply must not lock the console, and
 * verdicts come unasked.
 *
 * A root is alive when it holds the lock of its directory (root.lock): so an endpoint file that a killed root left
 * behind is recognised without waiting for a connection that never comes.
 */
#include "daemon/wire/client.h"

#include "daemon/base/clock.h"
#include "daemon/base/file.h"
#include "daemon/wire/net.h"
#include "daemon/wire/reach.h"
#include "trace/err.h"
#include "trace/ident.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include <zmq.h>

struct roll_client {
    void *context, *socket;
    uint64_t seq;
    json_t *verdicts; /* verdicts that the root pushed while a reply was waited for */
    size_t taken;
    char endpoint[256];
    char relay[256]; /* where it asked first, and was sent on; "": it was not */
};

#define LEVELS_MOST 8 /* relays above a relay */

/* discovery */

#define LIVE_MAX 32 /* live roots of one user on one host that are listed; further ones are only counted */

struct found {
    size_t count;
    char endpoint[LIVE_MAX][ROLL_CLIENT_ENDPOINT_BYTES];
};

static bool root_alive(const char *dir)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/root.lock", dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    bool alive = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd);
    return alive;
}

static void look_in(const char *dir, struct found *found)
{
    char path[PATH_MAX], line[256];
    snprintf(path, sizeof(path), "%s/endpoint", dir);
    bool read = roll_read_text(path, line, sizeof(line)) > 0;
    line[strcspn(line, "\r\n")] = '\0';
    if (!read || !roll_net_endpoint_ok(line) || !root_alive(dir)) {
        return;
    }
    if (found->count < LIVE_MAX) {
        memcpy(found->endpoint[found->count], line, sizeof(line));
    }
    found->count++;
}

/* The directory below which roots are looked for: ROLLCALL_DIR, else the default; "" when there is none. */
static void base_dir(char *base, size_t size)
{
    const char *dir = getenv("ROLLCALL_DIR");
    if (dir && dir[0]) {
        snprintf(base, size, "%s", dir);
    } else if (roll_default_dir(base, size) != 0) {
        base[0] = '\0';
    }
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void find_live(const char *base, struct found *found)
{
    char sub[PATH_MAX];
    look_in(base, found);
    DIR *d = opendir(base);
    struct dirent *entry;
    while (d && (entry = readdir(d)) != NULL) {
        if (strncmp(entry->d_name, "run-", 4) == 0) {
            snprintf(sub, sizeof(sub), "%s/%s", base, entry->d_name);
            look_in(sub, found);
        }
    }
    if (d) {
        closedir(d);
    }
    size_t known = found->count < LIVE_MAX ? found->count : LIVE_MAX;
    qsort(found->endpoint, known, sizeof(found->endpoint[0]), by_text);
}

size_t roll_client_live(char (*out)[ROLL_CLIENT_ENDPOINT_BYTES], size_t room)
{
    char base[PATH_MAX / 2];
    struct found found = {.count = 0};
    base_dir(base, sizeof(base));
    find_live(base, &found);
    for (size_t i = 0; i < found.count && i < LIVE_MAX && i < room; i++) {
        memcpy(out[i], found.endpoint[i], sizeof(out[i]));
    }
    return found.count;
}

int roll_client_discover(char *endpoint, size_t endpoint_size, char *why, size_t why_size)
{
    const char *given = getenv("ROLLCALL_DAEMON");
    if (given && given[0]) {
        snprintf(endpoint, endpoint_size, "%s", given);
        return 0;
    }
    char base[PATH_MAX / 2];
    struct found found = {.count = 0};
    base_dir(base, sizeof(base));
    find_live(base, &found);
    if (found.count == 0) {
        snprintf(why, why_size,
                 "no rollcalld is running under %s; start a job with `rollcall run -- CMD`, or name a daemon: "
                 "ROLLCALL_DAEMON=tcp://HOST:PORT",
                 base);
        return ROLL_E_UNREACHABLE;
    }
    if (found.count > 1) {
        int n =
            snprintf(why, why_size, "%zu daemons are running; choose one with ROLLCALL_DAEMON=ENDPOINT", found.count);
        for (size_t i = 0; i < found.count && i < LIVE_MAX && n > 0 && (size_t)n < why_size; i++) {
            n += snprintf(why + n, why_size - (size_t)n, "%s %s", i ? "," : ":", found.endpoint[i]);
        }
        return ROLL_E_LIMIT;
    }
    snprintf(endpoint, endpoint_size, "%s", found.endpoint[0]);
    return 0;
}

/* connection */

/* Reads frames until the reply with this number has come; with 0, until the next verdict has come. */
static int wait_frame(roll_client_t *client, uint64_t seq, int timeout_ms, json_t **out)
{
    uint64_t deadline = roll_mono_ns() + (uint64_t)(timeout_ms < 0 ? 0 : timeout_ms) * ROLL_MS;
    for (;;) {
        uint64_t now = roll_mono_ns();
        long left = now < deadline ? (long)((deadline - now + ROLL_MS - 1) / ROLL_MS) : 0;
        zmq_pollitem_t item = {client->socket, 0, ZMQ_POLLIN, 0};
        int n = zmq_poll(&item, 1, left);
        if (n < 0 && errno != EINTR) {
            return ROLL_E_IO;
        }
        if (n <= 0) {
            return ROLL_E_TIMEOUT; /* also after a signal, which the caller then handles */
        }
        zmq_msg_t msg;
        zmq_msg_init(&msg);
        if (roll_net_recv(&msg, client->socket) < 0) {
            zmq_msg_close(&msg);
            continue;
        }
        struct roll_frame frame;
        json_t *json = NULL;
        int err = roll_frame_decode(zmq_msg_data(&msg), zmq_msg_size(&msg), &frame, NULL);
        bool verdict = !err && frame.head.type == ROLL_FRAME_VERDICT;
        bool reply = !err && frame.head.type == ROLL_FRAME_REPLY && seq != 0 && frame.head.seq == seq;
        if (verdict || reply) {
            json = roll_net_json(&frame);
            err = json ? 0 : ROLL_E_CORRUPT;
        }
        zmq_msg_close(&msg);
        if (reply || (verdict && seq == 0)) {
            *out = json;
            return err;
        }
        if (json) {
            json_array_append_new(client->verdicts, json);
        }
    }
}

int roll_client_query(roll_client_t *client, json_t *query, int timeout_ms, json_t **reply)
{
    if (!query) {
        return ROLL_E_NOMEM;
    }
    struct roll_frame_head head = {.type = ROLL_FRAME_QUERY, .seq = ++client->seq};
    int err = roll_net_send_json(client->socket, NULL, 0, &head, query);
    json_decref(query);
    return err == ROLL_E_BUSY ? ROLL_E_TIMEOUT : (err ? err : wait_frame(client, client->seq, timeout_ms, reply));
}

int roll_client_next(roll_client_t *client, int timeout_ms, json_t **verdict)
{
    json_t *kept = json_array_get(client->verdicts, client->taken);
    if (kept) {
        client->taken++;
        *verdict = json_incref(kept);
        return 0;
    }
    json_array_clear(client->verdicts);
    client->taken = 0;
    return wait_frame(client, 0, timeout_ms, verdict);
}

static void disconnect(roll_client_t *client)
{
    if (client->socket) {
        zmq_close(client->socket);
    }
    if (client->context) {
        zmq_ctx_term(client->context);
    }
    client->socket = client->context = NULL;
}

/* Connects to its endpoint and asks there. *root: returned owned: who sends it on to another endpoint; NULL: nobody. */
static int connect_to(roll_client_t *client, const char *curve_dir, int timeout_ms, char **root, char *why,
                      size_t why_size)
{
    struct roll_curve_keys keys;
    bool secure = false;
    if (!roll_net_endpoint_ok(client->endpoint)) {
        snprintf(why, why_size, "'%s' is not an endpoint; it looks like tcp://HOST:PORT or ipc:///PATH",
                 client->endpoint);
        return ROLL_E_ARG;
    }
    int err = roll_curve_for(client->endpoint, curve_dir, &keys, &secure, why, why_size);
    if (err) {
        return ROLL_E_DENIED;
    }
    client->context = zmq_ctx_new();
    client->socket = client->context ? roll_net_dealer(client->context, secure ? &keys : NULL, "", 0) : NULL;
    explicit_bzero(&keys, sizeof(keys));
    if (!client->socket) {
        snprintf(why, why_size, "cannot make a socket: %s", strerror(errno));
        return ROLL_E_NOMEM;
    }
    if (zmq_connect(client->socket, client->endpoint) != 0) {
        snprintf(why, why_size, "cannot connect to %s: %s", client->endpoint, zmq_strerror(errno));
        return ROLL_E_ARG;
    }
    json_t *reply = NULL;
    err = roll_client_query(client, json_pack("{s:s}", "op", "status"), timeout_ms, &reply);
    const char *to = json_string_value(json_object_get(reply, "root"));
    *root = to ? strdup(to) : NULL;
    json_decref(reply);
    if (err) {
        char reason[512];
        roll_reach_why(client->endpoint, secure, curve_dir, reason, sizeof(reason));
        snprintf(why, why_size, "no answer from %s within %d ms: %s", client->endpoint, timeout_ms, reason);
        return ROLL_E_UNREACHABLE;
    }
    return 0;
}

/* What is left of the time until `deadline_ns`. */
static int left_ms(uint64_t deadline_ns)
{
    uint64_t now = roll_mono_ns();
    return now < deadline_ns ? (int)((deadline_ns - now + ROLL_MS - 1) / ROLL_MS) : 0;
}

/*
 * A relay names the level above it, which may be another relay. Nobody has many levels, and two that name each other
 * are not asked for ever. All levels share one time: each of them may be slow, and a job that has ended waits for the
 * last one.
 */
static int find_root(roll_client_t *client, const char *curve_dir, int timeout_ms, char *why, size_t why_size)
{
    uint64_t deadline_ns = roll_mono_ns() + (uint64_t)(timeout_ms < 0 ? 0 : timeout_ms) * ROLL_MS;
    char *root = NULL, reason[512];
    int err = connect_to(client, curve_dir, timeout_ms, &root, why, why_size);
    for (int level = 0; !err && root; level++) {
        if (level == 0) {
            memcpy(client->relay, client->endpoint, sizeof(client->relay));
        }
        disconnect(client);
        snprintf(client->endpoint, sizeof(client->endpoint), "%s", root);
        free(root);
        root = NULL;
        err = level < LEVELS_MOST ? connect_to(client, curve_dir, left_ms(deadline_ns), &root, reason, sizeof(reason))
                                  : ROLL_E_UNREACHABLE;
        if (level == LEVELS_MOST) {
            snprintf(reason, sizeof(reason), "relays name each other");
        }
        if (err) {
            snprintf(why, why_size, "%s is a relay, which judges nothing, and its root cannot be asked from here: %s",
                     client->relay, reason);
        }
    }
    free(root);
    return err;
}

int roll_client_new(const char *endpoint, const char *curve_dir, int timeout_ms, roll_client_t **out, char *why,
                    size_t why_size)
{
    roll_client_t *client = calloc(1, sizeof(*client));
    int err = client ? 0 : ROLL_E_NOMEM;
    if (!err) {
        client->verdicts = json_array();
        err = client->verdicts ? 0 : ROLL_E_NOMEM;
    }
    if (err) {
        snprintf(why, why_size, "%s", roll_strerror(err));
        goto out;
    }
    if (endpoint) {
        snprintf(client->endpoint, sizeof(client->endpoint), "%s", endpoint);
    } else {
        err = roll_client_discover(client->endpoint, sizeof(client->endpoint), why, why_size);
    }
    if (!err) {
        err = find_root(client, curve_dir ? curve_dir : getenv("ROLLCALL_CURVE_DIR"), timeout_ms, why, why_size);
    }
out:
    if (err) {
        roll_client_destroy(&client);
        return err;
    }
    *out = client;
    return 0;
}

void roll_client_destroy(roll_client_t **pointer)
{
    roll_client_t *client = *pointer;
    if (!client) {
        return;
    }
    disconnect(client);
    json_decref(client->verdicts);
    free(client);
    *pointer = NULL;
}

const char *roll_client_relay(const roll_client_t *client)
{
    return client->relay[0] ? client->relay : NULL;
}

const char *roll_client_endpoint(const roll_client_t *client)
{
    return client->endpoint;
}
