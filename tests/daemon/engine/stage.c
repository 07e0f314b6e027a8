/*
 * stage.c: see stage.h.
 */
#include "tests/daemon/engine/stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#define MS_ 1000000ull

void stage_open(struct stage *s, struct sim *sim)
{
    memset(s, 0, sizeof(*s));
    s->sim = sim;
    s->now = 1000 * S_;
    s->e = roll_engine_new(&sim->config);
    assert_non_null(s->e);
    roll_engine_tick(s->e, s->now);
    for (uint32_t r = 0; r < sim->ranks; r++) {
        struct roll_source_info info = {.stream = r + 1, .world_rank = (int32_t)r, .world_size = (int32_t)sim->ranks};
        assert_int_equal(roll_engine_open(s->e, &info, &s->source[r]), 0);
    }
}

void stage_show(struct stage *s, uint32_t rank, bool definitions_only)
{
    const struct sim_rank *r = &s->sim->rank[rank];
    for (; s->at[rank] < r->events; s->at[rank]++) {
        const struct sim_event *event = &r->event[s->at[rank]];
        if (definitions_only && event->kind != SIM_DEFINE) {
            return;
        }
        if (event->kind == SIM_DEFINE) {
            assert_int_equal(roll_engine_define(s->e, s->source[rank], &event->def), 0);
        } else if (event->kind == SIM_PROC) {
            assert_int_equal(roll_engine_process(s->e, s->source[rank], event->proc, event->status), 0);
        } else {
            assert_int_equal(roll_engine_feed(s->e, s->source[rank], &event->rec, 1), 0);
        }
    }
}

const char *stage_pass(struct stage *s, uint64_t ms)
{
    for (uint64_t end = s->now + ms * MS_; s->now < end;) {
        s->now += 5 * MS_;
        roll_engine_tick(s->e, s->now);
    }
    s->said[0] = '\0';
    const struct roll_verdict *v;
    while ((v = roll_engine_next(s->e)) != NULL) {
        char ranks[64], life[16] = "";
        roll_rankset_format(&v->culprits, ranks, sizeof(ranks));
        uint64_t earlier = v->supersedes + v->confirms + v->withdraws;
        if (earlier != 0) {
            snprintf(life, sizeof(life), " %c%u", v->supersedes ? '!' : v->confirms ? '=' : '~', (unsigned)earlier);
        }
        snprintf(s->said + strlen(s->said), sizeof(s->said) - strlen(s->said), "%s%s %s %s%s", s->said[0] ? "; " : "",
                 roll_certainty_name(v->certainty), roll_verdict_name(v->code), ranks[0] ? ranks : "-", life);
    }
    return s->said;
}

void stage_close(struct stage *s)
{
    roll_engine_destroy(&s->e);
    sim_destroy(&s->sim);
}
