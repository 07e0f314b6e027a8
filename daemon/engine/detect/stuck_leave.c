/*
 * stuck_leave.c: ranks leave a finding about ranks that stay in calls of their own (stuck_lone.c): they have come back,
 * or another verdict says more about them.
 *
 * It stands apart from the finding because those who say more are asked by stuck_lone.c what they have said.
 */
#include "daemon/engine/detect/stuck.h"

struct stuck_lone *stuck_lone_leave(struct roll_engine *e, struct stuck_source *w)
{
    struct stuck_lone *l = &stuck_of_engine(e)->lone[w->lone - 1];
    w->lone = 0;
    w->lone_ns = 0;
    l->ranks -= l->ranks > 0;
    l->changed_ns = e->clock;
    return l;
}

void stuck_lone_close(struct roll_engine *e, struct stuck_lone *l)
{
    stuck_of_engine(e)->lones--;
    *l = (struct stuck_lone){.number = 0};
}

void stuck_lone_taken(struct roll_engine *e, struct roll_verdict *v, const struct roll_rankset *ranks)
{
    struct stuck_engine *own = stuck_of_engine(e);
    for (uint32_t i = 0; i < e->sources && own->lones > 0; i++) {
        struct stuck_source *w = roll_rankset_has(ranks, e->source[i]->world) ? stuck_of_source(e->source[i]) : NULL;
        struct stuck_lone *l = w && w->lone != 0 ? stuck_lone_leave(e, w) : NULL;
        if (l && l->ranks == 0) {
            say_supersedes(e, v, l->number);
            stuck_lone_close(e, l);
        }
    }
}
