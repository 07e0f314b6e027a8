/*
 * root_page_view.c: what the page is told besides the status: how each rank stands, the findings in short, and who
 * waits for whom; and where the page is.
 *
 * The field, the findings and the edges have the form that a report has as well (daemon/feed/field.h,
 * daemon/verdict/verdict_brief.h).
 */
#include "daemon/root/root_state.h"

#include "daemon/base/array.h"
#include "daemon/base/json.h"
#include "daemon/feed/field.h"
#include "daemon/verdict/verdict_brief.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FINDINGS_MOST 200u /* that are told; the page says how many there are */
#define EDGES_MOST    100u

static struct roll_field_place *places_of(const struct roll_run *run, size_t *n)
{
    struct roll_view_source v;
    struct roll_stands stands;
    struct roll_field_place *list = NULL;
    size_t room = 0, used = 0;
    roll_stands_begin(run, &stands);
    for (uint32_t i = 0; roll_run_source_brief(run, i, &v) && ROLL_GROW(list, room, used + 1) == 0; i++) {
        if (v.info.world_rank >= 0) {
            list[used++] = roll_field_place(&v, i, &stands.waiting, &stands.awaited);
        }
    }
    roll_stands_end(&stands);
    *n = roll_field_sort(list, used);
    return list;
}

void roll_page_field(const struct roll_run *run, json_t **places, json_t **field)
{
    size_t n;
    struct roll_field_place *list = places_of(run, &n);
    *places = roll_field_places_json(list, n);
    *field = roll_field_states_json(list, n);
    free(list);
}

json_t *roll_page_findings(const struct roll_run *run)
{
    return roll_verdict_briefs_json(&run->verdicts, FINDINGS_MOST);
}

/* What stands says who waits, and for whom. Where no records are here nothing is asked for: that would be work for all
 * agents, as long as somebody looks. */
json_t *roll_page_waits(roll_root_t *root, struct roll_run *run)
{
    json_t *edges = roll_verdict_waits_json(&run->verdicts, EDGES_MOST), *why = NULL;
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
