/*
 * node_link.c: ports of InfiniBand and Ethernet devices, from /sys.
 *
 * Ports that are not used are down for years, and error counters of healthy ports are seldom 0. So a port counts as
 * down only when it has been up since the driver was loaded (link_downed, carrier_down_count), and a counter only when
 * it rises while we look. Virtual interfaces are left out: they have no device.
 */
#include "daemon/agent/node_facts.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PORTS_MAX    64u
#define COUNTERS_MAX 16u
#define NAME_BYTES   48u

static const char *const ib_counters[] = {
    "counters/symbol_error",
    "counters/link_error_recovery",
    "counters/port_rcv_errors",
    "counters/port_xmit_discards",
    "counters/local_link_integrity_errors",
    "counters/excessive_buffer_overrun_errors",
    "counters/port_rcv_remote_physical_errors",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/packet_seq_err",
    "hw_counters/rnr_nak_retry_err",
    "hw_counters/req_transport_retries_exceeded",
};
static const char *const net_counters[] = {
    "statistics/rx_errors",      "statistics/tx_errors",         "statistics/rx_crc_errors",
    "statistics/rx_fifo_errors", "statistics/tx_carrier_errors",
};
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
_Static_assert(COUNT(ib_counters) <= COUNTERS_MAX && COUNT(net_counters) <= COUNTERS_MAX, "there is room for them");

struct port {
    bool ib;
    char name[NAME_BYTES]; /* "mlx5_0 port 1", "eth0" */
    char path[256];
    int64_t counter[COUNTERS_MAX]; /* -1 = there is none */
};

struct roll_links {
    size_t used;
    struct port port[PORTS_MAX];
};

static size_t counters_of(const struct port *p, const char *const **names)
{
    *names = p->ib ? ib_counters : net_counters;
    return p->ib ? COUNT(ib_counters) : COUNT(net_counters);
}

static void read_counters(const struct roll_node *n, const struct port *p, int64_t out[COUNTERS_MAX])
{
    const char *const *names;
    size_t count = counters_of(p, &names);
    for (size_t i = 0; i < count; i++) {
        char path[384];
        snprintf(path, sizeof(path), "%s/%s", p->path, names[i]);
        out[i] = roll_node_number(n, path);
    }
}

/* Whether a device's name may stand in a sentence and in a path. */
static bool is_plain(const char *name)
{
    size_t bytes = strlen(name);
    for (size_t i = 0; i < bytes; i++) {
        if (!isalnum((unsigned char)name[i]) && !strchr("_-.:@", name[i])) {
            return false;
        }
    }
    return bytes > 0 && bytes < 32 && name[0] != '.';
}

static void add(const struct roll_node *n, roll_links_t *l, bool ib, const char *device, const char *port)
{
    if (l->used == PORTS_MAX) {
        return;
    }
    struct port *p = &l->port[l->used++];
    p->ib = ib;
    if (ib) {
        snprintf(p->name, sizeof(p->name), "%.31s port %.8s", device, port);
        snprintf(p->path, sizeof(p->path), "/sys/class/infiniband/%.31s/ports/%.31s", device, port);
    } else {
        snprintf(p->name, sizeof(p->name), "%.31s", device);
        snprintf(p->path, sizeof(p->path), "/sys/class/net/%.31s", device);
    }
    read_counters(n, p, p->counter);
}

static DIR *open_dir(const struct roll_node *n, const char *path)
{
    char full[PATH_MAX];
    snprintf(full, sizeof(full), "%s%s", n->root, path);
    return opendir(full);
}

static void add_ib(const struct roll_node *n, roll_links_t *l, const char *device)
{
    char path[128];
    snprintf(path, sizeof(path), "/sys/class/infiniband/%.31s/ports", device);
    DIR *d = open_dir(n, path);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        if (is_plain(e->d_name)) {
            add(n, l, true, device, e->d_name);
        }
    }
    if (d) {
        closedir(d);
    }
}

static void add_net(const struct roll_node *n, roll_links_t *l, const char *device)
{
    char path[128];
    snprintf(path, sizeof(path), "/sys/class/net/%.31s/device", device);
    DIR *d = open_dir(n, path);
    if (d) { /* virtual interfaces have no device */
        closedir(d);
        add(n, l, false, device, "");
    }
}

roll_links_t *roll_links_look(const struct roll_node *n)
{
    roll_links_t *l = calloc(1, sizeof(*l));
    for (int ib = 1; l && ib >= 0; ib--) {
        DIR *d = open_dir(n, ib ? "/sys/class/infiniband" : "/sys/class/net");
        for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
            if (is_plain(e->d_name)) {
                (ib ? add_ib : add_net)(n, l, e->d_name);
            }
        }
        if (d) {
            closedir(d);
        }
    }
    return l;
}

static void tell_state(const struct roll_node *n, const struct port *p)
{
    char path[384], state[64];
    snprintf(path, sizeof(path), "%s/%s", p->path, p->ib ? "state" : "operstate");
    if (roll_node_read(n, path, state, sizeof(state)) < 0) {
        return;
    }
    if (p->ib) {
        snprintf(path, sizeof(path), "%s/counters/link_downed", p->path);
        if (!strstr(state, "ACTIVE") && roll_node_number(n, path) > 0) {
            roll_node_say(n, ROLL_FACT_IB_DOWN, "%s is %.32s, and has been up", p->name, state);
        }
        return;
    }
    snprintf(path, sizeof(path), "%s/flags", p->path);
    int64_t flags = roll_node_number(n, path);
    snprintf(path, sizeof(path), "%s/carrier_down_count", p->path);
    if (strcmp(state, "down") == 0 && flags > 0 && (flags & 1) != 0 && roll_node_number(n, path) > 0) {
        roll_node_say(n, ROLL_FACT_NET_DOWN, "%s has no carrier, and has had one", p->name);
    }
}

void roll_links_tell(const struct roll_node *n, const roll_links_t *before)
{
    for (size_t i = 0; i < before->used; i++) {
        const struct port *p = &before->port[i];
        const char *const *names;
        size_t count = counters_of(p, &names);
        int64_t now[COUNTERS_MAX];
        tell_state(n, p);
        read_counters(n, p, now);
        for (size_t k = 0; k < count; k++) {
            if (p->counter[k] >= 0 && now[k] > p->counter[k]) {
                roll_node_say(n, p->ib ? ROLL_FACT_IB_ERRORS : ROLL_FACT_NET_ERRORS, "%s: %s rises (%lld to %lld)",
                              p->name, strchr(names[k], '/') + 1, (long long)p->counter[k], (long long)now[k]);
            }
        }
    }
}

void roll_links_destroy(roll_links_t **links)
{
    free(*links);
    *links = NULL;
}
