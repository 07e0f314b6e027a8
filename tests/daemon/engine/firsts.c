/*
 * firsts.c: for every code a first fault, what it is told as, and how the job goes on after it: the tables of the files
 * first_*.c one behind the other, and what their scenes share.
 */
#include "tests/daemon/engine/firsts.h"

static const struct first_table *const tables[] = {&first_calls, &first_life, &first_moe};

const struct first *first_at(size_t i)
{
    for (size_t k = 0; k < sizeof(tables) / sizeof(tables[0]); k++) {
        if (i < tables[k]->count) {
            return &tables[k]->at[i];
        }
        i -= tables[k]->count;
    }
    return NULL;
}

struct roll_record *first_call(struct story *t, uint32_t r, uint32_t comm, enum roll_op op, uint64_t count,
                               uint16_t site)
{
    t->sim->site = site;
    return sim_call(t->sim, r, comm, op, count);
}

void first_wait(struct story *t, uint32_t r, bool stuck)
{
    t->sim->site = 39;
    if (stuck) {
        sim_stuck(t->sim, r);
    } else {
        sim_sync(t->sim, r);
    }
}

void first_all_wait(struct story *t, bool stuck)
{
    EACH(r, &t->left)
    {
        first_wait(t, r, stuck);
    }
}

/* All hosts of the left crew, whose last record is a wait, come back. */
void first_all_return(struct story *t, int kind)
{
    (void)kind;
    EACH(r, &t->left)
    {
        story_return(t, r);
    }
}

/* All but the last rank are in a call of dp. */
void first_others_wait(struct story *t)
{
    EACH(r, &t->left)
    {
        if (r != LAST) {
            first_call(t, r, t->left.dp, AR, 512, 38);
            first_wait(t, r, true);
        }
    }
}

/* The last one comes after all, and everybody goes on. */
void first_comes_after_all(struct story *t, int kind)
{
    (void)kind;
    first_call(t, LAST, t->left.dp, AR, 512, 38);
    first_wait(t, LAST, true);
    first_all_return(t, 0);
}
