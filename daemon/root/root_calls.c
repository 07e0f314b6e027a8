/*
 * root_calls.c: for the page: the calls of some ranks around a moment.
 *
 * They are where the rank is, in its ring, which a root that compares by digests never sees. So their agents are asked;
 * to keep the last calls of all ranks here was rejected: that is what digests are there to avoid.
 */
#include "daemon/root/root_collect.h"

#include "daemon/base/json.h"

#define RANKS_MOST 32u  /* that are drawn at a time */
#define CALLS      256u /* of each, where nobody says how many */
#define CALLS_MOST 512u
#define ROWS_MOST  8192u /* of all together */
#define TIMEOUT_MS 5000u

static json_t *error(const char *text)
{
    return json_pack("{s:s}", "error", text);
}

json_t *roll_calls_query(roll_root_t *root, struct roll_run *run, const json_t *query)
{
    const char *text = json_string_value(json_object_get(query, "ranks"));
    struct roll_rankset ranks = {0};
    json_t *answer = roll_collect_fetched(root, ROLL_COLLECT_CALLS, query);
    if (answer) {
        return answer;
    }
    bool parsed = text && roll_rankset_parse(text, &ranks) == 0;
    size_t n = parsed ? roll_rankset_count(&ranks) : 0;
    if (n == 0 || n > RANKS_MOST) {
        roll_rankset_fini(&ranks);
        return error(n > RANKS_MOST ? "ranks: at most 32 of them" : "ranks: a set such as 0-3,7");
    }
    unsigned calls = roll_collect_bounded(query, "calls", CALLS, CALLS_MOST);
    calls = calls * n > ROWS_MOST ? (unsigned)(ROWS_MOST / n) : calls;
    json_int_t around = json_integer_value(json_object_get(query, "around_ms"));
    json_t *options = json_pack("{s:i,s:I}", "calls", (int)calls, "around_ms", around > 0 ? around : 0);
    struct roll_collection *c = roll_collect(root, run, ROLL_COLLECT_CALLS, &ranks, options, TIMEOUT_MS, 0, NULL);
    json_t *folded = roll_ranks_text_json(&ranks);
    roll_rankset_fini(&ranks);
    return roll_collect_begun(c, folded);
}
