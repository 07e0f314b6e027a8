/*
 * engine.c: the life of an engine, its input, and who is asked when.
 *
 * All work is done inside the call that brings the news: feeding matches, and a tick sweeps and judges stalls. Verdicts
 * wait in a list until they are fetched. A queue of internal events was rejected: no work here takes long enough to be
 * put off, and a fixed order makes runs repeat.
 */
#include "daemon/base/array.h"
#include "daemon/engine/detect/detector.h"
#include "daemon/engine/model/budget.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_STALL_NS   500000000u
#define DEFAULT_SUSPECT_NS 5000000000u
#define DEFAULT_WINDOW     4096u
#define SOURCES_MAX        (1u << 20)
#define STARVED_MOST       980u /* permille: suspicion takes at most fifty times as long */

static uint32_t power_of_two(uint32_t n)
{
    uint32_t p = SLOTS_MIN;
    while (p < n && p < 1u << 20) {
        p *= 2;
    }
    return p;
}

void roll_engine_set(roll_engine_t *e, const struct roll_engine_config *config)
{
    e->config.stall_ns = config->stall_ns ? config->stall_ns : DEFAULT_STALL_NS;
    due_anew(&e->walk_due);
    e->config.suspect_ns = config->suspect_ns ? config->suspect_ns : DEFAULT_SUSPECT_NS;
    e->config.policy = config->policy;
}

void roll_engine_expect(roll_engine_t *e, const struct roll_expected *expected)
{
    e->expected = expected;
}

void roll_engine_settings(const roll_engine_t *e, struct roll_engine_config *out)
{
    *out = e->config;
}

roll_engine_t *roll_engine_new(const struct roll_engine_config *config)
{
    struct roll_engine *e = calloc(1, sizeof(*e));
    if (!e) {
        return NULL;
    }
    e->ask = &detectors_ask;
    e->forget = comm_forget_one;
    roll_engine_set(e, config);
    e->config.window = power_of_two(config->window ? config->window : DEFAULT_WINDOW);
    e->config.memory = e->room = config->memory ? config->memory : BUDGET_DEFAULT;
    if (detectors_open(e) != 0) {
        roll_engine_destroy(&e);
    }
    return e;
}

static void said_free(struct said **said)
{
    if (*said) {
        struct roll_verdict *v = &(*said)->verdict;
        roll_rankset_fini(&v->culprits);
        roll_rankset_fini(&v->waiting);
        roll_rankset_fini(&v->layers);
        for (uint32_t i = 0; i < ROLL_VERDICT_SIDES; i++) {
            roll_rankset_fini(&v->side[i].ranks);
        }
        free((*said)->text);
        free(*said);
        *said = NULL;
    }
}

/* Frees a communicator with what matching has hung onto its members. */
static void comm_fini(struct comm *c)
{
    for (uint32_t r = 0; r < c->size; r++) {
        lowered_free(&c->member[r]);
    }
    comm_free(c);
}

void roll_engine_destroy(roll_engine_t **engine)
{
    struct roll_engine *e = *engine;
    if (!e) {
        return;
    }
    detectors_close(e);
    while (e->out_first) {
        struct said *next = e->out_first->next;
        said_free(&e->out_first);
        e->out_first = next;
    }
    said_free(&e->shown);
    doubts_free(e); /* before the communicators, which remember what is looked at again */
    for (uint32_t i = 0; i < e->comms; i++) {
        align_drop(e, e->comm[i]);
        comm_fini(e->comm[i]);
    }
    for (uint32_t i = 0; i < e->sources; i++) {
        struct source *s = e->source[i];
        source_log_free(s);
        free(s->thread);
        free(s->touched);
        free(s->member);
        free(s->comm);
        free(s->queue);
        graph_forget(s);
        site_forget(s);
        free(s);
    }
    for (uint32_t i = 0; i < FOUND_KEPT; i++) {
        roll_rankset_fini(&e->found[i].ranks);
    }
    lines_free(e);
    rounds_free(e);
    free(e->source);
    free(e->stirred);
    free(e->stirred_queues);
    due_fini(&e->walk_due);
    free(e->newest);
    free(e->comm);
    roll_map_fini(&e->comm_at);
    tensors_free(e);
    free(e->variant);
    free(e->said_key);
    roll_map_fini(&e->said_key_at);
    free(e->told);
    roll_rankset_fini(&e->view_members);
    roll_rankset_fini(&e->view_behind);
    free(e);
    *engine = NULL;
}

int roll_engine_open(roll_engine_t *e, const struct roll_source_info *info, uint32_t *source)
{
    if (e->sources >= SOURCES_MAX) {
        return ROLL_E_LIMIT;
    }
    int rc = ROLL_GROW(e->source, e->source_room, e->sources + 1u);
    rc = rc == 0 ? ROLL_GROW_ZERO(e->stirred, e->stirred_room, e->sources / 64 + 1u) : rc;
    rc = rc == 0 ? ROLL_GROW_ZERO(e->stirred_queues, e->stirred_queues_room, e->sources + 1u) : rc;
    rc = rc == 0 ? due_room(&e->walk_due, e->sources + 1u) : rc;
    if (rc != 0) {
        return rc;
    }
    struct source *s = aligned_alloc(CACHE_LINE, sizeof(*s));
    if (!s) {
        return ROLL_E_NOMEM;
    }
    memset(s, 0, sizeof(*s));
    s->info = *info;
    snprintf(s->host, sizeof(s->host), "%s", info->host ? info->host : "");
    snprintf(s->exe, sizeof(s->exe), "%s", info->exe ? info->exe : "");
    s->info.host = s->host;
    s->info.exe = s->exe;
    s->number = e->sources;
    s->world = info->world_rank >= 0 ? (uint32_t)info->world_rank : e->sources;
    s->proc = ROLL_PROC_RUNNING;
    s->exit_status = ROLL_EXIT_UNKNOWN;
    s->step = s->first_step = ROLL_STEP_NONE;
    source_news(e, s);
    rc = source_enlist(e, s, e->sources);
    if (rc != 0) {
        free(s);
        return rc;
    }
    e->source[e->sources] = s;
    e->world_told = info->world_size > (int64_t)e->world_told ? (uint32_t)info->world_size : e->world_told;
    e->live++;
    e->sight_changed = e->sight_changed || e->no_rooms > 0; /* it may take the place of a process that was set aside */
    *source = e->sources++;
    return 0;
}

bool roll_engine_refused(const roll_engine_t *e, uint32_t source, uint64_t *count)
{
    *count = source < e->sources ? e->source[source]->refusals : 0;
    return source < e->sources;
}

uint64_t roll_engine_refusals(const roll_engine_t *e)
{
    return e->refusals;
}

uint64_t roll_engine_shared(const roll_engine_t *e)
{
    return e->shared;
}

void roll_engine_room(roll_engine_t *e, uint64_t memory)
{
    e->config.memory = memory;
}

int roll_engine_clock(roll_engine_t *e, uint32_t source, int64_t offset_ns)
{
    if (source >= e->sources) {
        return ROLL_E_ARG;
    }
    e->source[source]->offset = e->source[source]->line = offset_ns;
    return 0;
}

static uint64_t apart(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

int roll_engine_clock_set(roll_engine_t *e, uint32_t source, int64_t offset_ns, uint64_t mono_ns)
{
    if (source >= e->sources) {
        return ROLL_E_ARG;
    }
    struct source *s = e->source[source];
    uint64_t was = mono_ns + (uint64_t)s->line, is = mono_ns + (uint64_t)offset_ns;
    s->offset = offset_ns;
    if (e->now == 0 || s->records == 0 || apart(is, e->now) < apart(was, e->now)) {
        source_set_line(s, offset_ns);
    }
    return 0;
}

int roll_engine_define(roll_engine_t *e, uint32_t source, const struct roll_def *def)
{
    if (source >= e->sources) {
        return ROLL_E_ARG;
    }
    if (def->type == ROLL_DEF_GRAPH) {
        graph_define(e->source[source], def);
        return 0;
    }
    if (def->type == ROLL_DEF_CALLSITE || def->type == ROLL_DEF_MODULE || def->type == ROLL_DEF_SOURCE ||
        def->type == ROLL_DEF_LINE || def->type == ROLL_DEF_SITES) {
        return site_define(e, e->source[source], def);
    }
    if (def->type == ROLL_DEF_NAME && def->name.info.kind == ROLL_NAME_GROUP) {
        return group_define(e, def);
    }
    if (def->type == ROLL_DEF_NAME) {
        return tensors_define(e, def);
    }
    if (def->type != ROLL_DEF_COMM) {
        return 0;
    }
    struct comm *contradicts;
    int rc = comm_define(e, source, def->id, &def->comm.info, def->comm.label, &contradicts);
    room_tell(e);
    return contradicts ? claim_add(e, contradicts, source, &def->comm.info) : rc;
}

int roll_engine_process(roll_engine_t *e, uint32_t source, enum roll_proc_state state, int32_t exit_status)
{
    if (source >= e->sources) {
        return ROLL_E_ARG;
    }
    struct source *s = e->source[source];
    s->asked = s->asked || (exit_status & ROLL_EXIT_ASKED) != 0;
    exit_status &= ~ROLL_EXIT_ASKED;
    if (exit_status != ROLL_EXIT_UNKNOWN) {
        s->exit_status = exit_status;
    }
    if (state == ROLL_PROC_DEAD && s->exit_status == 0) { /* the process left by _exit, which runs no destructors */
        state = ROLL_PROC_FINISHED;
    }
    if (state != s->proc) {
        e->ended += source_alive(s) && (state == ROLL_PROC_DEAD || state == ROLL_PROC_FINISHED);
        e->enrolled += !source_alive(s); /* a process that was taken for ended by mistake is back */
        e->live -= source_alive(s);
        s->proc = state;
        e->live += source_alive(s);
        e->proc_changes++;
        source_stir(e, source);
        s->proc_ns = e->clock;
        source_news(e, s);
        e->sight_changed = true;
    }
    return 0;
}

static uint64_t earlier(uint64_t time, uint64_t now, uint64_t ago)
{
    uint64_t then = now > ago ? now - ago : 0;
    return then < time ? then : time;
}

int roll_engine_quiet(roll_engine_t *e, uint32_t source, uint64_t quiet_ns)
{
    if (source >= e->sources) {
        return ROLL_E_ARG;
    }
    struct source *s = e->source[source];
    s->seen = earlier(s->seen, e->clock, quiet_ns);
    s->calm = earlier(s->calm, e->calm, quiet_ns);
    for (uint32_t i = 0; i < s->threads; i++) {
        s->thread[i].since = earlier(s->thread[i].since, e->clock, quiet_ns);
        s->thread[i].calm = earlier(s->thread[i].calm, e->calm, quiet_ns);
    }
    return 0;
}

int roll_engine_sight(roll_engine_t *e, uint32_t source, const struct roll_engine_sight *sight)
{
    if (source >= e->sources) {
        return ROLL_E_ARG;
    }
    struct source *s = e->source[source];
    bool heard = sight->heard && !s->no_room; /* whom there was no room for stays aside */
    if (!s->no_room && s->aside != (!sight->heard && sight->aside)) {
        s->aside = !s->aside;
        e->sight_changed = true;
    }
    if (s->unheard == heard) { /* what the rank did meanwhile comes now or later: its silence begins anew */
        s->unheard = !heard;
        e->silences += s->unheard;
        source_news(e, s);
        s->init_calm = s->heard_calm = e->calm;
        refused_renew(e, s);
        for (uint32_t i = 0; i < s->threads; i++) {
            s->thread[i].calm = e->calm;
        }
        e->sight_changed = true;
    }
    uint32_t starved = sight->starved < STARVED_MOST ? sight->starved : STARVED_MOST;
    /* Only the most starved rank counts: agents tell of their ranks all the time. */
    e->sight_changed =
        e->sight_changed || (starved != s->starved && (starved > e->starved || s->starved >= e->starved));
    s->starved = starved;
    return 0;
}

/* All live ranks are heard again: what they did meanwhile comes now, so whoever has waited for them in a creation waits
 * anew. */
static void all_heard(struct roll_engine *e)
{
    e->heard_clock = e->clock;
    for (uint32_t i = 0; i < e->sources; i++) {
        struct source *s = e->source[i];
        if (s->init != 0 && s->init_dark == s->init) {
            s->init_dark = 0;
            s->init_calm = e->calm;
        }
    }
}

/*
 * Finds how many ranks are set aside for want of room, how many live ranks are not heard, and the most starved of the
 * others, which decides for all how much of the passing time counts as calm: a rank that looks idle may be waiting,
 * unseen, for the starved one.
 */
static void look_at_sight(struct roll_engine *e)
{
    uint32_t unheard = e->unheard;
    e->sight_changed = false;
    e->looks += e->sources;
    e->starved = e->unheard = e->no_rooms = 0;
    for (uint32_t i = 0; i < e->sources; i++) {
        const struct source *s = e->source[i];
        e->no_rooms += source_lacks_room(e, s);
        if (source_alive(s)) {
            bool counts = !s->unheard || s->aside; /* also of a rank aside it is known how freely it runs */
            e->unheard += s->unheard && !s->aside;
            e->starved = counts && s->starved > e->starved ? s->starved : e->starved;
        }
    }
    if (unheard > 0 && e->unheard == 0) {
        all_heard(e);
    }
}

static void ask_tick(struct roll_engine *e)
{
    silence_settle(e);
    for (uint32_t i = 0; e->held_comms > 0 && i < e->comms; i++) {
        if (e->comm[i]->held != NO_SEQ) {
            align_tick(e, e->comm[i]);
        }
    }
    for (size_t i = 0; i < DETECTORS; i++) {
        if (detectors[i]->tick) {
            detectors[i]->tick(e);
        }
    }
    waits_look(e);
}

/*
 * The patience clock goes with the ticks, but never by more than one stall at a time: when this process has been asleep
 * and not the job (stopped, suspended, started late), no call looks old that has merely not been fed yet.
 */
int roll_engine_tick(roll_engine_t *e, uint64_t now_ns)
{
    if (now_ns > e->now) {
        uint64_t passed = e->now ? now_ns - e->now : 0;
        passed = passed < e->config.stall_ns ? passed : e->config.stall_ns;
        if (e->sight_changed) {
            look_at_sight(e);
        }
        e->clock += passed;
        e->calm += passed * (1000 - e->starved) / 1000;
        e->now = now_ns;
        ask_tick(e);
    }
    return 0;
}

int roll_engine_finish(roll_engine_t *e)
{
    e->finishing = true;
    e->dirty = true;
    ask_tick(e);
    e->finishing = false;
    return 0;
}

const struct roll_verdict *roll_engine_next(roll_engine_t *e)
{
    said_free(&e->shown);
    if (!e->out_first) {
        return NULL;
    }
    e->shown = e->out_first;
    say_keep(e, &e->shown->verdict);
    e->out_first = e->shown->next;
    if (!e->out_first) {
        e->out_last = NULL;
    }
    return &e->shown->verdict;
}
