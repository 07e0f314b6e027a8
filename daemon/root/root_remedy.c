/*
 * root_remedy.c: which remedies are on, by policy and by hand, and how the nodes hear of it.
 *
 * The root keeps what was switched as a short list of (level, on, off) and sends each change to every agent; an agent
 * that comes later is sent the list (root_remedy_tell.c). The control pages do the rest (trace/control.h). Policy auto:
 * the first verdict that names a local remedy switches it on for the whole job (it acts only where its hazard is met);
 * one that names a symmetric remedy switches it on for the layer of the verdict, else for the job, because it costs
 * every rank a row.
 *
 * The control pages outlive a root, so a root asks the first agent of each run what a predecessor has switched there,
 * and goes on with that. A file of its own for it was rejected: it could contradict what the ranks obey.
 */
#include "daemon/base/array.h"
#include "daemon/root/root_state.h"

#include "daemon/base/log.h"
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const level_name[] = {"job", "group", "layer"};
static const char *const action_name[] = {"clear", "on", "off"};

/* The communicator of this switch, whose remedies were all cleared, is known among those that were replaced from here
 * on. The oldest of these is forgotten where there are too many. */
static int replace(struct roll_run *run, const struct roll_switch *s)
{
    size_t at = run->replaced_upto % ROLL_REPLACED_MOST;
    int err = ROLL_GROW(run->replaced, run->replaced_room, at + 1);
    if (err) {
        return err;
    }
    if (run->replaced_upto >= ROLL_REPLACED_MOST && run->replaced[at].cleared != 0) {
        roll_log_about(ROLL_LOG_WARNING, run->job,
                       "%s.%u: more than %u communicators had remedies of their own, and were cleared: an agent that "
                       "was away since then may still have those of 0x%016llx",
                       run->job, run->restart, ROLL_REPLACED_MOST, (unsigned long long)run->replaced[at].comm_key);
    }
    run->replaced[at] = (struct roll_replaced){.comm_key = s->comm_key, .cleared = s->cleared};
    run->replaced_upto++;
    return 0;
}

/* What was cleared of a communicator that gets a switch again; it is not among those that were replaced any more. */
static uint32_t take_back(struct roll_run *run, uint64_t comm_key)
{
    uint32_t cleared = 0;
    for (size_t i = 0; i < ROLL_REPLACED_MOST && i < run->replaced_upto; i++) {
        if (run->replaced[i].comm_key == comm_key) {
            cleared |= run->replaced[i].cleared;
            run->replaced[i].cleared = 0;
        }
    }
    return cleared;
}

/* Finds the entry of one level, and makes it where there is none: of a group whose switches were all cleared, where as
 * many groups are known as a control page holds. NULL: out of memory, or more groups than that have switches. */
static struct roll_switch *find_switch(struct roll_run *run, const struct roll_control_change *c)
{
    size_t groups = 0;
    struct roll_switch *cleared = NULL;
    for (size_t i = 0; i < run->switches_used; i++) {
        struct roll_switch *s = &run->switches[i];
        groups += s->level == ROLL_LEVEL_GROUP;
        cleared = s->level == ROLL_LEVEL_GROUP && !(s->on | s->off) ? s : cleared;
        if (s->level == c->level && (c->level != ROLL_LEVEL_LAYER || s->layer == c->layer) &&
            (c->level != ROLL_LEVEL_GROUP || s->comm_key == c->comm_key)) {
            return s;
        }
    }
    bool full = c->level == ROLL_LEVEL_GROUP && groups >= ROLL_CONTROL_GROUPS;
    if (full ? !cleared || replace(run, cleared) != 0
             : ROLL_GROW(run->switches, run->switches_room, run->switches_used + 1) != 0) {
        return NULL;
    }
    struct roll_switch *s = full ? cleared : &run->switches[run->switches_used++];
    *s = (struct roll_switch){.level = c->level, .layer = c->layer, .comm_key = c->comm_key};
    s->cleared = c->level == ROLL_LEVEL_GROUP ? take_back(run, c->comm_key) : 0;
    return s;
}

static int change_run(roll_root_t *root, struct roll_run *run, const struct roll_control_change *c)
{
    struct roll_switch *s = find_switch(run, c);
    if (!s) {
        return ROLL_E_LIMIT;
    }
    s->on = c->action == ROLL_ACTION_ON ? s->on | c->mask : s->on & ~c->mask;
    s->off = c->action == ROLL_ACTION_OFF ? s->off | c->mask : s->off & ~c->mask;
    s->cleared = (c->action == ROLL_ACTION_CLEAR ? s->cleared | c->mask : s->cleared) & ~(s->on | s->off);
    roll_remedy_send(root, run, c);
    return 0;
}

/* What was switched for the job or for one layer. */
static struct roll_switch switched(const struct roll_run *run, uint32_t level, uint32_t layer)
{
    for (size_t i = 0; i < run->switches_used; i++) {
        if (run->switches[i].level == level && (level == ROLL_LEVEL_JOB || run->switches[i].layer == layer)) {
            return run->switches[i];
        }
    }
    return (struct roll_switch){.level = level};
}

void roll_remedy_auto(roll_root_t *root, struct roll_run *run, const struct roll_verdict *verdict)
{
    uint32_t bit = verdict->remedy;
    if (run->policy != ROLL_POLICY_AUTO || bit == 0 || !roll_verdict_is_finding(verdict)) {
        return;
    }
    if (run->replaying) { /* somebody may have switched the remedy off since then: learn_all comes back to the verdict
                           */
        return;
    }
    struct roll_control_change c = {.level = ROLL_LEVEL_JOB, .action = ROLL_ACTION_ON, .mask = bit};
    if (!(bit & roll_remedy_local()) && verdict->layer < ROLL_CONTROL_LAYERS) {
        c.level = ROLL_LEVEL_LAYER;
        c.layer = verdict->layer;
    }
    struct roll_switch job = switched(run, ROLL_LEVEL_JOB, 0), here = switched(run, c.level, c.layer);
    if ((job.on | job.off | here.on | here.off) & bit) { /* the remedy is on already, or somebody wants it off */
        return;
    }
    if (change_run(root, run, &c) == 0) {
        roll_log(ROLL_LOG_INFO, "%s.%u: policy auto switches remedy %s on for the %s", run->job, run->restart,
                 roll_remedy_name(bit), level_name[c.level]);
    }
}

static void set_policy(roll_root_t *root, struct roll_run *run, enum roll_policy policy)
{
    run->policy = policy;
    run->policy_set = true;
    roll_run_settings(root, run);
}

/* Verdicts that were said before the policy was set count as well. */
static void judge_again(roll_root_t *root, struct roll_run *run)
{
    for (size_t i = 0; i < run->verdicts.used; i++) {
        roll_remedy_auto(root, run, &run->verdicts.at[i]->said);
    }
}

/* what a predecessor switched */

/* Takes over what is switched on one level; what this root has switched there itself stays. */
static bool learn(struct roll_run *run, const struct roll_control_change *level, json_int_t on, json_int_t off)
{
    struct roll_switch *s = (on | off) ? find_switch(run, level) : NULL;
    if (!s) {
        return false;
    }
    uint32_t others = roll_remedy_all() &
                      ~(s->on | s->off | s->cleared); /* a newer agent may know remedies that this root does not */
    s->on |= (uint32_t)on & others;
    s->off |= (uint32_t)off & others;
    return true;
}

/* Takes over the entries of one list: [layer or key, on, off]. Returns how many. */
static unsigned learn_list(struct roll_run *run, enum roll_control_level level, const json_t *list)
{
    unsigned n = 0;
    for (size_t i = 0; i < json_array_size(list) && i < ROLL_CONTROL_LAYERS; i++) {
        const json_t *item = json_array_get(list, i);
        const char *key = json_string_value(json_array_get(item, 0));
        json_int_t layer = json_integer_value(json_array_get(item, 0));
        struct roll_control_change c = {.level = level};
        c.comm_key = level == ROLL_LEVEL_GROUP && key ? strtoull(key, NULL, 16) : 0;
        c.layer = level == ROLL_LEVEL_LAYER ? (uint32_t)layer : 0;
        bool fits = level == ROLL_LEVEL_GROUP ? c.comm_key != 0 : layer >= 0 && layer < ROLL_CONTROL_LAYERS;
        n += fits &&
             learn(run, &c, json_integer_value(json_array_get(item, 1)), json_integer_value(json_array_get(item, 2)));
    }
    return n;
}

/* Says what was taken over from one agent, and tells it to all agents of the run. levels: how many were taken over. */
static void tell_agents(roll_root_t *root, const struct roll_run *run, const struct roll_peer *from, unsigned levels)
{
    roll_log(ROLL_LOG_INFO, "root: %s.%u goes on as the agent on %s has it: policy %s, remedies switched on %u levels",
             run->job, run->restart, from->host, roll_policy_name(run->policy), levels);
    for (size_t i = 0; i < root->peers_used; i++) {
        roll_remedy_tell(root->peers[i], run);
    }
}

static void learn_all(roll_root_t *root, struct roll_run *run, const struct roll_peer *peer, const json_t *answer)
{
    const char *name = json_string_value(json_object_get(answer, "policy"));
    const struct roll_control_change job = {.level = ROLL_LEVEL_JOB};
    enum roll_policy policy;
    run->switches_known = true;
    unsigned n = learn(run, &job, json_integer_value(json_object_get(answer, "on")),
                       json_integer_value(json_object_get(answer, "off")));
    n += learn_list(run, ROLL_LEVEL_LAYER, json_object_get(answer, "layers"));
    n += learn_list(run, ROLL_LEVEL_GROUP, json_object_get(answer, "groups"));
    bool told = name && !run->policy_set && roll_policy_by_name(name, &policy) == 0;
    if (told) {
        set_policy(root, run, policy);
    }
    if (told || n > 0) {
        tell_agents(root, run, peer, n);
    }
    judge_again(root, run);
}

void roll_remedy_answer(roll_root_t *root, const struct roll_peer *peer, const struct roll_frame *frame)
{
    json_t *json = roll_net_json(frame);
    const char *op = json_string_value(json_object_get(json, "op"));
    const char *job = json_string_value(json_object_get(json, "job"));
    bool ours = op && job && strcmp(op, "switches") == 0;
    for (size_t i = 0; ours && i < root->runs_used; i++) {
        struct roll_run *run = root->runs[i];
        if (!run->switches_known && strcmp(run->job, job) == 0 &&
            json_integer_value(json_object_get(json, "restart")) == (json_int_t)run->restart) {
            learn_all(root, run, peer, json);
        }
    }
    json_decref(json);
}

/* queries */

static json_t *names(uint32_t mask)
{
    json_t *list = json_array();
    for (uint32_t bit = 1; bit != 0; bit <<= 1) {
        if (mask & bit) {
            json_array_append_new(list, json_string(roll_remedy_name(bit)));
        }
    }
    return list;
}

json_t *roll_remedy_state(const struct roll_run *run)
{
    json_t *layers = json_array(), *groups = json_array();
    for (size_t i = 0; i < run->switches_used; i++) {
        const struct roll_switch *s = &run->switches[i];
        if (s->level == ROLL_LEVEL_LAYER && (s->on | s->off)) {
            json_array_append_new(
                layers, json_pack("{s:i,s:o,s:o}", "layer", (int)s->layer, "on", names(s->on), "off", names(s->off)));
        } else if (s->level == ROLL_LEVEL_GROUP && (s->on | s->off)) {
            char key[24];
            snprintf(key, sizeof(key), "0x%016llx", (unsigned long long)s->comm_key);
            json_array_append_new(groups,
                                  json_pack("{s:s,s:o,s:o}", "comm", key, "on", names(s->on), "off", names(s->off)));
        }
    }
    return json_pack("{s:o,s:o,s:o}", "on", names(switched(run, ROLL_LEVEL_JOB, 0).on), "layers", layers, "groups",
                     groups);
}

static json_t *error(const char *text)
{
    return json_pack("{s:s}", "error", text);
}

static int find_name(const char *const *table, size_t n, const char *name)
{
    for (size_t i = 0; i < n && name; i++) {
        if (strcmp(table[i], name) == 0) {
            return (int)i;
        }
    }
    return -1;
}

/* All that there are: who draws buttons for them need not know them. */
static json_t *known(void)
{
    json_t *list = json_array();
    for (uint32_t bit = 1; bit != 0; bit <<= 1) {
        if (strcmp(roll_remedy_name(bit), "?") != 0) {
            json_array_append_new(list,
                                  json_pack("{s:s,s:b,s:s}", "name", roll_remedy_name(bit), "local",
                                            (int)((roll_remedy_local() & bit) != 0), "text", roll_remedy_text(bit)));
        }
    }
    return list;
}

/* The MoE layers that ranks have reported, as text; "": none has reported one. Null where the run is compared by
 * digests, whose records are elsewhere. */
static json_t *layers_text(const struct roll_run *run)
{
    struct roll_rankset layers = {0};
    char text[256];
    (void)roll_engine_layers(roll_feed_engine(run->feed), &layers);
    (void)roll_rankset_format(&layers, text, sizeof(text));
    roll_rankset_fini(&layers);
    return run->digested ? json_null() : json_string(text);
}

/*
 * What is wrong with a switch for one layer or communicator, as far as the run's records tell: a mistyped number would
 * be switched on for nobody, and who switched it would wait for a cure. NULL: nothing. Where the run is compared by
 * digests its records are elsewhere.
 */
static json_t *nowhere(const struct roll_run *run, const struct roll_control_change *c)
{
    const roll_engine_t *engine = roll_feed_engine(run->feed);
    struct roll_rankset layers = {0};
    struct roll_engine_summary sum;
    char known[256], text[512] = "";
    roll_engine_summary(engine, &sum);
    bool all = roll_engine_layers(engine, &layers);
    if (run->digested || c->action == ROLL_ACTION_CLEAR) {
        all = false; /* and what was switched by mistake can be taken back */
    } else if (c->level == ROLL_LEVEL_LAYER && all && !roll_rankset_has(&layers, c->layer)) {
        (void)roll_rankset_format(&layers, known, sizeof(known));
        snprintf(
            text, sizeof(text),
            "no rank that is heard has told of MoE layer %u, only of layer%s %s (--force switches it all the same)",
            c->layer, roll_rankset_count(&layers) == 1 ? "" : "s", known);
    } else if (c->level == ROLL_LEVEL_GROUP && sum.comms > 0 && !roll_engine_knows(engine, c->comm_key)) {
        snprintf(text, sizeof(text),
                 "no rank of this job is a member of communicator 0x%016llx: `rollcall top` shows the keys (--force "
                 "switches it all the same)",
                 (unsigned long long)c->comm_key);
    }
    roll_rankset_fini(&layers);
    return text[0] ? error(text) : NULL;
}

json_t *roll_remedy_query(roll_root_t *root, struct roll_run *run, const json_t *query)
{
    const char *action = json_string_value(json_object_get(query, "action"));
    if (action && strcmp(action, "list") == 0) {
        return json_pack("{s:o,s:o,s:o}", "remedies", roll_remedy_state(run), "known", known(), "moe_layers",
                         layers_text(run));
    }
    const char *level = json_string_value(json_object_get(query, "level"));
    const char *comm = json_string_value(json_object_get(query, "comm"));
    const char *remedy = json_string_value(json_object_get(query, "remedy"));
    const json_t *layer = json_object_get(query, "layer");
    int act = find_name(action_name, 3, action), lev = find_name(level_name, 3, level ? level : "job");
    if (act < 0) {
        return error("action is one of list, on, off, clear");
    }
    if (lev < 0) {
        return error("level is one of job, group, layer");
    }
    struct roll_control_change c = {
        .level = (uint32_t)lev, .action = (uint32_t)act, .mask = remedy ? roll_remedy_by_name(remedy) : 0};
    if (!remedy && act == ROLL_ACTION_CLEAR) {
        c.mask = UINT32_MAX;
    }
    if (c.mask == 0) {
        return error("no such remedy");
    }
    if (lev == ROLL_LEVEL_LAYER) {
        if (!json_is_integer(layer) || json_integer_value(layer) < 0 ||
            json_integer_value(layer) >= ROLL_CONTROL_LAYERS) {
            return error("level layer needs a layer from 0 to 255");
        }
        c.layer = (uint32_t)json_integer_value(layer);
    }
    if (lev == ROLL_LEVEL_GROUP) {
        c.comm_key = comm ? strtoull(comm, NULL, 16) : 0;
        if (c.comm_key == 0) {
            return error("level group needs comm, a communicator's key in hexadecimal");
        }
    }
    json_t *wrong = json_is_true(json_object_get(query, "force")) ? NULL : nowhere(run, &c);
    if (wrong) {
        return wrong;
    }
    if (change_run(root, run, &c) != 0) {
        return error("too many groups have remedies of their own; clear one first");
    }
    roll_log(ROLL_LOG_INFO, "%s.%u: by hand: remedy %s %s for the %s", run->job, run->restart, remedy ? remedy : "all",
             action, level_name[lev]);
    return json_pack("{s:b,s:o,s:o}", "ok", 1, "remedies", roll_remedy_state(run), "moe_layers", layers_text(run));
}

json_t *roll_policy_query(roll_root_t *root, struct roll_run *run, const json_t *query)
{
    const char *name = json_string_value(json_object_get(query, "policy"));
    enum roll_policy policy;
    if (name && roll_policy_by_name(name, &policy) != 0) {
        return error("policy is one of observe, advise, auto");
    }
    if (name) {
        set_policy(root, run, policy);
        struct roll_control_change c = {.action = ROLL_ACTION_POLICY, .mask = policy};
        roll_remedy_send(root, run, &c);
        uint32_t off = switched(run, ROLL_LEVEL_JOB, 0).off;
        if (off) { /* a new policy lets ranks take all remedies again, so those that somebody wants off are sent anew */
            c = (struct roll_control_change){.action = ROLL_ACTION_OFF, .mask = off};
            roll_remedy_send(root, run, &c);
        }
        judge_again(root, run);
    }
    return json_pack("{s:s}", "policy", roll_policy_name(run->policy));
}
