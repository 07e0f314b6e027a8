/*
 * job.h: recorded traces and rings, of any number of nodes, handed over call by call to who writes them down in another
 * form, and at the end the verdicts, which are those of `rollcall analyze`.
 *
 * All is read by the analysis that judges (daemon/console/analyze/), once, in the order of its clocks, and a call is
 * forgotten when it has been handed over: so memory depends on ranks, communicators and call sites, and not on how many
 * calls there are. A reader of its own beside the analysis was rejected: it would order, drop repetitions and date
 * records by rules that drift away from those of the verdicts beside which its calls are shown. One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_EXPORT_JOB_H
#define ROLL_DAEMON_CONSOLE_EXPORT_JOB_H

#include "daemon/base/map.h"
#include "daemon/console/analyze/analyze.h"
#include "daemon/feed/feed.h"
#include "daemon/verdict/verdict.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_JOB_NONE UINT32_MAX

/* One run (job, restart). */
struct roll_job_run {
    roll_feed_t *feed;         /* borrowed; NULL: it is gone, and so is the run (takes_all) */
    uint32_t *ring;            /* owned; by number in the feed: 1 + number among all rings; 0 = not seen */
    size_t rings;              /* room of it */
    struct roll_map comm_at;   /* key -> number among all communicators */
    struct roll_map engine_at; /* key -> number in the engine; made when it is asked for */
    struct roll_map rank_at;   /* rank -> number among all rings, of its newest process; made for `end` */
    uint32_t comms;            /* communicators of it */
};

/* A communicator of a run. */
struct roll_job_comm {
    uint32_t run;
    uint32_t order; /* its number in the run */
    uint64_t key;
    uint32_t size;
    uint64_t parent_key; /* this and what follows: as struct roll_def_comm */
    int32_t color;
    uint32_t child, origin;
    char label[ROLL_NAME_BYTES]; /* plain UTF-8; "" = none */
};

/* A process of a run, which is a ring: a rank that was started again within a run has several. */
struct roll_job_ring {
    uint32_t run, source; /* source: its number in the run's feed */
    uint64_t stream;
    struct roll_job_member {
        uint32_t comm; /* 1 + number among all communicators; 0 = none */
        int32_t rank;  /* its own number on it */
        uint32_t size; /* as it gave it itself: they may differ, which is a mistake of the job */
    } * member;        /* owned; by the process's own id of the communicator */
    size_t members;
    uint32_t callsites; /* 1 + the highest id of a call site */
};

/* A call as it is handed over. */
struct roll_job_call {
    const struct roll_record *rec;
    uint64_t real_ns; /* wall clock of its beginning */
    uint64_t bytes;   /* as passed by the caller; 0: it moves none, or it is not known */
    uint32_t ring;
    uint32_t comm; /* ROLL_JOB_NONE = none */
    int32_t member;
    enum roll_feed_news news; /* FIRST, or what else has become known of a call that was handed over before */
};

struct roll_job;
/* Who writes: 0 or an error, after which nothing more is handed over. */
struct roll_job_writer {
    void *ctx; /* borrowed */
    int (*call)(void *ctx, struct roll_job *job, const struct roll_job_call *call);
    int (*end)(void *ctx, struct roll_job *job);
    /* A verdict (borrowed) of a run, at the moment it appears; NULL = not wanted. */
    int (*verdict)(void *ctx, struct roll_job *job, uint32_t run, const struct roll_verdict_copy *verdict);
    bool takes_all; /* dumps, reports and digests, which hold no calls as they were made, are read as well */
};

struct roll_job {
    struct roll_job_run *run; /* owned, as are the next two */
    struct roll_job_ring *ring;
    struct roll_job_comm *comm;
    size_t runs, run_room, rings, ring_room, comms, comm_room;
    const struct roll_job_writer *writer;
    roll_analysis_t *analysis;         /* borrowed */
    struct roll_verdict_list verdicts; /* all of all runs, when `end` is called */
    struct roll_analysis_summary summary;
    int err;
    bool stop;
};

/*
 * Reads all of these paths (files and directories, as analyze takes them) with so many threads (0: as analyze does),
 * and hands it over; only: one job of them, named as in analyze/jobs.h (NULL: all). *summary: what analyze would say of
 * it. 0; NOTFOUND: there is no trace and no ring, or nothing of that job; NOMEM; the first error of the writer.
 */
int roll_job_read(char **path, size_t paths, unsigned threads, const char *only, const struct roll_job_writer *writer,
                  struct roll_analysis_summary *summary);

/* For who writes. */

/* The ring as its feed knows it. */
void roll_job_ring_view(const struct roll_job *job, uint32_t ring, struct roll_feed_stream *out);
/* The run of a verdict, and in `end` the newest process of a rank of a run; ROLL_JOB_NONE = none. */
uint32_t roll_job_run_of(const struct roll_job *job, const struct roll_verdict_copy *verdict);
uint32_t roll_job_ring_of(const struct roll_job *job, uint32_t run, uint32_t rank);
/* The rank of a process in its job as far as is known by now; -1 = not known. */
int32_t roll_job_rank(const struct roll_job *job, uint32_t ring);
/* The communicator of a run with this key; ROLL_JOB_NONE = none. */
uint32_t roll_job_comm_of(const struct roll_job *job, uint32_t run, uint64_t key);
/* What the engine knows of a communicator; borrowed as roll_engine_comm. False: it does not know it. */
bool roll_job_comm_view(const struct roll_job *job, uint32_t comm, struct roll_view_comm *out);
/* A name of a communicator for people: what the job calls it, its members where all are known, its label; else how many
 * ranks it has. */
void roll_job_comm_name(const struct roll_job *job, uint32_t comm, char *out, size_t size);
/* The frames of a call site: those of Python, else the native ones. How many, at most ROLL_SYMBOL_FRAMES. */
int roll_job_frames(const struct roll_job *job, uint32_t ring, uint16_t callsite,
                    struct roll_symbol_frame out[ROLL_SYMBOL_FRAMES]);
/* For who writes: words (job_words.c). */

/* What a class of operations (enum roll_op_class) is called. */
const char *roll_job_class_name(unsigned class);
/* In a few words where these frames are, "" = not known. *source: what the line says, "" where that is not known. */
void roll_job_place(const struct roll_symbol_frame *frame, int frames, char *out, size_t size, const char **source);
/* Makes a text of another process plain UTF-8, in place: other bytes become '?', and what would steer a terminal
 * blanks. lines: ends of lines stay. */
void roll_job_plain(char *text, bool lines);

#endif
