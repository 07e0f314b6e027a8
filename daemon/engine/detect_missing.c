/*
 * detect_missing.c: a rank does not come to a call that its peers wait in.
 *
 * Proven when it cannot come any more: its process has ended in good order, or it has destroyed the communicator. Suspected, after suspect_ns and only when
 * nothing harder explains the wait: it is inside a recorded host call for which no incomplete NCCL call can be found (blocked), or it has made no
 * call at all (busy). A rank that still makes calls elsewhere is slow, not stuck: nothing is said about it.
 */
#include "daemon/engine/detector.h"

static struct {
    enum block_kind kind;
    enum roll_verdict_code code;
    enum roll_certainty certainty;
} const rows[] = {
    {BLOCK_FINISHED, ROLL_VERDICT_RANK_FINISHED, ROLL_PROVEN},
    {BLOCK_GONE, ROLL_VERDICT_CALL_SKIPPED, ROLL_PROVEN},
    {BLOCK_STUCK, ROLL_VERDICT_RANK_BLOCKED, ROLL_SUSPECTED},
    {BLOCK_BUSY, ROLL_VERDICT_RANK_BUSY, ROLL_SUSPECTED},
};

static void words_inside(struct words *w, const struct source *s)
{
    for (uint32_t i = 0; i < s->threads; i++) {
        const struct entry *in = s->thread[i].inside ? source_entry(s, s->thread[i].inside - 1) : NULL;
        if (in) {
            words_add(w, " inside ");
            words_call(w, &in->rec);
            if (roll_op_class(in->rec.op) == ROLL_CLASS_EXT) { /* C++ exceptions pass through the wrapper unseen */
                words_add(w, " (or has left it by an exception)");
            }
            return;
        }
    }
}

static void tell(struct words *w, const struct roll_engine *e, const struct block *b)
{
    double quiet = e->clock > b->rank->seen ? (double)(e->clock - b->rank->seen) / 1e9 : 0;
    switch (b->kind) {
    case BLOCK_FINISHED:
        words_add(w, "rank %u has ended (", b->rank->world);
        words_exit(w, b->rank->exit_status);
        if (call_failed(&b->rank->last)) { /* the application may have ended for just that */
            words_add(w, ") without making it. Its last call, ");
            words_call(w, &b->rank->last);
            words_add(w, ", had returned %s: look at what it said before it ended.",
                      roll_result_name(b->rank->last.result));
        } else {
            words_add(w,
                      ") without making it. It made fewer calls than its peers: look for a loop that ends early, or an "
                      "exit on one rank only.");
        }
        break;
    case BLOCK_GONE:
        words_add(w, "rank %u has destroyed the communicator without making it.", b->rank->world);
        break;
    case BLOCK_STUCK:
        words_add(w, "rank %u is", b->rank->world);
        words_inside(w, b->rank);
        words_add(w,
                  " since at least %.1f s, for a reason that is not among the recorded NCCL calls (a kernel that does "
                  "not end, another "
                  "library's communication). Suspected: a rule of thumb.",
                  quiet);
        break;
    default:
        words_add(w,
                  "rank %u has made no call for %.1f s and is not inside one: it is busy or stuck in host code (data "
                  "loading, a checkpoint, a lock, a loop). While it runs, `rollcall stacks %u` shows where. "
                  "Suspected: it may only be slow.",
                  b->rank->world, quiet, b->rank->world);
        break;
    }
}

static bool missing_block(struct roll_engine *e, const struct block *b)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].kind != b->kind) {
            continue;
        }
        const struct entry *waits = source_entry(b->waiter, b->ticket);
        uint64_t again = rows[i].certainty == ROLL_SUSPECTED && b->comm ? b->comm->key : 0;
        if (!waits || !b->comm || !say_once(e, say_key(rows[i].code, b->rank->world, again, 0))) {
            return true;
        }
        struct roll_verdict *v = say(e, rows[i].code, rows[i].certainty);
        if (!v) {
            return true;
        }
        struct roll_rankset waiter = {0};
        say_comm(v, b->comm, waits->rec.seq);
        (void)roll_rankset_add(&v->culprits, b->rank->world);
        say_beside(e, b->waiter, waits, &waiter);
        say_side(v, b->rank, source_index(e, b->rank), &v->culprits, b->rank->last.op ? &b->rank->last : NULL);
        say_side(v, b->waiter, source_index(e, b->waiter), &waiter, &waits->rec);
        (void)roll_rankset_copy(&v->waiting, b->waiting);
        struct words w = {.used = 0};
        words_wait(&w, b->waiting);
        words_add(&w, ", in ");
        words_call(&w, &waits->rec);
        words_add(&w, ", #%u on ", waits->rec.seq);
        words_comm(&w, b->comm);
        words_add(&w, "; ");
        tell(&w, e, b);
        say_text(e, v, "%s", w.text);
        roll_rankset_fini(&waiter);
        return true;
    }
    return false;
}

const struct detector detect_missing = {.name = "missing", .block = missing_block};
