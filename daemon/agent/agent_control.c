/*
 * agent_control.c: keeps the control pages that the ranks of this node read.
 *
 * While the agent lives, only the agent changes a page, so a change is a few plain stores (trace/control.h). Pages
 * outlive the agent: a remedy that was switched on stays on when the agent is restarted.
 */
#include "daemon/agent/agent_control.h"

#include "daemon/base/array.h"
#include "daemon/base/bus_guard.h"
#include "daemon/base/log.h"
#include "daemon/wire/net.h"
#include "trace/compare.h"
#include "trace/err.h"
#include "trace/ident.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct roll_agent_page *find(const struct roll_agent_controls *c, const char *job, uint32_t restart)
{
    for (size_t i = 0; i < c->used; i++) {
        if (c->page[i].restart == restart && strncmp(c->page[i].job, job, ROLL_NAME_BYTES) == 0) {
            return &c->page[i];
        }
    }
    return NULL;
}

void roll_agent_controls_need(struct roll_agent_controls *c, const char *dir, const char *job, uint32_t restart,
                              enum roll_policy policy)
{
    char name[ROLL_NAME_BYTES] = "";
    strncpy(name, job, sizeof(name) - 1);
    if (find(c, name, restart)) {
        return;
    }
    if (ROLL_GROW(c->page, c->room, c->used + 1) != 0) {
        return;
    }
    struct roll_agent_page *p = &c->page[c->used];
    memset(p, 0, sizeof(*p));
    memcpy(p->job, name, sizeof(p->job));
    p->restart = restart;
    p->cuts = roll_guard_cuts();
    int err = roll_control_path(p->path, sizeof(p->path), dir, name, restart);
    if (!err) {
        err = roll_control_open(p->path, true, policy, &p->control);
    }
    if (err) {
        roll_log(ROLL_LOG_WARNING, "agent: control page %s: %s; no remedy can be switched for this job here", p->path,
                 roll_strerror(err));
        p->control = NULL;
    } else {
        atomic_store_explicit(&p->control->agent_pid, (uint32_t)getpid(), memory_order_relaxed);
    }
    c->used++;
}

/* Removes the page on which this node's ranks compared their calls (fail fast): it ends with the job, too. */
static void remove_compare_page(const struct roll_agent_page *p)
{
    char dir[PATH_MAX], path[PATH_MAX + 128];
    const char *slash = strrchr(p->path, '/');
    snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(slash - p->path) : 0, p->path);
    if (roll_compare_path(path, sizeof(path), dir, p->job, p->restart) == 0) {
        unlink(path);
    }
}

void roll_agent_controls_drop(struct roll_agent_controls *c, const char *job, uint32_t restart)
{
    struct roll_agent_page *p = find(c, job, restart);
    if (p) {
        unlink(p->path);
        remove_compare_page(p);
        roll_control_close(&p->control);
        *p = c->page[--c->used];
    }
}

void roll_agent_controls_leave_cut(struct roll_agent_controls *c)
{
    for (size_t i = 0; i < c->used; i++) {
        struct roll_agent_page *p = &c->page[i];
        if (p->control && roll_guard_was_cut(p->control, sizeof(*p->control), p->cuts)) {
            roll_log(ROLL_LOG_WARNING,
                     "agent: control page %s has been cut; no remedy can be switched for this job here any more",
                     p->path);
            roll_control_close(&p->control);
        }
    }
}

static uint32_t load(_Atomic uint32_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

/* The page goes by this policy because it was told so. To set it anew would let ranks take, until the next frame comes,
 * what is off for the job. */
static bool is_told(struct roll_control *c, uint32_t policy)
{
    return load(&c->policy_told) != 0 && load(&c->policy) == policy;
}

void roll_agent_controls_apply(struct roll_agent_controls *c, const struct roll_frame *frame)
{
    struct roll_frame_control control = {0};
    size_t bytes = frame->head.payload;
    if (bytes < ROLL_FRAME_CONTROL_OLDEST_BYTES) {
        roll_log(ROLL_LOG_WARNING, "agent: a CONTROL frame of %zu bytes is ignored", bytes);
        return;
    }
    bool names_restart = bytes >= sizeof(control);
    memcpy(&control, frame->payload, names_restart ? sizeof(control) : ROLL_FRAME_CONTROL_OLDEST_BYTES);
    control.job[sizeof(control.job) - 1] = '\0';
    for (size_t i = 0; i < c->used; i++) {
        const struct roll_agent_page *p = &c->page[i];
        if (!p->control || strcmp(p->job, control.job) != 0 || (names_restart && p->restart != control.restart)) {
            continue;
        }
        bool known = control.change.action == ROLL_ACTION_POLICY && control.change.level == ROLL_LEVEL_JOB &&
                     is_told(p->control, control.change.mask);
        int err = known ? 0 : roll_control_apply(p->control, &control.change);
        if (err) {
            roll_log(ROLL_LOG_WARNING, "agent: %s.%u: a change of its control page is refused: %s", p->job, p->restart,
                     roll_strerror(err));
        }
    }
}

void roll_agent_controls_policy(struct roll_agent_controls *c, enum roll_policy policy)
{
    struct roll_control_change change = {.action = ROLL_ACTION_POLICY, .mask = policy};
    for (size_t i = 0; i < c->used; i++) {
        struct roll_control *page = c->page[i].control;
        if (page && load(&page->policy_told) == 0 && load(&page->policy) != (uint32_t)policy) {
            roll_control_apply(page, &change);
        }
    }
}

/* What is switched for single layers and groups: [number, on, off] and [key, on, off]. */
static void add_levels(json_t *answer, struct roll_control *c)
{
    json_t *layers = json_array(), *groups = json_array();
    for (unsigned i = 0; i < ROLL_CONTROL_LAYERS; i++) {
        uint32_t on = load(&c->layer[i].on), off = load(&c->layer[i].off);
        if (on | off) {
            json_array_append_new(layers, json_pack("[i,I,I]", (int)i, (json_int_t)on, (json_int_t)off));
        }
    }
    for (unsigned i = 0; i < ROLL_CONTROL_GROUPS; i++) {
        uint64_t key = atomic_load_explicit(&c->group[i].comm_key, memory_order_relaxed);
        if (key != 0) {
            char text[24];
            snprintf(text, sizeof(text), "0x%016llx", (unsigned long long)key);
            json_array_append_new(groups, json_pack("[s,I,I]", text, (json_int_t)load(&c->group[i].on),
                                                    (json_int_t)load(&c->group[i].off)));
        }
    }
    json_object_set_new(answer, "layers", layers);
    json_object_set_new(answer, "groups", groups);
}

void roll_agent_controls_ask(const struct roll_agent_controls *c, const struct roll_frame *ask, void *socket)
{
    json_t *json = roll_net_json(ask);
    const char *op = json_string_value(json_object_get(json, "op"));
    const char *job = json_string_value(json_object_get(json, "job"));
    uint32_t restart = (uint32_t)json_integer_value(json_object_get(json, "restart"));
    const struct roll_agent_page *p = op && job && strcmp(op, "switches") == 0 ? find(c, job, restart) : NULL;
    if (p && p->control) {
        uint32_t policy = load(&p->control->policy), alone = load(&p->control->auto_local);
        /* Only under auto does the page say what the job wants off: auto_local is all but that. */
        uint32_t off = policy == ROLL_POLICY_AUTO ? roll_remedy_all() & ~alone : 0;
        json_t *answer = json_pack("{s:s,s:s,s:I,s:I,s:I}", "op", op, "job", job, "restart", (json_int_t)restart, "on",
                                   (json_int_t)load(&p->control->on), "off", (json_int_t)off);
        if (load(&p->control->policy_told)) {
            json_object_set_new(answer, "policy", json_string(roll_policy_name((enum roll_policy)policy)));
        }
        add_levels(answer, p->control);
        struct roll_frame_head head = {.type = ROLL_FRAME_ANSWER, .seq = ask->head.seq};
        int err = answer ? roll_net_send_json(socket, NULL, 0, &head, answer) : ROLL_E_NOMEM;
        if (err) {
            roll_log(ROLL_LOG_WARNING, "agent: the root cannot be told what is switched for %s.%u: %s", p->job,
                     p->restart, roll_strerror(err));
        }
        json_decref(answer);
    }
    json_decref(json);
}

void roll_agent_controls_seen(struct roll_agent_controls *c, uint64_t now)
{
    for (size_t i = 0; i < c->used; i++) {
        if (c->page[i].control) {
            atomic_store_explicit(&c->page[i].control->agent_seen_ns, now, memory_order_relaxed);
        }
    }
}

void roll_agent_controls_fini(struct roll_agent_controls *c)
{
    for (size_t i = 0; i < c->used; i++) {
        roll_control_close(&c->page[i].control);
    }
    free(c->page);
    *c = (struct roll_agent_controls){0};
}
