/*
 * note.c: what an agent saw that is in no ring: a process in which NCCL is at work, and none of whose calls has been
 * seen.
 *
 * Such a process is no source, so nothing can be judged about it; but that it exists limits every other verdict. So
 * there is one note per process.
 */
#include "daemon/engine/say/say.h"

#include <string.h>

static uint64_t hash_text(const char *text)
{
    uint64_t h = 0;
    for (const char *p = text; *p != '\0'; p++) {
        h = say_key(h, (uint64_t)(unsigned char)*p, 0, 0);
    }
    return h;
}

int roll_engine_note(roll_engine_t *e, const struct roll_engine_note *note)
{
    if (note->pid == 0 || note->host == NULL || note->exe == NULL || note->reason == NULL) {
        return ROLL_E_ARG;
    }
    if (!say_once(e, say_key(ROLL_VERDICT_ATTACHED_UNSEEN, note->pid, hash_text(note->host), 0))) {
        return 0;
    }
    struct roll_verdict *v = say(e, ROLL_VERDICT_ATTACHED_UNSEEN, ROLL_NOTE);
    if (!v) {
        return ROLL_E_NOMEM;
    }
    struct words w = {.used = 0};
    if (note->world_rank >= 0) {
        (void)roll_rankset_add(&v->culprits, (uint32_t)note->world_rank);
        words_add(&w, "Rank %d (%s, pid %u on %s)", note->world_rank, note->exe, note->pid, note->host);
    } else {
        words_add(&w, "Process %u (%s on %s)", note->pid, note->exe, note->host);
    }
    words_add(
        &w,
        " has librollcall.so in it, and NCCL is at work there (%s), but none of its calls was seen: NCCL is linked "
        "in statically, or was bound past the preload. What it does is not judged, and its peers may seem to wait "
        "for nobody. `rollcall doctor %u` on %s says why.",
        note->reason, note->pid, note->host);
    say_text(e, v, "%s", w.text);
    return 0;
}
