/*
 * perfetto_notes.c: the words of a Perfetto trace that stand in it once and are named by numbers: what is told of an
 * event, and labels of operations and the like, which are looked up when they first come.
 */
#include "daemon/console/export/perfetto_state.h"

void roll_perfetto_notes_begin(struct roll_perfetto *w)
{
    static const char *const name[ROLL_PERFETTO_NOTES_ALL] = {
#define NOTE(name, text) [ROLL_NOTE_##name] = (text),
        ROLL_PERFETTO_NOTES(NOTE)
#undef NOTE
    };
    for (unsigned i = 0; i < ROLL_PERFETTO_NOTES_ALL; i++) {
        w->note[i] = roll_pf_intern(w->pf, ROLL_PF_NOTE, name[i]);
    }
}

void roll_perfetto_tell(const struct roll_perfetto *w, struct roll_perfetto_told *t, enum roll_perfetto_note name,
                        enum roll_pf_kind kind, uint64_t value, const char *text)
{
    if (t->n < ROLL_PF_NOTES && (kind != ROLL_PF_INTERNED || value != 0)) {
        t->note[t->n++] = (struct roll_pf_note){.name = w->note[name], .kind = kind, .value = value, .text = text};
    }
}

uint64_t roll_perfetto_label(struct roll_perfetto *w, uint64_t table[ROLL_PERFETTO_LABELS], enum roll_pf_space space,
                             uint8_t id, const char *(*name)(unsigned id))
{
    if (table[id] == 0) {
        table[id] = roll_pf_intern(w->pf, space, name(id));
    }
    return table[id];
}

uint64_t roll_perfetto_category(struct roll_perfetto *w, unsigned class)
{
    if (w->category[class] == 0) {
        w->category[class] = roll_pf_intern(w->pf, ROLL_PF_CATEGORY, roll_job_class_name(class));
    }
    return w->category[class];
}
