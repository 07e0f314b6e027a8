/*
 * relay.c: the relay's loop: one thread that waits for its sockets, and ten times a second tells the level above what
 * the agents below it have told.
 *
 * A relay has no engine, no trace and no state that could not be lost: it adds up digests (daemon/digest/sum.h) and
 * passes on the rest. Where the level above is slow it reads less from below (relay_below.c).
 */
#include "daemon/relay/relay_state.h"

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/wire/doors.h"
#include "trace/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define POLL_MS  20
#define MUCH     256              /* frames in one turn: the relay stood still, or those below it did */
#define PAUSE_MS 2                /* while there is no room above */
#define STOP_NS  (1500 * ROLL_MS) /* longest time for what agents send before they are gone, too */

/* loop */

/* Waits until something can be done: nothing is read from below while there is no room above. */
static void wait_for_work(struct roll_relay *r)
{
    zmq_pollitem_t items[2 * ROLL_RELAY_SOCKETS + 2] = {{r->above, 0, ZMQ_POLLIN, 0},
                                                        {r->above_monitor, 0, ZMQ_POLLIN, 0}};
    bool room = !r->welcomed || roll_relay_has_room(r);
    int n = 2;
    for (int i = 0; i < ROLL_RELAY_SOCKETS; i++) {
        if (r->below[i]) {
            items[n++] = (zmq_pollitem_t){r->below_monitor[i], 0, ZMQ_POLLIN, 0};
        }
        if (r->below[i] && room) {
            items[n++] = (zmq_pollitem_t){r->below[i], 0, ZMQ_POLLIN, 0};
        }
    }
    zmq_poll(items, n, room ? POLL_MS : PAUSE_MS);
}

/* Behind is a relay when something may wait in its sockets: it took something in this turn, or had no room above. */
static void look_at_connections(struct roll_relay *r, int taken)
{
    for (int i = 0; i < ROLL_RELAY_SOCKETS; i++) {
        unsigned closed = roll_guard_look(&r->guard[i], taken > 0 || !roll_relay_has_room(r));
        r->refused += closed;
        if (closed > 0) {
            roll_log(ROLL_LOG_WARNING, "relay: %u connection%s closed: a message without end, or more than can be read",
                     closed, closed == 1 ? " is" : "s are");
        }
    }
    r->refused += roll_doors_tell("relay");
}

void roll_relay_run(roll_relay_t *r)
{
    uint64_t stop_ns = 0, looked_ns = 0;
    roll_relay_hello(r, roll_mono_ns());
    for (;;) {
        wait_for_work(r);
        uint64_t now = roll_mono_ns();
        roll_relay_late_turn(r, now);
        unsigned happened = roll_net_monitor_read(r->above_monitor, "relay", NULL, &r->dial);
        if (happened & ROLL_NET_LOST) {
            roll_relay_lost(r, now);
        }
        if (happened & ROLL_NET_CONNECTED) {
            roll_relay_hello(r, now);
        }
        roll_relay_hear_above(r, now);
        int taken = 0;
        for (int i = 0; i < ROLL_RELAY_SOCKETS; i++) {
            if (r->below[i]) {
                roll_net_monitor_read(r->below_monitor[i], "relay", &r->guard[i], NULL);
                taken += roll_relay_hear_below(r, i, now);
            }
        }
        roll_relay_tell_above(r, now);
        (void)roll_memory_ebb(&r->ebb, taken >= MUCH || roll_credit_is_used(&r->credit), now);
        if (now - looked_ns > 100 * ROLL_MS) {
            looked_ns = now;
            roll_log_tick(false);
            look_at_connections(r, taken);
            roll_relay_look_after(r, now);
        }
        if (atomic_load(r->o.stop) && stop_ns == 0) {
            stop_ns = now;
        }
        if (stop_ns != 0 && (taken == 0 || now - stop_ns > STOP_NS)) {
            break;
        }
    }
    struct roll_frame_head bye = {.type = ROLL_FRAME_BYE};
    uint64_t seq;
    (void)roll_relay_send(r, bye, NULL, 0, &seq);
    roll_net_batch_flush(&r->batch, r->above);
}

/* life */

static int open_above(struct roll_relay *r, char *why, size_t why_size)
{
    uint64_t random = 0;
    char identity[160];
    if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
        random = roll_real_ns();
    }
    if (gethostname(r->host, sizeof(r->host) - 1) != 0) {
        snprintf(r->host, sizeof(r->host), "unknown");
    }
    snprintf(identity, sizeof(identity), "relay/%s/%d/%016llx", r->host, (int)getpid(), (unsigned long long)random);
    r->above = roll_net_dealer(r->o.context, roll_net_takes_keys(r->o.above) ? r->o.client_keys : NULL, identity, 500);
    r->above_monitor = r->above ? roll_net_monitor(r->o.context, r->above, "above") : NULL;
    if (!r->above_monitor) {
        snprintf(why, why_size, "cannot make a socket: %s", zmq_strerror(errno));
        return ROLL_E_IO;
    }
    if (zmq_connect(r->above, r->o.above) != 0) {
        snprintf(why, why_size, "cannot connect to %s: %s", r->o.above, zmq_strerror(errno));
        return ROLL_E_ARG;
    }
    return 0;
}

static int bind_one(struct roll_relay *r, unsigned i, char *why, size_t why_size)
{
    const char *endpoint = r->o.listen[i];
    unsigned curve = r->o.server_keys && roll_net_takes_keys(endpoint);
    if (!r->below[curve]) {
        r->below[curve] = roll_net_router(r->o.context, curve ? r->o.server_keys : NULL);
        r->below_monitor[curve] =
            r->below[curve] ? roll_net_monitor(r->o.context, r->below[curve], curve ? "below-curve" : "below") : NULL;
    }
    if (!r->below_monitor[curve]) {
        snprintf(why, why_size, "cannot make a socket: %s", zmq_strerror(errno));
        return ROLL_E_IO;
    }
    if (roll_net_bind(r->below[curve], endpoint, r->o.beyond) != 0) {
        int e = errno;
        snprintf(why, why_size, "cannot listen on %s: %s", endpoint,
                 e == EPERM ? "it reaches beyond this host and needs keys: rollcall keygen DIR, then --curve-dir DIR "
                              "(or --insecure)"
                            : zmq_strerror(e));
        return e == EADDRINUSE ? ROLL_E_BUSY : (e == EACCES ? ROLL_E_DENIED : ROLL_E_ARG);
    }
    size_t size = sizeof(r->endpoint[i]);
    if (zmq_getsockopt(r->below[curve], ZMQ_LAST_ENDPOINT, r->endpoint[i], &size) != 0) {
        snprintf(r->endpoint[i], sizeof(r->endpoint[i]), "%s", endpoint);
    }
    r->socket_file[i] = roll_net_own_file(r->endpoint[i]);
    return 0;
}

int roll_relay_new(const struct roll_relay_options *options, roll_relay_t **out, char *why, size_t why_size)
{
    struct roll_relay *r = calloc(1, sizeof(*r));
    int err = r && (r->payload = malloc(ROLL_RELAY_PAYLOAD)) ? 0 : ROLL_E_NOMEM;
    for (int i = 0; r && i < ROLL_RELAY_SOCKETS; i++) {
        roll_guard_init(&r->guard[i], i == 1); /* the socket with keys */
    }
    if (err) {
        snprintf(why, why_size, "%s", roll_strerror(err));
    } else {
        r->o = *options;
    }
    for (unsigned i = 0; i < options->listens && !err; i++) {
        err = bind_one(r, i, why, why_size);
    }
    if (!err) {
        err = open_above(r, why, why_size);
    }
    if (err) {
        roll_relay_destroy(&r);
        return err;
    }
    *out = r;
    return 0;
}

const char *roll_relay_endpoint(const roll_relay_t *relay, unsigned i)
{
    return i < relay->o.listens ? relay->endpoint[i] : NULL;
}

static void close_socket(void **socket, void **monitor)
{
    if (*monitor) {
        zmq_socket_monitor(*socket, NULL, 0);
        zmq_close(*monitor);
    }
    if (*socket) {
        zmq_close(*socket);
    }
    *socket = *monitor = NULL;
}

void roll_relay_destroy(roll_relay_t **relay)
{
    struct roll_relay *r = *relay;
    if (!r) {
        return;
    }
    close_socket(&r->above, &r->above_monitor);
    for (int i = 0; i < ROLL_RELAY_SOCKETS; i++) {
        close_socket(&r->below[i], &r->below_monitor[i]);
        roll_guard_fini(&r->guard[i]);
    }
    for (unsigned i = 0; i < r->o.listens; i++) {
        roll_net_leave_file(r->endpoint[i], r->socket_file[i]);
    }
    roll_relay_below_fini(r);
    roll_digest_fini(&r->came);
    roll_digest_fini(&r->up);
    free(r->payload);
    free(r);
    *relay = NULL;
}
