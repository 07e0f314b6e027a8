/*
 * story.c: see story.h.
 */
#include "tests/daemon/engine/story.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BEGIN (2000 * S_) /* times from here on are those of a story; below, those that sim.c has made up */
#define LINES 64u

void story_open(struct story *t, uint32_t ranks, uint32_t order)
{
    assert_true(ranks <= STORY_RANKS);
    *t = (struct story){.sim = sim_new(ranks), .now = BEGIN, .order = order};
    t->e = roll_engine_new(&t->sim->config);
    assert_non_null(t->e);
    roll_engine_tick(t->e, t->now);
    for (uint32_t r = 0; r < ranks; r++) {
        t->source[r] = sim_open(t->sim, t->e, r);
    }
}

void story_close(struct story *t)
{
    for (uint32_t r = 0; r < STORY_RANKS; r++) {
        free(t->stamp[r].enter_ns);
    }
    roll_engine_destroy(&t->e);
    sim_destroy(&t->sim);
}

struct crew story_crew(struct story *t, uint32_t first, uint32_t size)
{
    uint32_t rank[STORY_RANKS];
    for (uint32_t i = 0; i < size; i++) {
        rank[i] = first + i;
    }
    return (struct crew){.first = first,
                         .size = size,
                         .dp = sim_comm(t->sim, "dp", rank, size),
                         .ep = sim_comm(t->sim, "ep", rank, size)};
}

void story_at(struct roll_record *rec, uint64_t now, uint64_t took)
{
    rec->enter_ns = now;
    rec->call_ns = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
}

/* The time of a record: the same for the same ticket, whenever that is read again. */
static uint64_t stamp(struct story *t, uint32_t r, const struct roll_record *rec, uint64_t now)
{
    uint64_t ticket = roll_seal_ticket(rec->seal);
    while (ticket >= t->stamp[r].room) {
        size_t room = t->stamp[r].room ? t->stamp[r].room * 2 : 256;
        t->stamp[r].enter_ns = realloc(t->stamp[r].enter_ns, room * sizeof(uint64_t));
        assert_non_null(t->stamp[r].enter_ns);
        memset(t->stamp[r].enter_ns + t->stamp[r].room, 0, (room - t->stamp[r].room) * sizeof(uint64_t));
        t->stamp[r].room = room;
    }
    uint64_t *at = &t->stamp[r].enter_ns[ticket];
    *at = rec->enter_ns >= BEGIN ? rec->enter_ns : *at != 0 ? *at : now;
    return *at;
}

static void feed_next(struct story *t, uint32_t r)
{
    struct sim_event event = t->sim->rank[r].event[t->fed[r]];
    if (event.kind == SIM_RECORD) {
        event.rec.enter_ns = stamp(t, r, &event.rec, t->now + t->fed[r] * 10) + t->ahead_ns[r];
    }
    sim_feed(t->e, t->source[r], &event, &t->now);
    t->fed[r]++;
}

static bool is_left(const struct story *t, uint32_t r)
{
    return t->fed[r] < t->sim->rank[r].events;
}

void story_feed(struct story *t)
{
    uint32_t n = t->sim->ranks;
    bool more = t->order == 0;
    while (more) {
        more = false;
        for (uint32_t r = 0; r < n; r++) {
            if (is_left(t, r)) {
                feed_next(t, r);
                more = true;
            }
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t r = t->order == 2 ? n - 1 - i : i;
        while (is_left(t, r)) {
            feed_next(t, r);
        }
    }
}

void story_pass(struct story *t, uint64_t ns)
{
    story_feed(t);
    for (uint64_t end = t->now + ns; t->now < end;) {
        t->now += S_ / 20;
        roll_engine_tick(t->e, t->now);
    }
}

void story_return(struct story *t, uint32_t rank)
{
    struct sim_rank *r = &t->sim->rank[rank];
    sim_return(t->sim, rank);
    struct roll_record *rec = &r->event[r->events - 1].rec;
    uint64_t took = t->now - t->stamp[rank].enter_ns[roll_seal_ticket(rec->seal)];
    rec->call_ns = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

const char *story_said(struct story *t, enum roll_verdict_code code, char out[STORY_SAID])
{
    char line[LINES][96];
    uint64_t number[LINES];
    size_t lines = 0, used = 0;
    const struct roll_verdict *v;
    while ((v = roll_engine_next(t->e)) && lines < LINES) {
        char ranks[64];
        uint64_t retires = v->supersedes + v->confirms + v->withdraws;
        bool here = false;
        for (size_t i = 0; i < lines && retires != 0 && !here; i++) {
            here = number[i] == retires;
            if (here) {
                lines--;
                memmove(line[i], line[i + 1], (lines - i) * sizeof(line[0]));
                memmove(&number[i], &number[i + 1], (lines - i) * sizeof(number[0]));
            }
        }
        if (v->withdraws != 0 ? here : v->certainty == ROLL_NOTE && v->code != code) {
            continue;
        }
        roll_rankset_format(&v->culprits, ranks, sizeof(ranks));
        number[lines] = v->number;
        if (v->withdraws != 0) {
            snprintf(line[lines++], sizeof(line[0]), "withdrawn %s", roll_verdict_name(v->code));
        } else {
            snprintf(line[lines++], sizeof(line[0]), "%s %s %s", roll_certainty_name(v->certainty),
                     roll_verdict_name(v->code), ranks[0] ? ranks : "-");
        }
        if (getenv("STORY_TEXTS")) {
            fprintf(stderr, "  | %s: %s\n", line[lines - 1], v->text);
        }
    }
    qsort(line, lines, sizeof(line[0]), by_text);
    out[0] = '\0';
    for (size_t i = 0; i < lines && used < STORY_SAID; i++) {
        used += (size_t)snprintf(out + used, STORY_SAID - used, "%s%s", i ? "; " : "", line[i]);
    }
    return out;
}

void story_expect(struct story *t, enum roll_verdict_code code, const char *want)
{
    char said[STORY_SAID];
    assert_string_equal(story_said(t, code, said), want);
}

void story_expect_findings(const struct story *t, uint64_t findings)
{
    struct roll_engine_summary sum;
    roll_engine_summary(t->e, &sum);
    assert_int_equal(sum.findings, findings);
}
