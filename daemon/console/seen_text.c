/*
 * seen_text.c: what a run did (daemon/feed/seen.h), in few lines for people.
 */
#include "daemon/base/units.h"
#include "daemon/console/console.h"
#include "daemon/console/text.h"

#include <string.h>

#define OPS_NAMED   4u
#define GROUPS_SAID 6u      /* the JSON has a dozen */
#define LATE_SHARE  20      /* a rank stands out that comes later by a 20th of the time from call to call, */
#define LATE_NS     1000000 /* and by this: as for the verdict about stragglers */

/* The ending of "ranks" before this set of ranks: of one rank, none. */
static const char *plural(const char *ranks)
{
    return strpbrk(ranks, "-,") != NULL ? "s" : "";
}

static void say_group(const json_t *group, bool has_steps)
{
    const json_t *ops = json_object_get(group, "ops"), *calls = json_object_get(group, "calls_per_step");
    const char *name = roll_json_text(group, "name", "");
    int64_t groups = roll_json_int(group, "groups", 1), size = roll_json_int(group, "size", 0);
    char which[384], what[128] = "", many[48], bytes[32], most[256], mean[32];
    size_t i, used = 0;
    json_t *op;
    snprintf(most, sizeof(most), "%s", roll_json_text(group, "ranks", ""));
    if (groups == 1) {
        snprintf(which, sizeof(which), "%s%srank%s %s", name, name[0] != '\0' ? ", " : "", plural(most), most);
    } else {
        const char *text = roll_json_text(group, "text", "");
        if (text[0] == '\0') { /* of an older root */
            snprintf(many, sizeof(many), "%lld groups of %lld", (long long)groups, (long long)size);
            text = many;
        }
        bool is_told = strncmp(name, "groups of", 9) == 0; /* a family without name and shape */
        snprintf(which, sizeof(which), "%s%s%s, on ranks %s", is_told ? "" : name,
                 name[0] != '\0' && !is_told ? ", " : "", text, most);
    }
    json_array_foreach(ops, i, op)
    {
        if (i < OPS_NAMED && used < sizeof(what)) {
            used +=
                (size_t)snprintf(what + used, sizeof(what) - used, "%s%s", i > 0 ? ", " : "", json_string_value(op));
        }
    }
    if (json_array_size(ops) > OPS_NAMED && used < sizeof(what)) {
        snprintf(what + used, sizeof(what) - used, ", \xe2\x80\xa6");
    }
    bool by_step = has_steps && calls != NULL;
    double n = json_number_value(by_step ? calls : json_object_get(group, "calls"));
    double b = json_number_value(json_object_get(group, by_step ? "bytes_per_step" : "bytes"));
    roll_say("  %s: %s, %s calls and %s %s", which, what, roll_mean_text(n, mean, sizeof(mean)),
             roll_units_bytes_text(b, bytes, sizeof(bytes)), by_step ? "a step and rank" : "a rank");
}

static void say_slowest(const json_t *slowest)
{
    int64_t late = roll_json_int(slowest, "late_ns", 0), interval = roll_json_int(slowest, "interval_ns", 1);
    long long looks = (long long)roll_json_int(slowest, "looks", 0),
              rank = (long long)roll_json_int(slowest, "rank", -1);
    char by[32], of[32];
    if (!json_is_object(slowest)) {
        roll_say("  slowest rank: not measured; that takes some looks at calls around which every host waits for its "
                 "device");
        return;
    }
    roll_span_text((uint64_t)late, by, sizeof(by));
    roll_span_text((uint64_t)interval, of, sizeof(of));
    bool stands_out = late >= LATE_NS && late >= interval / LATE_SHARE;
    roll_say("  %s rank %lld, which comes %s after the median rank to a call, mean of %lld looks; %s from call to call",
             stands_out ? "slowest:" : "no rank is slow; the last is", rank, by, looks, of);
}

/* What is known of a job whose calls were compared by digests. */
static void say_digests(const json_t *seen, const json_t *digests)
{
    char least[32], most[32], windows[48], comms[64], low[32], high[32];
    int64_t from = roll_json_int(digests, "calls_least", 0), to = roll_json_int(digests, "calls_most", 0);
    const json_t *family;
    size_t i;
    roll_count_text((uint64_t)from, least, sizeof(least));
    roll_count_text((uint64_t)to, most, sizeof(most));
    roll_say("what the job did: rank%s %s, %s%s%s calls by each, on %s", plural(roll_json_text(seen, "ranks", "?")),
             roll_json_text(seen, "ranks", "?"), least, from < to ? " to " : "", from < to ? most : "",
             roll_plural((uint64_t)roll_json_int(digests, "comms_of_rank", 0), "communicator", "communicators", comms,
                         sizeof(comms)));
    if (roll_json_int(digests, "comms", 0) == 0) {
        roll_say("  each communicator has its members on one node, where their calls were compared");
        return;
    }
    roll_say("  %s over several nodes, compared by digests (%s); those within a node were compared there",
             roll_plural((uint64_t)roll_json_int(digests, "comms", 0), "communicator", "communicators", comms,
                         sizeof(comms)),
             roll_plural((uint64_t)roll_json_int(digests, "windows", 0), "hash of 64 calls", "hashes of 64 calls",
                         windows, sizeof(windows)));
    json_array_foreach(json_object_get(digests, "families"), i, family)
    {
        int64_t done = roll_json_int(family, "done", 0), ahead = roll_json_int(family, "ahead", 0);
        if (i < GROUPS_SAID) {
            roll_count_text((uint64_t)done, low, sizeof(low));
            roll_count_text((uint64_t)ahead, high, sizeof(high));
            roll_say("  %s: %s%s%s collectives by each member", roll_json_text(family, "text", "?"), low,
                     done < ahead ? " to " : "", done < ahead ? high : "");
        }
    }
}

void roll_seen_say(const json_t *seen)
{
    const json_t *groups = json_object_get(seen, "groups");
    long long steps = (long long)roll_json_int(seen, "steps", 0),
              more = (long long)roll_json_int(seen, "groups_more", 0);
    char many[48];
    size_t i;
    json_t *group;
    const json_t *digests = json_object_get(seen, "digests");
    if (digests != NULL) {
        say_digests(seen, digests);
    }
    if (seen == NULL || digests != NULL || json_array_size(groups) == 0) {
        return;
    }
    bool is_learned = strcmp(roll_json_text(seen, "steps_source", ""), "learned") == 0;
    roll_say("what the job did: rank%s %s%s%s%s", plural(roll_json_text(seen, "ranks", "?")),
             roll_json_text(seen, "ranks", "?"), steps > 0 ? is_learned ? ", ~" : ", " : "",
             steps > 0 ? roll_plural((uint64_t)steps, "step", "steps", many, sizeof(many)) : "",
             steps > 0 && is_learned ? " (learned)" : "");
    json_array_foreach(groups, i, group)
    {
        if (i < GROUPS_SAID) {
            say_group(group, steps > 0 && !is_learned);
        } else {
            more++;
        }
    }
    if (more > 0) {
        roll_say("  and %lld more kinds of groups, with fewer bytes", more);
    }
    say_slowest(json_object_get(seen, "slowest"));
}
