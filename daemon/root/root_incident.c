/*
 * root_incident.c: the root's part in a bundle about a finding (docs/INCIDENT.md): it passes a question for the tail of
 * a rank on to the rank's agent, keeps the answer until it is fetched, and starts `rollcall incident` by itself
 * (--incident-dir).
 *
 * The bundle is written by that program, a process of its own, which asks this root as any console does: a disk that is
 * slow, full or gone costs the root nothing, and neither does packing what 16,384 ranks have to say. A thread was
 * rejected: it would share the root's memory, and its end.
 */
#include "daemon/root/root_digest.h"

#include "daemon/base/clock.h"
#include "daemon/base/json.h"
#include "daemon/base/log.h"
#include "daemon/base/software.h"
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#define TAILS        16u               /* that are under way or wait to be fetched: 16 MiB at most */
#define ANSWER_NS    (8000 * ROLL_MS)  /* patience with an agent */
#define KEPT_NS      (30000 * ROLL_MS) /* how long an answer waits to be fetched */
#define CALM_NS      (500 * ROLL_MS)   /* what one mistake leads to is mostly said within that */
#define APART_NS     (60000 * ROLL_MS) /* between two bundles of one run: later findings are mostly its echo */
#define LIFE_NS      (UINT64_C(180000) * ROLL_MS) /* longest time for one bundle */
#define TERM_MS      5000u                        /* and then to end in good order, before it is killed */
#define KILL_MS      5000u /* and then to die: the kernel keeps who waits for a disk that hangs */
#define BUNDLES_MOST "64"  /* in one directory, of all jobs and restarts */
#define BYTES_MOST   "2G"  /* and all of them together */
#define ARGUMENTS    24

extern char **environ;

struct tail {
    uint64_t id, asked_ns; /* id 0: free */
    uint64_t stream;
    struct roll_address asked; /* who was asked: from nobody else an answer is taken */
    json_t *answer;            /* owned; NULL: none has come */
};

struct roll_root_incident {
    struct tail tail[TAILS];
    uint64_t last_id;
    pid_t child; /* 0: none */
    uint64_t child_ns;
    char job[ROLL_NAME_BYTES]; /* of which it writes */
    size_t pressed;            /* steps of `pressing` that it has had */
    pid_t hung;                /* one that even SIGKILL did not end, and that nobody waits for; 0: none */
};

/* Everything of this file that a root has; made when it is needed first. */
static struct roll_root_incident *state_of(roll_root_t *root)
{
    root->incident = root->incident ? root->incident : calloc(1, sizeof(*root->incident));
    return root->incident;
}

static void release(struct tail *t)
{
    json_decref(t->answer);
    *t = (struct tail){.id = 0};
}

/* What ends a program that takes too long, one after the other. */
static const struct {
    int number;
    unsigned ms; /* time that it has then */
} pressing[] = {{SIGTERM, TERM_MS}, {SIGKILL, KILL_MS}};
#define PRESSINGS (sizeof(pressing) / sizeof(pressing[0]))

/* The program did not die: the disk that holds it must hold nothing else up. */
static void leave_hung(struct roll_root_incident *s)
{
    roll_log(ROLL_LOG_WARNING,
             "root: the program that writes a bundle about %s (pid %d) cannot be ended: its disk does "
             "not answer; no other bundle is written until it has ended",
             s->job, (int)s->child);
    s->hung = s->child;
    s->child = 0;
}

/* Ends the program, within a bounded time. */
static void end_child(struct roll_root_incident *s)
{
    for (size_t i = 0; i < PRESSINGS; i++) {
        kill(s->child, pressing[i].number);
        for (unsigned waited = 0; waited < pressing[i].ms; waited += 10) {
            if (waitpid(s->child, NULL, WNOHANG) != 0) {
                s->child = 0;
                return;
            }
            poll(NULL, 0, 10);
        }
    }
    leave_hung(s);
}

void roll_incident_destroy(roll_root_t *root)
{
    struct roll_root_incident *s = root->incident;
    if (!s) {
        return;
    }
    for (size_t i = 0; i < TAILS; i++) {
        release(&s->tail[i]);
    }
    if (s->child > 0) { /* it has had its time, or nobody runs the loop that it asks */
        end_child(s);
    }
    free(s);
    root->incident = NULL;
}

/* tails */

static json_t *error(const char *text)
{
    return json_pack("{s:s}", "error", text);
}

static json_t *unavailable(const char *text)
{
    return json_pack("{s:s,s:b}", "error", text, "unavailable", 1);
}

/* Of a question that can be answered a moment later: "again" tells a program what the text tells a person. */
static json_t *busy(const char *text)
{
    return json_pack("{s:s,s:b,s:b}", "error", text, "unavailable", 1, "again", 1);
}

static const struct roll_peer *server_of(const roll_root_t *root, uint64_t stream)
{
    for (size_t i = 0; i < root->peers_used; i++) {
        struct roll_peer *peer = root->peers[i];
        if (!peer->gone && roll_streams_find(peer, stream)) {
            return peer;
        }
    }
    return NULL;
}

/* The tail of the newest process of a rank is asked for. */
static json_t *ask(roll_root_t *root, const struct roll_run *run, json_int_t rank, json_int_t records)
{
    struct roll_root_incident *s = state_of(root);
    struct roll_view_source v;
    struct tail *t = NULL;
    if (rank < 0 || rank > INT32_MAX || !roll_run_rank(run, (uint32_t)rank, &v)) {
        return error("no such rank in this run");
    }
    const struct roll_peer *peer = server_of(root, v.info.stream);
    if (!peer) {
        return unavailable("its agent is not connected");
    }
    for (size_t i = 0; s && i < TAILS && !t; i++) {
        t = s->tail[i].id == 0 ? &s->tail[i] : NULL;
    }
    if (!t) {
        return busy("others are asking: try again in a moment");
    }
    char text[24];
    snprintf(text, sizeof(text), "%016" PRIx64, v.info.stream);
    json_t *json = json_pack("{s:s, s:[s], s:I}", "op", "tail", "streams", text, "records", records);
    *t = (struct tail){.id = ++s->last_id, .asked_ns = roll_mono_ns(), .stream = v.info.stream, .asked = peer->at};
    struct roll_frame_head head = {.type = ROLL_FRAME_ASK, .seq = t->id};
    int err = json ? roll_net_send_json(peer->at.socket, peer->at.id, peer->at.bytes, &head, json) : ROLL_E_NOMEM;
    json_decref(json);
    if (err) {
        release(t);
        return unavailable("its agent cannot be asked");
    }
    return json_pack("{s:I}", "id", (json_int_t)t->id);
}

static json_t *fetch(struct roll_root_incident *s, uint64_t id)
{
    for (size_t i = 0; s && id > 0 && i < TAILS; i++) {
        struct tail *t = &s->tail[i];
        if (t->id == id && t->answer) {
            json_t *reply = json_pack("{s:b, s:O}", "done", 1, "answer", t->answer);
            release(t);
            return reply;
        }
        if (t->id == id) {
            return json_pack("{s:b}", "done", 0);
        }
    }
    return busy("this answer is not kept any more: ask anew");
}

static bool was_asked(const struct tail *t, const struct roll_peer *peer)
{
    return t->asked.socket == peer->at.socket && t->asked.bytes == peer->at.bytes &&
           memcmp(t->asked.id, peer->at.id, peer->at.bytes) == 0;
}

void roll_incident_answer(roll_root_t *root, const struct roll_peer *peer, const struct roll_frame *frame)
{
    struct roll_root_incident *s = root->incident;
    struct tail *t = NULL;
    for (size_t i = 0; s && i < TAILS; i++) {
        t = s->tail[i].id == frame->head.seq && frame->head.seq != 0 && !s->tail[i].answer ? &s->tail[i] : t;
    }
    if (t && !was_asked(t, peer)) {
        root->refused_frames++;
        return;
    }
    json_t *json = t ? roll_net_json(frame) : NULL;
    const char *op = json_string_value(json_object_get(json, "op"));
    const char *stream = json_string_value(json_object_get(json, "stream"));
    if (op && strcmp(op, "tail") == 0 && stream && strtoull(stream, NULL, 16) == t->stream) {
        t->answer = json_incref(json);
    }
    json_decref(json);
}

/* What this root says of itself. */
static json_t *about(const roll_root_t *root, const struct roll_run *run)
{
    struct roll_engine_config config;
    roll_engine_settings(roll_feed_engine(run->feed), &config);
    char log[16384 + 1];
    int major, minor, patch;
    zmq_version(&major, &minor, &patch);
    char zmq[48];
    snprintf(zmq, sizeof(zmq), "%d.%d.%d", major, minor, patch);
    roll_log_tail(log, sizeof(log));
    return json_pack("{s:o, s:s, s:o, s:I, s:b, s:I, s:I, s:i}", "software", roll_software_json(), "libzmq", zmq, "log",
                     roll_text_to_json(log), "pid", (json_int_t)getpid(), "writes", root->o.incident_dir != NULL,
                     "stall_ns", (json_int_t)config.stall_ns, "suspect_ns", (json_int_t)config.suspect_ns, "policy",
                     (int)run->policy);
}

json_t *roll_incident_query(roll_root_t *root, struct roll_run *run, const json_t *query)
{
    const json_t *id = json_object_get(query, "id"), *rank = json_object_get(query, "rank");
    if (json_is_integer(id)) {
        return fetch(root->incident, (uint64_t)json_integer_value(id));
    }
    return json_is_integer(rank)
               ? ask(root, run, json_integer_value(rank), json_integer_value(json_object_get(query, "records")))
               : about(root, run);
}

/* by itself */

/* Whether a finding is about ranks of which a bundle has been, or is about to be, written: what one mistake leads to.
 */
static bool is_echo(const struct roll_run *run, const struct roll_verdict *verdict)
{
    return (run->incident.begun_ns || run->incident.due_ns) &&
           roll_ranks_are_part(&verdict->culprits, &run->incident.culprits);
}

void roll_incident_suspect(roll_root_t *root, struct roll_run *run, const struct roll_verdict *verdict)
{
    if (!root->o.incident_dir || verdict->certainty != ROLL_PROVEN || !roll_verdict_is_finding(verdict)) {
        return;
    }
    uint64_t now = roll_mono_ns(), apart = run->incident.begun_ns ? run->incident.begun_ns + APART_NS : 0;
    if (run->incident.due_ns == 0 && !is_echo(run, verdict)) {
        run->incident.due_ns = now + CALM_NS > apart ? now + CALM_NS : apart;
        run->incident.verdict = verdict->number;
    }
    (void)roll_rankset_union(&run->incident.culprits, &verdict->culprits);
}

bool roll_incident_keeps(const roll_root_t *root, const struct roll_run *run)
{
    return root->o.incident_dir &&
           (roll_run_live(run) || run->incident.due_ns || (root->incident && root->incident->child));
}

/* The path of the console beside this program: ROLLCALL_BIN where it is set, because /proc names the loader for a
 * program that was started through one. */
static bool console_path(char *out, size_t size)
{
    const char *named = getenv("ROLLCALL_BIN");
    ssize_t n = named && *named ? snprintf(out, size, "%s", named) : readlink("/proc/self/exe", out, size - 1);
    if (n <= 0 || (size_t)n >= size) {
        return false;
    }
    out[n] = '\0';
    char *slash = strrchr(out, '/');
    if (!slash || (size_t)(slash + 1 - out) + sizeof("rollcall") > size) {
        return false;
    }
    memcpy(slash + 1, "rollcall", sizeof("rollcall"));
    return true;
}

static int spawn(roll_root_t *root, const struct roll_run *run)
{
    struct roll_root_incident *s = root->incident;
    char program[4096], keep[16], restart[16];
    snprintf(keep, sizeof(keep), "%u", root->o.incident_keep);
    snprintf(restart, sizeof(restart), "%" PRIu32, run->restart);
    /* The last of the endpoints that reach this process alone (ipc) where there is one, for it needs no keys. */
    const char *endpoint = root->endpoint[0];
    for (unsigned i = 0; i < root->o.listens; i++) {
        endpoint = strncmp(root->endpoint[i], "ipc:", 4) == 0 ? root->endpoint[i] : endpoint;
    }
    const char *argument[ARGUMENTS] = {
        program,   "incident", "--daemon",  endpoint, "--job",   run->job, "--dir",      root->o.incident_dir,
        "--keep",  keep,       "--restart", restart,  "--brief", "--most", BUNDLES_MOST, "--most-bytes",
        BYTES_MOST};
    size_t n = 17;
    if (root->o.curve_dir) {
        argument[n++] = "--curve-dir";
        argument[n++] = root->o.curve_dir;
    }
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0); /* a signal of the terminal is for the root, which ends it in time */
    int rc = console_path(program, sizeof(program))
                 ? posix_spawn(&s->child, program, &actions, &attributes, (char *const *)argument, environ)
                 : ENOENT;
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    s->child = rc == 0 ? s->child : 0;
    return rc;
}

static void start(roll_root_t *root, struct roll_run *run, uint64_t now)
{
    struct roll_root_incident *s = root->incident;
    run->incident.due_ns = 0;
    run->incident.begun_ns = now;
    if (s->hung) {
        roll_log(ROLL_LOG_WARNING,
                 "root: no bundle is written about verdict %" PRIu64 " of %s: an earlier one's program "
                 "is held by its disk",
                 run->incident.verdict, run->job);
        return;
    }
    int rc = spawn(root, run);
    if (rc != 0) {
        roll_log(ROLL_LOG_WARNING,
                 "root: no bundle is written about verdict %" PRIu64 " of %s: rollcall cannot be started: %s",
                 run->incident.verdict, run->job, strerror(rc));
        return;
    }
    s->child_ns = now;
    s->pressed = 0;
    snprintf(s->job, sizeof(s->job), "%s", run->job);
}

/* Ends a program that has had its time, one step further each time that a step was in vain. */
static void press(struct roll_root_incident *s, uint64_t now)
{
    uint64_t due = s->child_ns + LIFE_NS;
    for (size_t i = 0; i < s->pressed; i++) {
        due += pressing[i].ms * ROLL_MS;
    }
    if (now <= due) {
        return;
    }
    if (s->pressed == PRESSINGS) {
        leave_hung(s);
        return;
    }
    if (s->pressed == 0) {
        roll_log(ROLL_LOG_WARNING, "root: the bundle about %s is given up: it takes too long", s->job);
    }
    kill(s->child, pressing[s->pressed++].number);
}

/* The child says itself, on this daemon's standard error, what has come of the bundle. */
static void reap(struct roll_root_incident *s, uint64_t now)
{
    int status;
    if (waitpid(s->child, &status, WNOHANG) != 0) {
        bool well = WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 4);
        if (!well && s->pressed == 0) {
            roll_log(ROLL_LOG_WARNING, "root: no bundle is written about %s (%s %d)", s->job,
                     WIFEXITED(status) ? "status" : "signal",
                     WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
        }
        s->child = 0;
        return;
    }
    press(s, now);
}

bool roll_incident_turn(roll_root_t *root, uint64_t now, bool stops)
{
    struct roll_root_incident *s = root->incident;
    bool waits = false;
    for (size_t i = 0; s && i < TAILS; i++) {
        struct tail *t = &s->tail[i];
        if (t->id && !t->answer && now - t->asked_ns > ANSWER_NS) {
            t->answer = error("its agent did not answer in time");
        }
        if (t->id && now - t->asked_ns > KEPT_NS) {
            release(t);
        }
    }
    if (s && s->child) {
        reap(s, now);
    }
    if (s && s->hung && waitpid(s->hung, NULL, WNOHANG) != 0) {
        s->hung = 0;
    }
    for (size_t i = 0; root->o.incident_dir && i < root->runs_used; i++) {
        struct roll_run *run = root->runs[i];
        bool due = run->incident.due_ns && (now >= run->incident.due_ns || (stops && !run->incident.begun_ns));
        if (due && state_of(root) && root->incident->child == 0) {
            start(root, run, now);
        }
        waits = waits || (due && run->incident.due_ns);
    }
    return waits || (root->incident && root->incident->child);
}
