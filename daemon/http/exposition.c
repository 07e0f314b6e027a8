/*
 * exposition.c: writes the snapshot as Prometheus text (0.0.4) or OpenMetrics (1.0).
 *
 * One table of families, one small writer per shape of sample: the two formats differ only in the names of counter
 * families and in the last line. Every series is written from the first scrape on, also at zero, because rate() and
 * increase() cannot see the step from "absent" to 1 and a first verdict would never alert. A client library was
 * rejected: Debian has none for C, and the format is only lines of text.
 */
#include "daemon/http/metrics.h"
#include "trace/err.h"

#include <inttypes.h>
#include <stddef.h>

struct writer {
    FILE *out;
    const struct roll_metrics_snapshot *snapshot;
};

struct family {
    const char *name; /* of a counter without "_total" */
    const char *help;
    bool counter;
    void (*write)(const struct writer *w, const struct family *family);
    size_t member; /* offset in the snapshot, for families with a single value */
};

static void write_name(const struct writer *w, const struct family *family)
{
    fprintf(w->out, "rollcall_%s%s", family->name, family->counter ? "_total" : "");
}

static void write_count(const struct writer *w, const struct family *family)
{
    const char *base = (const char *)w->snapshot + family->member;
    write_name(w, family);
    fprintf(w->out, " %" PRIu64 "\n", *(const uint64_t *)(const void *)base);
}

static void write_real(const struct writer *w, const struct family *family)
{
    const char *base = (const char *)w->snapshot + family->member;
    write_name(w, family);
    fprintf(w->out, " %.9g\n", *(const double *)(const void *)base);
}

static void write_time(const struct writer *w, const struct family *family)
{
    const char *base = (const char *)w->snapshot + family->member;
    write_name(w, family);
    fprintf(w->out, " %.3f\n", *(const double *)(const void *)base);
}

static void write_build(const struct writer *w, const struct family *family)
{
    write_name(w, family);
    fprintf(w->out, "{version=\"%s\"} 1\n", ROLL_VERSION);
}

static void write_verdicts(const struct writer *w, const struct family *family)
{
    static const enum roll_verdict_code codes[] = {
#define ROLL_VERDICT_ROW(name, number, code, family, title) ROLL_VERDICT_##name,
#include "trace/verdict.def"
#undef ROLL_VERDICT_ROW
    };
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        for (unsigned certainty = ROLL_NOTE; certainty <= ROLL_PROVEN; certainty++) {
            uint64_t count = 0;
            for (size_t j = 0; j < ROLL_METRICS_VERDICTS; j++) {
                const uint64_t *counts = w->snapshot->verdicts[j].count;
                count += w->snapshot->verdicts[j].code == codes[i] ? counts[certainty] : 0;
            }
            write_name(w, family);
            fprintf(w->out, "{code=\"%s\",certainty=\"%s\"} %" PRIu64 "\n", roll_verdict_name(codes[i]),
                    roll_certainty_name(certainty), count);
        }
    }
}

static void write_ranks(const struct writer *w, const struct family *family)
{
    static const char *const states[] = {
        [ROLL_PROC_RUNNING] = "running",
        [ROLL_PROC_STOPPED] = "stopped",
        [ROLL_PROC_FINISHED] = "finished",
        [ROLL_PROC_DEAD] = "dead",
    };
    for (size_t i = ROLL_PROC_RUNNING; i <= ROLL_PROC_DEAD; i++) {
        write_name(w, family);
        fprintf(w->out, "{state=\"%s\"} %" PRIu64 "\n", states[i], w->snapshot->ranks[i]);
    }
}

static void write_late(const struct writer *w, const struct family *family)
{
    static const char *const eyes[ROLL_EYES] = {
        [ROLL_EYE_ROOT] = "root", [ROLL_EYE_AGENT] = "agent", [ROLL_EYE_LINK] = "link",
        [ROLL_EYE_RING] = "ring", [ROLL_EYE_BELOW] = "below",
    };
    for (size_t i = 0; i < ROLL_EYES; i++) {
        write_name(w, family);
        fprintf(w->out, "{eye=\"%s\"} %.9g\n", eyes[i], w->snapshot->late_seconds[i]);
    }
}

static void write_refused(const struct writer *w, const struct family *family)
{
    static const char *const by[ROLL_REFUSERS] = {[ROLL_REFUSER_ROOT] = "root", [ROLL_REFUSER_RELAY] = "relay"};
    for (size_t i = 0; i < ROLL_REFUSERS; i++) {
        write_name(w, family);
        fprintf(w->out, "{by=\"%s\"} %" PRIu64 "\n", by[i], w->snapshot->refused[i]);
    }
}

static void write_losses(const struct writer *w, const struct family *family)
{
    for (size_t i = 0; i < ROLL_LOSS_LIMIT; i++) {
        if (roll_loss_name((unsigned)i) != NULL) {
            write_name(w, family);
            fprintf(w->out, "{cause=\"%s\"} %" PRIu64 "\n", roll_loss_name((unsigned)i), w->snapshot->lost[i]);
        }
    }
}

#define MEMBER(name) offsetof(struct roll_metrics_snapshot, name)

static const struct family families[] = {
    {"build_info", "Version of the daemon; always 1.", false, write_build, 0},
    {"start_time_seconds", "Unix time when the daemon started.", false, write_time, MEMBER(start_time_seconds)},
    {"daemon_deaths", "Processes of this daemon that died and were started again.", true, write_count, MEMBER(deaths)},
    {"verdicts", "Verdicts given, by code and certainty; all but notes are findings.", true, write_verdicts, 0},
    {"findings", "Findings of the runs watched now that stand: not withdrawn, and replaced by none.", false,
     write_count, MEMBER(findings)},
    {"ranks", "Rank processes known now, by state.", false, write_ranks, 0},
    {"runs", "Runs watched now.", false, write_count, MEMBER(runs)},
    {"unwatched_runs", "Runs that are not watched because the root has no place for them.", false, write_count,
     MEMBER(unwatched_runs)},
    {"agents", "Agents connected now.", false, write_count, MEMBER(agents)},
    {"communicators", "Communicators known now.", false, write_count, MEMBER(comms)},
    {"operations_incomplete", "Operations that some but not all members have issued.", false, write_count,
     MEMBER(incomplete)},
    {"operation_oldest_pending_seconds", "Age of the oldest incomplete operation; 0 when there is none.", false,
     write_real, MEMBER(oldest_pending_seconds)},
    {"calls", "NCCL calls recorded by the ranks.", true, write_count, MEMBER(calls)},
    {"records", "Records received from agents.", true, write_count, MEMBER(records)},
    {"records_lost", "What could not be recorded or delivered, by cause.", true, write_losses, 0},
    {"receive_batches", "Frames of records received from agents.", true, write_count, MEMBER(batches)},
    {"receive_bytes", "Bytes received from agents.", true, write_count, MEMBER(bytes)},
    {"refused", "Frames and connections that were refused, by the root and by relays.", true, write_refused, 0},
    {"late_seconds", "How late the worst of a kind was lately: who looks at the ranks, and so knows less.", false,
     write_late, 0},
    {"root_late_seconds", "Time in which the root did not read what had come.", true, write_real,
     MEMBER(root_late_seconds)},
    {"missed_seconds", "Time that was left out of the patience because not all ranks were seen.", true, write_real,
     MEMBER(missed_seconds)},
    {"engine_seconds", "Processor time spent judging records.", true, write_real, MEMBER(engine_seconds)},
};

int roll_metrics_write(FILE *out, const struct roll_metrics_snapshot *snapshot, bool openmetrics)
{
    struct writer writer = {out, snapshot};
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        const struct family *family = &families[i];
        const char *suffix = family->counter && !openmetrics ? "_total" : "";
        fprintf(out, "# HELP rollcall_%s%s %s\n", family->name, suffix, family->help);
        fprintf(out, "# TYPE rollcall_%s%s %s\n", family->name, suffix, family->counter ? "counter" : "gauge");
        family->write(&writer, family);
    }
    if (openmetrics) {
        fputs("# EOF\n", out);
    }
    return ferror(out) ? ROLL_E_IO : ROLL_OK;
}

int roll_metrics_count_verdict(struct roll_metrics_snapshot *snapshot, enum roll_verdict_code code,
                               enum roll_certainty certainty, uint64_t n)
{
    if (code == ROLL_VERDICT_NONE || (unsigned)certainty > ROLL_PROVEN) {
        return ROLL_E_ARG;
    }
    for (size_t i = 0; i < ROLL_METRICS_VERDICTS; i++) {
        if (snapshot->verdicts[i].code == ROLL_VERDICT_NONE) {
            snapshot->verdicts[i].code = code;
        }
        if (snapshot->verdicts[i].code == code) {
            snapshot->verdicts[i].count[certainty] += n;
            return ROLL_OK;
        }
    }
    return ROLL_E_LIMIT;
}
