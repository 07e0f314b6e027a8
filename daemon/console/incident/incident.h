/*
 * incident.h: a bundle about a finding: what is asked of a living root, and the files that are made of the answers
 * (docs/INCIDENT.md). One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_INCIDENT_INCIDENT_H
#define ROLL_DAEMON_CONSOLE_INCIDENT_INCIDENT_H

#include "daemon/console/incident/bundle.h"
#include "daemon/console/incident/tails.h"
#include "daemon/console/link.h"
#include "trace/rankset.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct roll_incident_options {
    struct roll_link_options link;
    const char *dir;
    uint64_t bytes;                   /* most of a bundle */
    uint32_t ranks;                   /* of so many the tails are taken at most */
    struct roll_bundle_bounds bounds; /* of the directory */
    int64_t restart;                  /* of the run that is meant; -1: of that which the root answers for */
    bool no_stacks;
    bool settle; /* a finding was made just now: what it leads to is waited for */
};

/* What one agent has said of itself and its node; the first answer of each host counts. */
struct roll_incident {
    const struct roll_incident_options *o;
    roll_client_t *client;                     /* owned */
    struct roll_bundle bundle;                 /* while it is made */
    json_t *run;                               /* `run` of the answers: job, restart, ranks; borrowed from `verdicts` */
    json_t *status, *verdicts, *why, *about;   /* answers; owned */
    json_t *stacks;                            /* [{"rank","host","stack"}]; owned */
    json_t *hosts;                             /* host -> {"software", "log"}; owned */
    json_t *variables;                         /* name -> {value -> folded set of ranks, as a list}; owned */
    json_t *libraries;                         /* path -> list of ranks; owned */
    struct roll_rankset concerned, asked, got; /* ranks: who is concerned, who was asked, whose tails came */
    struct roll_tails tails;
    uint64_t begin_ns, taken_ns; /* mono, wall clock */
};

/* collect.c: asks. 0, or the exit code behind a line on standard error. */
int roll_incident_collect(struct roll_incident *i);
/* Asks with the job that is meant; takes query. NULL: the reason has been noted as left out of the bundle. */
json_t *roll_incident_ask(struct roll_incident *i, json_t *query, const char *what);

/* choose.c: whose tails are taken: all of a small job; else the culprits of the findings that stand, those who wait for
 * them, and the sides of the evidence, at most `most`; without a finding those that are inside a call. Pure. */
int roll_incident_choose(const json_t *verdicts, const json_t *status, uint32_t most, struct roll_rankset *out);

/* files.c: writes. */
void roll_incident_write(struct roll_incident *i);
/* readme.c: the file that says what the others are; written last. */
void roll_incident_readme(struct roll_incident *i);
void roll_incident_fini(struct roll_incident *i);

#endif
