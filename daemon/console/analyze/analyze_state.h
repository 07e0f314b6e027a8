/*
 * analyze_state.h: what the files of an analysis share: analyze_inputs.c finds and adds what is to be judged, analyze.c
 * makes runs of it and judges them, analyze_told.c says what came of it.
 */
#ifndef ROLL_DAEMON_CONSOLE_ANALYZE_ANALYZE_STATE_H
#define ROLL_DAEMON_CONSOLE_ANALYZE_ANALYZE_STATE_H

#include "daemon/console/analyze/analyze.h"
#include "daemon/console/analyze/analyze_report.h"
#include "daemon/console/analyze/digests.h"
#include "daemon/console/analyze/jobs.h"

#include "daemon/dumps/dump.h"
#include "trace/ring.h"

#define ROLL_ANALYZE_HEAD 65536 /* most dumps end before that: then the file is opened once */

struct analyzed_run {
    char job[ROLL_NAME_BYTES];
    uint32_t restart;
    roll_feed_t *feed;
    struct roll_ring *ring; /* owned array of owned mappings */
    size_t rings, room;
    uint64_t missing; /* ranks of which there is no record */
    bool dumped;      /* it is known from dumps of other tools, which tell what they lack themselves */
};

/* The first bytes of a file, and what is known of it. */
struct analyzed_head {
    char bytes[ROLL_ANALYZE_HEAD];
    size_t n;
    int number;          /* errno where it could not be opened or read; else 0 */
    bool regular, whole; /* it is a plain file; these are all of its bytes */
    uint64_t written_ns;
};

struct roll_analysis {
    struct roll_engine_config config;
    const struct roll_expected *expected; /* borrowed; NULL = none */
    bool policy_fixed;
    struct roll_jobs jobs;    /* which are meant */
    struct analyzed_run *run; /* owned */
    size_t runs, run_room, files, unreadable;
    struct roll_analyze_file *trace; /* owned */
    size_t traces, trace_room;
    roll_dumps_t *dumps;        /* dumps of other tools; owned; NULL = none */
    roll_dump_reader_t *reader; /* owned; there where `dumps` are */
    size_t dumped;              /* dumps that were read */
    size_t unjudged;            /* jobs of whose dumps no entry was usable */
    struct analyzed_head head;  /* of the file that is being looked at */
    roll_reports_t *reports;    /* owned; of NCCL's own tools; NULL = none */
    roll_digests_t *digests;    /* owned; NULL = none */
    bool cut;
    unsigned threads;                    /* that read traces */
    const struct roll_feed_watch *watch; /* borrowed; NULL = none */
    const bool *stop;                    /* borrowed; NULL = none */
    bool takes_all;                      /* although somebody watches */
};

/* The run of the ring that a frame announces, or of the process that it notes, into *out (borrowed). 0; NOTFOUND: it is
 * not meant; CORRUPT, NOMEM. */
int roll_analyze_run_of_frame(roll_analysis_t *analysis, const struct roll_frame *frame, struct analyzed_run **out);

#endif
