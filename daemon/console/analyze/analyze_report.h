/*
 * analyze_report.h: reports of NCCL's own tools, judged: the output of `ncclras` (text and JSON), and files of NCCL
 * Inspector.
 *
 * Both say less than a trace, so they do not go through the engine, which matches calls: RAS counts launches by
 * function and says who was not reached; Inspector has completed collectives alone, with their sizes and times. What is
 * said of them is suspected at most, and says why. One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_ANALYZE_ANALYZE_REPORT_H
#define ROLL_DAEMON_CONSOLE_ANALYZE_ANALYZE_REPORT_H

#include "daemon/verdict/verdict.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_RAS_FUNCTIONS 5u /* RAS counts these: Broadcast, Reduce, AllGather, ReduceScatter, AllReduce */
#define ROLL_REPORT_WHERE  96u

/* One rank of a communicator, as one report tells. */
struct roll_report_rank {
    uint32_t rank;                         /* in the communicator */
    char where[ROLL_REPORT_WHERE];         /* "process 8814 on 10.0.77.184, GPU 1"; "" = not told */
    uint64_t launched[ROLL_RAS_FUNCTIONS]; /* RAS; in the last place alone where `is_total` */
    bool is_missing;                       /* RAS was not told of it */
    uint32_t others;                       /* of the entry that stands for those whom a text does not name: how many */
};

/* One communicator in one RAS report. */
struct roll_report_comm {
    char id[64];
    uint32_t size;
    uint64_t time;                 /* seconds, by the report; 0 = not told */
    size_t order;                  /* of the reports, as they were given */
    bool is_partial;               /* the text of a report names the odd ranks alone */
    struct roll_report_rank *rank; /* owned */
    size_t ranks, room;
};

/* One completed collective in a file of Inspector. */
struct roll_report_call {
    uint32_t comm, rank, function; /* numbers of tables; rank in the communicator */
    uint64_t sn, bytes, took_us;
};

typedef struct roll_reports roll_reports_t;

/* Whether these first bytes of a file may be those of such a report. */
bool roll_report_is_likely(const char *head, size_t bytes);

roll_reports_t *roll_reports_new(void);
void roll_reports_destroy(roll_reports_t **reports);
/*
 * Reads one file. 0; NOMEM; LIMIT (too large); SHORT, CORRUPT with one line in `why`, where nothing of the file could
 * be used. A file of which a part could be used counts as read, and `why` then says what is odd ("" = nothing).
 */
int roll_reports_add(roll_reports_t *reports, const char *path, char *why, size_t size);
int roll_reports_parse(roll_reports_t *reports, const char *text, size_t bytes, char *why, size_t size);
/* Judges all that was added; once. 0, NOMEM. */
int roll_reports_judge(roll_reports_t *reports);
/* The next verdict, returned owned; NULL when there is none. */
struct roll_verdict_copy *roll_reports_next(roll_reports_t *reports);

struct roll_reports_summary {
    uint64_t ranks, comms, calls, findings;
};
void roll_reports_summary(const roll_reports_t *reports, struct roll_reports_summary *out);

#endif
