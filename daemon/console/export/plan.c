/*
 * plan.c: see plan.h. Records go to the place of their ticket in a file of their process, so what becomes known of a
 * call later is written over it, and nothing is held.
 *
 * What cannot be made again as it was is refused, and not left out: a replay that lacks a collective would hang where
 * the job did not.
 */
#include "daemon/console/export/plan.h"

#include "daemon/base/array.h"
#include "daemon/base/file.h"
#include "daemon/console/console.h"
#include "daemon/console/export/out.h"
#include "trace/err.h"
#include "trace/op.h"
#include "trace/replay.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SMALL_BYTES (UINT64_C(16) << 20) /* of one call: above, sizes are made small */

/* What is known of the file of one process. */
struct file {
    int fd; /* -1 = none yet; 0 is never one of ours */
    uint64_t slots;
    uint64_t offset; /* wall clock minus the clock of its records */
    bool open;
    struct use {
        bool used, made;   /* calls were made on it; its CommInit is there */
        uint32_t children; /* splits of it that are there */
    } * use;               /* owned; by the process's own id of the communicator */
    size_t uses;
};

struct planner {
    const char *dir;
    struct file *file; /* owned; by ring */
    size_t files;
    uint64_t first_ns, most_bytes;
    uint32_t ranks;
    struct roll_standing *standing; /* borrowed */
};

static int refuse(const char *format, const char *what)
{
    roll_say(format, what);
    return ROLL_E_UNSUPPORTED;
}

static int complain(const struct planner *p)
{
    roll_say("%s: %s", p->dir, strerror(errno));
    return roll_out_error(errno);
}

/* Why this call cannot be made again; NULL: it can. */
static const char *odd(const struct roll_record *rec)
{
    if (rec->op == ROLL_OP_GRAPH_LAUNCH || (rec->flags & (ROLL_FLAG_CAPTURED | ROLL_FLAG_REPLAYED)) != 0) {
        return "calls in CUDA graphs";
    }
    if (roll_op_class(rec->op) == ROLL_CLASS_RMA || rec->op == ROLL_OP_COMM_SHRINK || rec->op == ROLL_OP_COMM_GROW ||
        rec->op == ROLL_OP_COMM_REVOKE || rec->op == ROLL_OP_COMM_SUSPEND || rec->op == ROLL_OP_COMM_RESUME) {
        return roll_op_name(rec->op);
    }
    return (rec->flags & (ROLL_FLAG_UNSIZED | ROLL_FLAG_PLUGIN)) != 0 ? "calls that NCCL's plugin told" : NULL;
}

static int file_of(struct planner *p, uint32_t ring, const struct roll_job_call *call)
{
    char path[PATH_MAX];
    int err = ROLL_GROW_ZERO(p->file, p->files, (size_t)ring + 1);
    struct file *f = err == 0 ? &p->file[ring] : NULL;
    if (err != 0 || f->open) {
        return err;
    }
    if (ring >= ROLL_PLAN_RANKS) {
        return refuse("more than %s: too many for one machine", "256 processes");
    }
    snprintf(path, sizeof(path), "%s/ring-%" PRIu32, p->dir, ring);
    f->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    f->open = f->fd >= 0;
    f->offset = call != NULL ? call->real_ns - call->rec->enter_ns : 0;
    return f->open ? 0 : complain(p);
}

/* Takes note of what a communicator has been through, which is judged when all definitions are known. */
static int note_use(struct file *f, const struct roll_record *rec)
{
    enum roll_op_class class = roll_op_class(rec->op);
    bool calls = class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P;
    int err = ROLL_GROW_ZERO(f->use, f->uses, (size_t)rec->comm + 1);
    if (err == 0) {
        struct use *u = &f->use[rec->comm];
        u->used = u->used || calls;
        u->made = u->made || rec->op == ROLL_OP_COMM_INIT;
        u->children = rec->op == ROLL_OP_COMM_SPLIT && rec->aux >= u->children ? rec->aux + 1u : u->children;
    }
    return err;
}

static int take_call(void *ctx, struct roll_job *job, const struct roll_job_call *call)
{
    struct planner *p = ctx;
    const char *why = odd(call->rec);
    uint64_t ticket = roll_seal_ticket(call->rec->seal), wide;
    if (why != NULL) {
        return refuse("%s: a replay cannot make them yet", why);
    }
    int err = file_of(p, call->ring, call);
    if (err != 0 || ticket >= (uint64_t)INT64_MAX / ROLL_RECORD_BYTES) {
        return err != 0 ? err : ROLL_E_CORRUPT;
    }
    struct file *f = &p->file[call->ring];
    err = note_use(f, call->rec);
    if (err != 0) {
        return err;
    }
    f->slots = ticket + 1 > f->slots ? ticket + 1 : f->slots;
    p->first_ns = call->real_ns < p->first_ns ? call->real_ns : p->first_ns;
    /* What gathers has as much of each member. What cannot be counted is made small. */
    uint64_t members = call->comm != ROLL_JOB_NONE ? job->comm[call->comm].size : 1;
    bool beyond = __builtin_mul_overflow(call->rec->count, (uint64_t)roll_dtype_bytes(call->rec->dtype), &wide) ||
                  __builtin_mul_overflow(wide, members, &wide);
    wide = beyond ? UINT64_MAX : wide;
    p->most_bytes = wide > p->most_bytes ? wide : p->most_bytes;
    ssize_t n = pwrite(f->fd, call->rec, ROLL_RECORD_BYTES, (off_t)(ticket * ROLL_RECORD_BYTES));
    return n == ROLL_RECORD_BYTES ? 0 : complain(p);
}

static void fate_of(const struct roll_feed_stream *view, struct roll_replay_head *head)
{
    int status = view->exit_status & ~ROLL_EXIT_ASKED;
    bool known = view->exit_status != ROLL_EXIT_UNKNOWN && status != ROLL_EXIT_UNKNOWN;
    bool asked = view->exit_status != ROLL_EXIT_UNKNOWN && (view->exit_status & ROLL_EXIT_ASKED) != 0;
    head->fate = ROLL_REPLAY_STAYS;
    if (view->proc == ROLL_PROC_FINISHED && !asked) {
        head->fate = ROLL_REPLAY_EXITS;
        head->code = known && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    } else if (view->proc == ROLL_PROC_DEAD && !asked) {
        head->fate = known && WIFEXITED(status) ? ROLL_REPLAY_LEAVES : ROLL_REPLAY_KILLED;
        head->code = !known ? SIGKILL : WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status);
    }
}

static int write_plan(struct planner *p, const struct roll_job *job, uint32_t ring, uint32_t rank)
{
    char path[PATH_MAX], from[PATH_MAX];
    const struct roll_job_ring *r = &job->ring[ring];
    struct roll_feed_stream view;
    struct roll_replay_head head = {.version = ROLL_REPLAY_VERSION,
                                    .rank = rank,
                                    .ranks = p->ranks,
                                    .calls = p->file[ring].slots,
                                    .begin_ns = p->first_ns - p->file[ring].offset,
                                    .scaled = p->most_bytes > SMALL_BYTES};
    memcpy(head.magic, ROLL_REPLAY_MAGIC, sizeof(head.magic));
    roll_job_ring_view(job, ring, &view);
    fate_of(&view, &head);
    for (size_t i = 0; i < r->members; i++) {
        head.comms += r->member[i].comm != 0;
    }
    snprintf(path, sizeof(path), "%s/rank-%" PRIu32 ".plan", p->dir, rank);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool good = fd >= 0 && roll_write_all(fd, &head, sizeof(head)) == sizeof(head);
    for (size_t i = 0; i < r->members && good; i++) {
        if (r->member[i].comm != 0) {
            const struct roll_job_comm *c = &job->comm[r->member[i].comm - 1];
            struct roll_replay_comm one = {.key = c->key,
                                           .parent_key = c->parent_key,
                                           .rank = r->member[i].rank,
                                           .nranks = (int32_t)r->member[i].size,
                                           .color = c->color,
                                           .child = c->child,
                                           .origin = c->origin,
                                           .id = (uint32_t)i};
            memcpy(one.label, c->label, sizeof(one.label));
            good = roll_write_all(fd, &one, sizeof(one)) == sizeof(one);
        }
    }
    good = (fd < 0 || close(fd) == 0) && good;
    snprintf(from, sizeof(from), "%s/ring-%" PRIu32, p->dir, ring);
    snprintf(path, sizeof(path), "%s/rank-%" PRIu32 ".calls", p->dir, rank);
    return good && rename(from, path) == 0 ? 0 : complain(p);
}

/* Whether a communicator of a process comes to be in its calls. */
static bool is_made(const struct roll_job *job, uint32_t ring, const struct file *f, size_t id)
{
    const struct roll_job_ring *r = &job->ring[ring];
    const struct roll_job_comm *c =
        id < r->members && r->member[id].comm != 0 ? &job->comm[r->member[id].comm - 1] : NULL;
    if (c == NULL || c->origin != ROLL_COMM_SPLIT) {
        return c != NULL && f->use[id].made;
    }
    for (size_t i = 0; i < r->members && i < f->uses; i++) {
        const struct roll_job_comm *parent = r->member[i].comm != 0 ? &job->comm[r->member[i].comm - 1] : NULL;
        if (parent != NULL && parent->key == c->parent_key && f->use[i].children > c->child) {
            return true;
        }
    }
    return false;
}

static int check_ring(const struct planner *p, const struct roll_job *job, uint32_t ring)
{
    const struct file *f = ring < p->files ? &p->file[ring] : NULL;
    char text[64];
    snprintf(text, sizeof(text), "rank %" PRId32, roll_job_rank(job, ring));
    for (size_t i = 0; f != NULL && i < f->uses; i++) {
        if (f->use[i].used && !is_made(job, ring, f, i)) {
            return refuse("%s calls on a communicator whose making is not in the trace: give it from its beginning",
                          text);
        }
    }
    return 0;
}

/* All ranks of one run, from 0 on, one process each; else one line. */
static int check(struct planner *p, const struct roll_job *job)
{
    struct roll_view_source v = {.info = {.world_size = -1}};
    uint32_t most = 0;
    if (job->runs == 0) {
        return refuse("%s: there is nothing to make again", "these traces end before they tell of a job");
    }
    if (job->runs != 1) {
        return refuse("%s: give the traces of one, or choose it by --job",
                      "several jobs, or restarts of one, are in these traces");
    }
    if (job->summary.cut || job->summary.engine.lost + job->summary.older > 0) {
        return refuse("%s: what the ranks did there is not known",
                      "a trace was cut, records were lost, or older calls are not in this recording");
    }
    roll_engine_source_brief(roll_feed_engine(job->run[0].feed), 0, &v);
    p->ranks = (uint32_t)job->rings;
    for (uint32_t i = 0; i < p->ranks; i++) {
        most = roll_job_ring_of(job, 0, i) != ROLL_JOB_NONE ? i + 1 : most;
    }
    if (most != p->ranks || (v.info.world_size > 0 && (uint32_t)v.info.world_size != p->ranks)) {
        char text[96];
        snprintf(text, sizeof(text), "of a job of %" PRId32 " ranks there are %" PRIu32 " processes here",
                 v.info.world_size > 0 ? v.info.world_size : (int32_t)most, p->ranks);
        return refuse("%s: a replay wants one of each rank", text);
    }
    return 0;
}

static int end(void *ctx, struct roll_job *job)
{
    struct planner *p = ctx;
    int err = check(p, job);
    err = err != 0 ? err : roll_standing_take(p->standing, job);
    for (uint32_t i = 0; i < p->ranks && err == 0; i++) {
        uint32_t ring = roll_job_ring_of(job, 0, i);
        err = ring != ROLL_JOB_NONE ? check_ring(p, job, ring) : ROLL_E_CORRUPT;
        err = err != 0 ? err : file_of(p, ring, NULL);
        err = err != 0 ? err : write_plan(p, job, ring, i);
    }
    return err;
}

/* Takes away what was written, by its names: where there is no memory for anything, no directory can be read. */
static void discard(const struct planner *p)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < p->files; i++) {
        static const char *const forms[] = {"%s/ring-%zu", "%s/rank-%zu.calls", "%s/rank-%zu.plan"};
        for (size_t k = 0; k < sizeof(forms) / sizeof(forms[0]); k++) {
            snprintf(path, sizeof(path), forms[k], p->dir, i);
            (void)unlink(path);
        }
    }
}

int roll_plan_write(char **path, size_t paths, unsigned threads, const char *only, const char *dir, uint32_t *ranks,
                    struct roll_standing *standing, struct roll_analysis_summary *summary)
{
    struct planner p = {.dir = dir, .first_ns = UINT64_MAX, .standing = standing};
    struct roll_job_writer writer = {.ctx = &p, .call = take_call, .end = end};
    int err = roll_job_read(path, paths, threads, only, &writer, summary);
    for (size_t i = 0; i < p.files; i++) {
        if (p.file[i].open) {
            close(p.file[i].fd);
        }
        free(p.file[i].use);
    }
    if (err != 0) {
        discard(&p);
    }
    free(p.file);
    *ranks = p.ranks;
    if (err == ROLL_E_NOMEM || err == ROLL_E_CORRUPT) {
        roll_say("%s", roll_strerror(err));
    }
    return err;
}
