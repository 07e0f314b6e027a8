/*
 * root_page_view.c: what the page is told besides the status: how each rank stands, the findings in short, and who
 * waits for whom; and where the page is.
 *
 * One letter a rank, in an order that is told once: 16,384 ranks are 16 KiB. An object for each rank, as in the status,
 * was rejected: that is 6 MiB a second.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FINDINGS_MOST 200u /* that are told; the page says how many there are */
#define EDGES_MOST    100u
#define GIST_BYTES    400u
#define BUSY_NS       (1000 * ROLL_MS)

struct place {
    const char *host; /* borrowed from the engine */
    int32_t rank;
    uint32_t source;
    char state;
};

/* What the letters mean stands in docs/WEB.md, and once more in dashboards/web/js/ranks.js. */
static char letter(const struct roll_view_source *v, const struct roll_rankset *waiting,
                   const struct roll_rankset *awaited)
{
    uint32_t rank = (uint32_t)v->info.world_rank;
    bool waits = v->waits_for > 0 || (v->in_call && roll_rankset_has(waiting, rank));
    return v->proc == ROLL_PROC_DEAD         ? 'd'
           : v->proc == ROLL_PROC_FINISHED   ? 'f'
           : !v->heard                       ? 'n'
           : v->proc == ROLL_PROC_STOPPED    ? 's'
           : waits                           ? 'w'
           : v->in_call                      ? 'c'
           : roll_rankset_has(awaited, rank) ? 'b'
                                             : 'r';
}

/* By host, node2 before node10; then by rank, of which the newest process is the last. */
static int by_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    int hosts = x->host == y->host ? 0 : strverscmp(x->host, y->host);
    return hosts != 0           ? hosts
           : x->rank != y->rank ? (x->rank > y->rank) - (x->rank < y->rank)
                                : (x->source > y->source) - (x->source < y->source);
}

/* Those of whom a finding that stands says that they wait: they may all have arrived at a call that cannot complete. */
static void waiting_of(const struct roll_run *run, struct roll_rankset *waiting)
{
    for (size_t i = 0; i < run->verdicts.used; i++) {
        if (roll_verdict_stands(run->verdicts.at[i])) {
            (void)roll_rankset_union(waiting, &run->verdicts.at[i]->said.waiting);
        }
    }
}

/* Those who are in their own code while others wait for them: as a finding says; or who have made no call for a second
 * while members of a communicator have made one that they have not, which less than a second is the way of any job. */
static void awaited_of(const struct roll_run *run, struct roll_rankset *awaited)
{
    const roll_engine_t *engine = roll_feed_engine(roll_run_judge(run));
    struct roll_rankset behind = {0};
    struct roll_view_comm comm;
    struct roll_view_source v;
    uint64_t now = roll_real_ns();
    for (size_t i = 0; i < run->verdicts.used; i++) {
        const struct roll_verdict_copy *copy = run->verdicts.at[i];
        if (roll_verdict_stands(copy) && copy->said.code == ROLL_VERDICT_RANK_BUSY) {
            (void)roll_rankset_union(awaited, &copy->said.culprits);
        }
    }
    for (uint32_t i = 0; !roll_digested_calm(run) && roll_engine_comm(engine, i, &comm); i++) {
        (void)roll_rankset_union(&behind, &comm.behind);
    }
    for (size_t i = 0, n = roll_rankset_count(&behind); i < n; i++) {
        uint32_t rank = roll_rankset_at(&behind, i);
        if (roll_engine_rank(engine, rank, &v) && v.last_ns + BUSY_NS < now) {
            (void)roll_rankset_add(awaited, rank);
        }
    }
    roll_rankset_fini(&behind);
}

static struct place *places_of(const struct roll_run *run, size_t *n)
{
    struct roll_view_source v;
    struct roll_rankset waiting = {0}, awaited = {0};
    struct place *list = NULL;
    size_t room = 0, used = 0;
    waiting_of(run, &waiting);
    awaited_of(run, &awaited);
    for (uint32_t i = 0; roll_run_source_brief(run, i, &v) && ROLL_GROW(list, room, used + 1) == 0; i++) {
        if (v.info.world_rank >= 0) {
            list[used++] = (struct place){v.info.host ? v.info.host : "", (int32_t)v.info.world_rank, i,
                                          letter(&v, &waiting, &awaited)};
        }
    }
    if (used > 1) {
        qsort(list, used, sizeof(*list), by_place);
    }
    roll_rankset_fini(&waiting);
    roll_rankset_fini(&awaited);
    *n = 0;
    for (size_t i = 0; i < used; i++) { /* a rank that was started again on its host has one place there */
        bool again = *n > 0 && list[*n - 1].rank == list[i].rank && strcmp(list[*n - 1].host, list[i].host) == 0;
        *n += !again;
        list[*n - 1] = list[i];
    }
    return list;
}

/* The ranks of one host from `first` on, as pairs of the first and last of each run of them. Returns where the next
 * host begins. */
static size_t add_host(const struct place *list, size_t n, size_t first, json_t *hosts)
{
    json_t *pairs = json_array();
    size_t i = first;
    while (i < n && strcmp(list[i].host, list[first].host) == 0) {
        size_t from = i++;
        while (i < n && strcmp(list[i].host, list[first].host) == 0 && list[i].rank == list[i - 1].rank + 1) {
            i++;
        }
        json_array_append_new(pairs, json_integer(list[from].rank));
        json_array_append_new(pairs, json_integer(list[i - 1].rank));
    }
    json_array_append_new(hosts, json_pack("{s:o,s:o}", "host", roll_text_to_json(list[first].host), "ranks", pairs));
    return i;
}

void roll_page_field(const struct roll_run *run, json_t **places, json_t **field)
{
    size_t n;
    struct place *list = places_of(run, &n);
    json_t *hosts = json_array();
    for (size_t i = 0; i < n;) {
        i = add_host(list, n, i, hosts);
    }
    char *states = malloc(n + 1);
    for (size_t i = 0; states && i < n; i++) {
        states[i] = list[i].state;
    }
    *places = json_pack("{s:I,s:o}", "ranks", (json_int_t)n, "hosts", hosts);
    *field = states ? json_pack("{s:o}", "states", json_stringn(states, n)) : NULL;
    free(states);
    free(list);
}

/* The beginning of a text: its first sentence, or as much of it as fits. Texts of verdicts are valid UTF-8. */
static json_t *gist(const char *text)
{
    char out[GIST_BYTES];
    const char *end = strstr(text, ". ");
    size_t n = end ? (size_t)(end - text) + 1 : strlen(text);
    if (n > sizeof(out) - 1) {
        n = sizeof(out) - 1;
        while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) {
            n--;
        }
    }
    memcpy(out, text, n);
    out[n] = '\0';
    return roll_text_to_json(out);
}

static json_t *comm_name(const struct roll_verdict *v)
{
    const char *name = v->comm_name[0] != '\0' ? v->comm_name : v->comm_label;
    return v->comm_key == 0 || name[0] == '\0' ? json_null() : roll_text_to_json(name);
}

static json_t *number_or_null(uint64_t number)
{
    return number != 0 ? json_integer((json_int_t)number) : json_null();
}

static json_t *finding(const struct roll_verdict_copy *copy)
{
    const struct roll_verdict *v = &copy->said;
    return json_pack("{s:I,s:s,s:s,s:s,s:s,s:o,s:o,s:o,s:I,s:o,s:b,s:o,s:o,s:b,s:o}", "number", (json_int_t)v->number,
                     "code", roll_verdict_name(v->code), "title", roll_verdict_title(v->code), "family",
                     roll_family_name(roll_verdict_family(v->code)), "certainty", roll_certainty_name(v->certainty),
                     "culprits_text", roll_ranks_text_json(&v->culprits), "waiting_text",
                     roll_ranks_text_json(&v->waiting), "comm", comm_name(v), "time_ns", (json_int_t)v->time_ns,
                     "event_ns", number_or_null(v->event_ns), "stands", (int)roll_verdict_stands(copy), "ended_by",
                     number_or_null(copy->ended_by), "remedy",
                     v->remedy ? json_string(roll_remedy_name(v->remedy)) : json_null(), "remedied", (int)v->remedied,
                     "gist", gist(v->text));
}

json_t *roll_page_findings(const struct roll_run *run)
{
    json_t *list = json_array();
    for (size_t i = run->verdicts.used; i-- > 0 && json_array_size(list) < FINDINGS_MOST;) {
        json_array_append_new(list, finding(run->verdicts.at[i]));
    }
    return json_pack("{s:I,s:o}", "verdicts", (json_int_t)run->verdicts.used, "findings", list);
}

/* What stands says who waits, and for whom. Where no records are here nothing is asked for: that would be work for all
 * agents, as long as somebody looks. */
json_t *roll_page_waits(roll_root_t *root, struct roll_run *run)
{
    json_t *edges = json_array(), *why = NULL;
    for (size_t i = run->verdicts.used; i-- > 0 && json_array_size(edges) < EDGES_MOST;) {
        const struct roll_verdict *v = &run->verdicts.at[i]->said;
        if (roll_verdict_stands(run->verdicts.at[i]) && v->waiting.used > 0) {
            json_array_append_new(edges, json_pack("{s:I,s:s,s:s,s:o,s:I,s:o,s:I,s:o}", "number", (json_int_t)v->number,
                                                   "code", roll_verdict_name(v->code), "certainty",
                                                   roll_certainty_name(v->certainty), "waiting_text",
                                                   roll_ranks_text_json(&v->waiting), "waiting",
                                                   (json_int_t)roll_rankset_count(&v->waiting), "culprits_text",
                                                   roll_ranks_text_json(&v->culprits), "culprits",
                                                   (json_int_t)roll_rankset_count(&v->culprits), "comm", comm_name(v)));
        }
    }
    if (!roll_digested_calm(run)) {
        json_t *none = json_object(), *said = roll_why_query(root, run, none);
        why = json_incref(json_object_get(said, "groups"));
        json_decref(said);
        json_decref(none);
    }
    return json_pack("{s:o,s:o}", "edges", edges, "groups", why ? why : json_array());
}

json_t *roll_page_query(const roll_root_t *root)
{
    if (!root->metrics || !root->page) {
        return json_pack("{s:s}", "error", "this root has no page: start it with --http");
    }
    char host[ROLL_NAME_BYTES] = "";
    (void)gethostname(host, sizeof(host) - 1);
    /* What was asked to be listened on, but for its port: numbers, or else the loopback interface. */
    char address[64] = "";
    const char *colon = strrchr(root->o.http, ':');
    snprintf(address, sizeof(address), "%.*s", colon ? (int)(colon - root->o.http) : 0, root->o.http);
    bool numbers = address[0] == '[' || (address[0] >= '0' && address[0] <= '9');
    return json_pack("{s:s,s:i,s:o}", "address", numbers ? address : "127.0.0.1", "port",
                     (int)roll_metrics_port(root->metrics), "host", roll_text_to_json(host));
}
