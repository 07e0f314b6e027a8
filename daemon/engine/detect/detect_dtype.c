/*
 * detect_dtype.c: equally many bytes on every rank, but not of one datatype: an AllGather of float32 meets one of
 * int32.
 *
 * NCCL only moves bytes here and nothing hangs, so this is no finding. But whoever reads the numbers reads garbage,
 * unless both sides mean the same bits. So it is a note, once per call site, or, where no call site is known, once per
 * kind of call on the communicator. The note is given when all members have made the call, so that both sides are
 * complete. Two cases are healthy: the same cast on every rank, and reductions, whose datatype is compared as an
 * argument (detect_signature.c).
 */
#include "daemon/engine/detect/detector.h"

/* The members that made the call with one datatype. */
struct camp {
    const struct entry *entry;
    const struct source *source;
    struct roll_rankset ranks;
};

#define CAMPS 4u

static uint32_t gather(const struct roll_engine *e, const struct comm *c, uint32_t seq, struct camp *camp)
{
    uint32_t used = 0;
    for (uint32_t r = 0; r < c->size; r++) {
        const struct member *m = &c->member[r];
        const struct source *s = m->source == NO_SOURCE ? NULL : e->source[m->source];
        const struct entry *entry = s ? source_entry(s, source_ticket_of(s, m, seq)) : NULL;
        uint32_t i = 0;
        while (entry && i < used && camp[i].entry->rec.dtype != entry->rec.dtype) {
            i++;
        }
        if (!entry || entry->rec.dtype == ROLL_DTYPE_NONE || i == CAMPS) {
            continue;
        }
        if (i == used) {
            camp[used++] = (struct camp){.entry = entry, .source = s};
        }
        (void)roll_rankset_add(&camp[i].ranks, comm_world(e, c, r));
    }
    return used;
}

/* The smaller camp is shown first, as in every verdict. */
static void say_note(struct roll_engine *e, struct comm *c, uint32_t seq, struct camp *camp)
{
    bool turned = roll_rankset_count(&camp[0].ranks) > roll_rankset_count(&camp[1].ranks);
    const struct camp *few = &camp[turned ? 1 : 0], *many = &camp[turned ? 0 : 1];
    struct roll_verdict *v = say(e, ROLL_VERDICT_DTYPE_MISMATCH, ROLL_NOTE);
    if (!v) {
        return;
    }
    say_comm(v, c, seq);
    v->field = "dtype";
    say_side(v, few->source, source_index(e, few->source), &few->ranks, &few->entry->rec);
    say_side(v, many->source, source_index(e, many->source), &many->ranks, &many->entry->rec);
    struct words w = {.used = 0};
    words_ranks(&w, &few->ranks);
    words_add(&w, " called ");
    words_call(&w, &few->entry->rec);
    words_add(&w, " as #%u on ", seq);
    words_comm(&w, c);
    words_add(&w, ", ");
    words_ranks(&w, &many->ranks);
    words_add(&w, " called ");
    words_call(&w, &many->entry->rec);
    words_add(&w, ": equally many bytes of another datatype. Nothing hangs; unless both mean the same bits, the "
                  "numbers that arrive are garbage. Further calls of this place are not told.");
    say_text(e, v, "%s", w.text);
}

void dtype_note(struct roll_engine *e, struct comm *c, uint32_t seq)
{
    struct camp camp[CAMPS] = {0};
    const struct slot *s = comm_slot(c, seq);
    const struct source *first = e->source[c->member[s->rank].source];
    const struct entry *entry = source_entry(first, s->ticket - 1);
    uint64_t site = entry ? site_of(first, &entry->rec) : 0;
    uint64_t key = say_key(ROLL_VERDICT_DTYPE_MISMATCH, c->key, site ? site : s->sig, ROLL_NOTE);
    if (s->variant != 0 || !say_once(e, key)) {
        return;
    }
    if (gather(e, c, seq, camp) >= 2) {
        say_note(e, c, seq, camp);
    }
    for (uint32_t i = 0; i < CAMPS; i++) {
        roll_rankset_fini(&camp[i].ranks);
    }
}
