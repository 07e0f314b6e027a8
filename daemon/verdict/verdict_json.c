/*
 * verdict_json.c: a verdict as JSON.
 *
 * The members are added one by one to one flat object. A member whose value is unknown is null and never left out, so
 * that a reader in any language may index without asking. Call sites that several sides share are listed once and
 * referred to by index.
 */
#include "daemon/verdict/verdict_json.h"
#include "daemon/base/json.h"
#include "daemon/base/memory.h"
#include "trace/op.h"
#include "trace/remedy.h"
#include "trace/verdict.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *text_or_null(const char *text)
{
    return text != NULL && text[0] != '\0' ? roll_text_to_json(text) : json_null();
}

static json_t *number_or_null(bool known, uint64_t number)
{
    return known ? json_integer((json_int_t)number) : json_null();
}

static const char *state_name(uint64_t seal)
{
    static const char *const names[] = {"empty", "entered", "returned", "complete"};
    unsigned state = (unsigned)roll_seal_state(seal);
    return state < 4 ? names[state] : "?";
}

/* call sites */

static json_t *frames_to_json(const struct roll_verdict_site *site)
{
    const struct roll_symbol_frame *frame = site->frame;
    json_t *array = json_array();
    for (size_t i = 0; i < site->frames; i++) {
        json_t *one = json_pack("{s:s, s:o, s:o, s:o}", "language", frame[i].python ? "python" : "native", "function",
                                text_or_null(frame[i].function), "file", text_or_null(frame[i].file), "line",
                                number_or_null(frame[i].line > 0, frame[i].line));
        if (frame[i].python) {
            json_object_set_new(one, "library", json_boolean(frame[i].library));
            json_object_set_new(one, "folded", json_integer((json_int_t)frame[i].folded));
            json_object_set_new(one, "text", text_or_null(frame[i].text));
            json_object_set_new(one, "main_thread", json_boolean(frame[i].stand));
        } else {
            json_object_set_new(one, "module", text_or_null(frame[i].module));
            json_object_set_new(one, "offset", json_integer((json_int_t)frame[i].offset));
        }
        json_array_append_new(array, one);
    }
    return array;
}

/* All call sites, each with the ranks of the sides that share it. */
static json_t *sites_to_json(const struct roll_verdict_copy *copy)
{
    json_t *sites = json_array();
    for (uint32_t i = 0; i < copy->sites; i++) {
        json_t *ranks = json_array();
        for (uint32_t k = 0; k < copy->said.sides; k++) {
            if (copy->side_site[k] == (int)i) {
                json_t *more = roll_ranks_to_json(&copy->said.side[k].ranks);
                json_array_extend(ranks, more);
                json_decref(more);
            }
        }
        json_array_append_new(sites, json_pack("{s:o, s:o}", "ranks", ranks, "frames", frames_to_json(&copy->site[i])));
    }
    return sites;
}

/* evidence */

static json_t *side_to_json(const struct roll_verdict_side *side, int callsite)
{
    const struct roll_record *rec = &side->rec;
    bool made = rec->op != ROLL_OP_NONE;
    bool typed = made && rec->dtype != ROLL_DTYPE_NONE;
    bool rooted = roll_op_class(rec->op) == ROLL_CLASS_COLL; /* else `peer` is a peer, or what moe_core says it is */
    bool outside =
        roll_op_class(rec->op) == ROLL_CLASS_EXT; /* aux: the groups; peer: groups without rows; count: rows */
    bool sized = outside && rec->aux != 0;
    bool known = sized && rec->peer != ROLL_PEER_NONE;
    bool peered = made && rec->peer != ROLL_PEER_NONE && !outside;
    bool launches = rec->op == ROLL_OP_GRAPH_LAUNCH; /* the count of a graph launch is a hash */
    bool unsized = (rec->flags & ROLL_FLAG_UNSIZED) != 0;
    bool in_graph = launches || (rec->flags & (ROLL_FLAG_CAPTURED | ROLL_FLAG_REPLAYED)) != 0;
    enum { NCCL_IN_PROGRESS = 7 };
    bool nccl = made && roll_op_class(rec->op) <= ROLL_CLASS_COMM && roll_op_class(rec->op) != ROLL_CLASS_NONE;
    bool refused = nccl && roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED && rec->result != 0 &&
                   rec->result != NCCL_IN_PROGRESS;
    json_t *out = json_object();
    json_object_set_new(out, "ranks", roll_ranks_to_json(&side->ranks));
    json_object_set_new(out, "ranks_text", roll_ranks_text_json(&side->ranks));
    json_object_set_new(out, "op", made ? json_string(roll_op_name(rec->op)) : json_null());
    json_object_set_new(out, "seq", number_or_null(made && !outside, rec->seq));
    json_object_set_new(
        out, "count",
        number_or_null(made && !launches && !unsized && (!outside || known || rec->count != 0), rec->count));
    json_object_set_new(out, "dtype", typed ? json_string(roll_dtype_name(rec->dtype)) : json_null());
    json_object_set_new(out, "redop",
                        made && rec->redop != ROLL_RED_NONE ? json_string(roll_redop_name(rec->redop)) : json_null());
    json_object_set_new(out, "root", peered && rooted ? json_integer(rec->peer) : json_null());
    json_object_set_new(out, "peer", peered && !rooted ? json_integer(rec->peer) : json_null());
    json_object_set_new(out, "groups", number_or_null(sized, rec->aux));
    json_object_set_new(out, "empty", number_or_null(known, (uint64_t)rec->peer));
    json_object_set_new(out, "bytes",
                        number_or_null(typed && !outside && !unsized, rec->count * roll_dtype_bytes(rec->dtype)));
    json_object_set_new(out, "state", made ? json_string(state_name(rec->seal)) : json_null());
    json_object_set_new(out, "error", refused ? json_string(roll_result_name(rec->result)) : json_null());
    json_object_set_new(out, "group", number_or_null(made && rec->group != 0, rec->group));
    json_object_set_new(out, "graph", number_or_null(made && in_graph, rec->aux));
    json_object_set_new(out, "phase",
                        made && rec->phase != ROLL_PHASE_NONE ? json_string(roll_phase_name(rec->phase)) : json_null());
    bool stepped = made ? rec->step != ROLL_STEP_NONE : side->has_last_step;
    json_object_set_new(out, "step", number_or_null(stepped, made ? rec->step : side->last_step));
    json_object_set_new(out, "time_ns", number_or_null(made, rec->enter_ns));
    json_object_set_new(out, "callsite", number_or_null(callsite >= 0, callsite >= 0 ? (uint64_t)callsite : 0));
    if (side->tensors[0] != '\0') {
        json_object_set_new(out, "tensors", roll_text_to_json(side->tensors));
    }
    return out;
}

static void add_evidence(json_t *out, const struct roll_verdict_copy *copy)
{
    json_t *evidence = json_array();
    for (uint32_t i = 0; i < copy->said.sides; i++) {
        json_array_append_new(evidence, side_to_json(&copy->said.side[i], copy->side_site[i]));
    }
    json_object_set_new(out, "evidence", evidence);
    if (copy->comm_site >= 0) { /* the call site stands beside how the communicator was made */
        json_object_set_new(json_object_get(out, "comm"), "callsite", json_integer(copy->comm_site));
    }
    json_object_set_new(out, "callsites", sites_to_json(copy));
}

/* the rest */

static json_t *comm_to_json(const struct roll_verdict *v)
{
    if (v->comm_key == 0) {
        return json_null();
    }
    char key[24];
    snprintf(key, sizeof(key), "0x%016" PRIx64, v->comm_key);
    return json_pack("{s:s, s:o, s:I, s:o, s:o, s:o}", "key", key, "label", text_or_null(v->comm_label), "size",
                     (json_int_t)v->comm_size, "name", text_or_null(v->comm_name), "made", text_or_null(v->comm_made),
                     "made_at", text_or_null(v->comm_place));
}

/* `fill` acts where a rank is about to skip its experts. A verdict that names it has seen that this is past, and the
 * step hangs whatever is switched now: what helps is a job that is started with it. */
#define FILL_INSTEAD "rollcall run --policy auto -- COMMAND"

static json_t *remedy_to_json(const struct roll_verdict *v)
{
    if (v->remedy == 0) {
        return json_null();
    }
    const char *name = roll_remedy_name(v->remedy);
    char command[128];
    snprintf(command, sizeof(command), "rollcall remedy on %s", name);
    bool is_past = v->remedy == ROLL_REMEDY_FILL && !v->remedied;
    return json_pack("{s:s, s:s, s:s, s:o}", "name", name, "text", roll_remedy_text(v->remedy), "command", command,
                     "instead", is_past ? json_string(FILL_INSTEAD) : json_null());
}

static void add_moment(json_t *out, const struct roll_verdict *v)
{
    bool stepped = v->step != ROLL_STEP_NONE;
    json_object_set_new(out, "seq", number_or_null(v->comm_key != 0 && v->seq != ROLL_SEQ_NONE, v->seq));
    json_object_set_new(out, "time_ns", json_integer((json_int_t)v->time_ns));
    json_object_set_new(out, "event_ns", number_or_null(v->event_ns != 0, v->event_ns));
    json_object_set_new(out, "field", text_or_null(v->field));
    bool learned = !stepped && v->step_learned != 0;
    json_object_set_new(out, "step", number_or_null(stepped || learned, stepped ? v->step : v->step_learned));
    json_object_set_new(out, "step_source", text_or_null(stepped ? "job" : learned ? "learned" : ""));
    json_object_set_new(out, "microbatch", number_or_null(stepped, v->microbatch));
    json_object_set_new(out, "layer", number_or_null(v->layer < ROLL_LAYER_NONE, v->layer));
    json_object_set_new(out, "layers", roll_ranks_to_json(&v->layers));
    json_object_set_new(out, "layers_text", roll_ranks_text_json(&v->layers));
    json_object_set_new(out, "phase",
                        v->phase != ROLL_PHASE_NONE ? json_string(roll_phase_name(v->phase)) : json_null());
}

static void add_life(json_t *out, const struct roll_verdict *v)
{
    json_t *may_be = json_array();
    for (uint32_t i = 0; i < v->may_bes; i++) {
        json_array_append_new(may_be, json_string(roll_verdict_name(v->may_be[i])));
    }
    json_object_set_new(out, "supersedes", number_or_null(v->supersedes != 0, v->supersedes));
    json_object_set_new(out, "confirms", number_or_null(v->confirms != 0, v->confirms));
    json_object_set_new(out, "withdraws", number_or_null(v->withdraws != 0, v->withdraws));
    json_object_set_new(out, "may_be", may_be);
}

/* Whether every member is there: a failed allocation on the way shows as a missing member. */
static bool complete(const json_t *verdict)
{
    static const char *const members[] = {
        "schema",        "number",   "code",   "title",       "family",      "certainty",  "culprits",
        "culprits_text", "comm",     "seq",    "time_ns",     "event_ns",    "field",      "step",
        "microbatch",    "layer",    "phase",  "evidence",    "callsites",   "waiting",    "waiting_text",
        "remedy",        "remedied", "text",   "job",         "restart",     "supersedes", "confirms",
        "withdraws",     "may_be",   "layers", "layers_text", "step_source",
    };
    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
        if (json_object_get(verdict, members[i]) == NULL) {
            return false;
        }
    }
    return true;
}

json_t *roll_verdict_to_json(const struct roll_verdict_copy *copy)
{
    const struct roll_verdict *v = &copy->said;
    uint64_t before = roll_memory_failures();
    json_t *out = json_object();
    json_object_set_new(out, "schema", json_string("rollcall.verdict/1"));
    json_object_set_new(out, "number", json_integer((json_int_t)v->number));
    json_object_set_new(out, "code", json_string(roll_verdict_name(v->code)));
    json_object_set_new(out, "title", json_string(roll_verdict_title(v->code)));
    json_object_set_new(out, "family", json_string(roll_family_name(roll_verdict_family(v->code))));
    json_object_set_new(out, "certainty", json_string(roll_certainty_name(v->certainty)));
    json_object_set_new(out, "culprits", roll_ranks_to_json(&v->culprits));
    json_object_set_new(out, "culprits_text", roll_ranks_text_json(&v->culprits));
    json_object_set_new(out, "comm", comm_to_json(v));
    add_moment(out, v);
    add_evidence(out, copy);
    json_object_set_new(out, "waiting", roll_ranks_to_json(&v->waiting));
    json_object_set_new(out, "waiting_text", roll_ranks_text_json(&v->waiting));
    json_object_set_new(out, "remedy", remedy_to_json(v));
    json_object_set_new(out, "remedied", json_boolean(v->remedied));
    json_object_set_new(out, "text", roll_text_to_json(v->text));
    json_object_set_new(out, "job", roll_text_to_json(copy->job));
    json_object_set_new(out, "restart", json_integer((json_int_t)copy->restart));
    add_life(out, v);
    bool whole = roll_memory_failures() == before; /* also of what stands inside of members */
    if (!whole || !complete(out) || (copy->attached != NULL && json_object_update(out, copy->attached) != 0)) {
        json_decref(out);
        return NULL;
    }
    return out;
}

char *roll_verdict_to_text(const struct roll_verdict_copy *copy)
{
    json_t *json = roll_verdict_to_json(copy);
    char *text = json != NULL ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return text;
}
