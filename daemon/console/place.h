/*
 * place.h: where the parts of rollcall are, seen from the running `rollcall`: in a build tree or installed.
 */
#ifndef ROLL_DAEMON_CONSOLE_PLACE_H
#define ROLL_DAEMON_CONSOLE_PLACE_H

#include <limits.h>
#include <stdint.h>

/* Absolute paths; "" for what was not found. */
struct roll_place {
    char daemon[PATH_MAX];   /* rollcalld */
    char preload[PATH_MAX];  /* librollcall.so */
    char python[PATH_MAX];   /* the directory of the helper for `run --python-stacks` */
    char audit[PATH_MAX];    /* librollcall_audit.so */
    char fronts[PATH_MAX];   /* the directory of the fronts, one folder for each release */
    char zygote[PATH_MAX];   /* the script that forks the ranks of a rehearsal */
    char replay[PATH_MAX];   /* the program that makes a rank's recorded calls again */
    char hostnccl[PATH_MAX]; /* the directory of the stand-in libnccl.so.2 and libcudart */
};

/* Looks for all parts. A part that is missing stays "". */
void roll_place_find(struct roll_place *place);

/* The bytes of one rank's ring, as large as ROLLCALL_RING_RECORDS wants it; and those that are free where `dir` is, or
 * will be made: UINT64_MAX where nobody says. */
uint64_t roll_place_ring_bytes(void);
/* Records of such a ring. */
uint64_t roll_place_ring_records(void);
uint64_t roll_place_free_bytes(const char *dir);

/* A directory for rings: ROLLCALL_DIR, else roll_default_dir(). 0 or ROLL_E_SIZE. */
int roll_place_rings(char *out, int size);

#endif
