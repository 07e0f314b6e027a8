/*
 * wait_creation.c: the creations of communicators in which ranks wait, and who keeps each of them from ending.
 *
 * All ranks that wait in one creation share one list of those who are absent. A list for each rank was rejected: ten
 * thousand ranks may wait in the creation, and each list would be as long.
 */
#include "daemon/base/array.h"
#include "daemon/engine/judge/walk.h"

static bool absentee_add(struct creation *c, size_t *room, const struct member *m, struct source *s)
{
    if (ROLL_GROW(c->absentee, *room, c->absentees + 1u) != 0) {
        return false;
    }
    c->absentee[c->absentees++] = (struct absentee){.member = m, .source = s};
    return true;
}

bool creation_is_whole(const struct roll_engine *e, const struct source *s, const struct roll_record *rec)
{
    uint64_t ranks = s->info.world_size > 0 ? (uint64_t)s->info.world_size : e->sources;
    return rec->op == ROLL_OP_COMM_INIT && rec->count >= ranks;
}

/* Finds who is absent from the creation in which t waits: of a split, the members of the parent that have made fewer
 * splits; of a communicator of the whole job, the ranks that have not defined it. */
static void absentees_find(struct walk *walk, struct creation *c, const struct source *t, const struct member *m,
                           const struct roll_record *rec)
{
    const struct roll_engine *e = walk->e;
    bool init = rec->op == ROLL_OP_COMM_INIT, fits = true;
    size_t room = 0;
    for (uint32_t r = 0; r < m->comm->size && fits; r++) {
        const struct member *o = &m->comm->member[r];
        struct source *other = o->source == NO_SOURCE ? NULL : e->source[o->source];
        if (other && init) {
            other->defined = e->visit;
        } else if (other && o->splits < m->splits && o->gaps == o->split_gaps && other->proc != ROLL_PROC_FINISHED &&
                   !o->gone && o->ended == 0) { /* a member that has lost records may have lost that of this split */
            fits = absentee_add(c, &room, o, other);
        }
    }
    for (uint32_t i = 0; init && fits && i < e->sources && creation_is_whole(e, t, rec); i++) {
        struct source *other = e->source[i];
        if (source_alive(other) && other->defined != e->visit) {
            fits = absentee_add(c, &room, NULL, other);
        }
    }
}

uint32_t creation_find(struct walk *walk, const struct source *t, const struct member *m, const struct roll_record *rec)
{
    struct comm *c = m->comm;
    if (c->visit == walk->e->visit && walk->creation[c->creation].splits == m->splits) {
        return c->creation;
    }
    if (ROLL_GROW(walk->creation, walk->creation_room, walk->creations + 1u) != 0) {
        return UINT32_MAX;
    }
    c->visit = walk->e->visit;
    c->creation = walk->creations++;
    walk->creation[c->creation] = (struct creation){.splits = m->splits};
    absentees_find(walk, &walk->creation[c->creation], t, m, rec);
    return c->creation;
}
