/*
 * root_run_say.c: the verdicts of one run go out: to the file of --json, to the log, to consoles, and to what acts on
 * them.
 *
 * A root that is started after a killed one finds the run's verdicts again when it replays the trace. Which of them
 * were said stands in the file of --json alone: a note of its own was rejected, because it could contradict the file.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/log.h"
#include "daemon/verdict/verdict_json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void write_json(roll_root_t *root, struct roll_run *run, const struct roll_verdict_copy *verdict)
{
    char *text = roll_verdict_to_text(verdict);
    if (!text) {
        roll_run_lose_verdict(run, verdict->said.number, "is not in the file of --json: there is no memory");
        return;
    }
    size_t n = strlen(text);
    text[n] = '\n'; /* the new line replaces the end of the text, so that the line goes out in one write */
    bool begun = root->json_torn &&
                 write(root->json_fd, "\n", 1) == 1; /* a line that a full disk cut must not spoil this one, too */
    root->json_torn = root->json_torn && !begun;
    ssize_t wrote = root->json_torn ? -1 : write(root->json_fd, text, n + 1);
    if (wrote != (ssize_t)n + 1) {
        int error = errno;
        root->json_torn = root->json_torn || wrote > 0;
        roll_run_lose_verdict(run, verdict->said.number, "is not in the file of --json");
        if (root->json_errors++ == 0) {
            roll_log(ROLL_LOG_ERROR, "root: %s: %s; verdicts are still kept for consoles", root->o.json_path,
                     wrote < 0 ? strerror(error) : "cannot be written in full");
        }
    }
    free(text);
}

uint64_t roll_run_said_before(const roll_root_t *root, const struct roll_run *run)
{
    uint64_t said = 0;
    FILE *f = root->o.json_path ? fopen(root->o.json_path, "re") : NULL;
    char *line = NULL;
    size_t room = 0;
    while (f && getline(&line, &room, f) > 0) {
        json_t *json = json_loads(line, 0, NULL);
        const char *job = json_string_value(json_object_get(json, "job"));
        uint64_t number = (uint64_t)json_integer_value(json_object_get(json, "number"));
        if (job && strcmp(job, run->job) == 0 &&
            (uint32_t)json_integer_value(json_object_get(json, "restart")) == run->restart && number > said) {
            said = number;
        }
        json_decref(json);
    }
    free(line);
    if (f) {
        fclose(f);
    }
    return said;
}

static void say(roll_root_t *root, struct roll_run *run, struct roll_verdict_copy *copy)
{
    const struct roll_verdict *verdict = &copy->said;
    roll_tally_add(&root->tally, copy);
    roll_root_metrics_verdict(root, verdict);
    roll_remedy_auto(root, run, verdict);
    if (verdict->number <= run->said) {
        return;
    }
    if (root->json_fd >= 0) {
        write_json(root, run, copy);
    }
    roll_stacks_suspect(root, run, verdict);
    roll_facts_suspect(root, run, verdict);
    roll_incident_suspect(root, run, verdict);
    roll_log(ROLL_LOG_INFO, "%s.%u: %s %s: %s", run->job, run->restart, roll_certainty_name(verdict->certainty),
             roll_verdict_name(verdict->code), verdict->text);
}

void roll_run_say(roll_root_t *root, struct roll_run *run, struct roll_verdict_copy *verdict)
{
    uint64_t number = verdict->said.number;
    say(root, run, verdict);
    run->trace_urgent = true;
    if (roll_verdict_list_add(&run->verdicts, verdict) != 0) {
        roll_run_lose_verdict(run, number, "is not kept for consoles: there is no memory");
    }
}

void roll_run_verdicts(roll_root_t *root, struct roll_run *run)
{
    struct roll_verdict_copy *verdict;
    while (!run->digested && (verdict = roll_feed_next(run->feed)) != NULL) {
        roll_run_say(root, run, verdict);
    }
    if (run->digested) {
        roll_digested_verdicts(root, run);
    }
}
