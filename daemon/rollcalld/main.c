/*
 * main.c: the program rollcalld: starts the parts that the options ask for, and ends them in order: agent, root, relay.
 *
 * Standalone is an agent thread and a root in one process. The two exchange over inproc the same frames that otherwise
 * cross a network, so there is no second path to test.
 */
#include "daemon/agent/agent.h"
#include "daemon/agent/node_facts.h"
#include "daemon/base/bus_guard.h"
#include "daemon/base/log.h"
#include "daemon/base/memory.h"
#include "daemon/expect/expect.h"
#include "daemon/rollcalld/options.h"
#include "daemon/rollcalld/place.h"
#include "daemon/rollcalld/supervise.h"
#include "daemon/root/root.h"
#include "daemon/stack/helper.h"
#include "daemon/store/segment.h"
#include "daemon/wire/counted.h"
#include "daemon/wire/curve.h"
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#define INPROC      "inproc://rollcall-root"
#define EXIT_USAGE  2
#define EXIT_CANNOT 3
#define BUNDLES     3 /* about findings of one run: what comes later is mostly their echo */
#define NEEDS_KEYS                                                                                                     \
    "--listen %s reaches beyond this host and needs keys: rollcall keygen DIR, then --curve-dir DIR (or --insecure)"

static _Atomic bool stop;

struct daemon {
    struct roll_options o;
    void *context;
    roll_curve_zap_t *zap;
    struct roll_curve_keys server_keys, client_keys;
    bool have_server_keys, have_client_keys;
    int agent_lock, root_lock;
    roll_root_t *root;
    roll_relay_t *relay;
    struct roll_expected *expected;   /* of --expect; NULL = none */
    struct roll_supervised *together; /* with its predecessors and successors; NULL = not supervised */
    bool stood;                       /* it has been up, and announced itself */
    char ipc[4096 + 16];
    pthread_t thread;
    bool threaded;
    struct roll_agent_options agent;
    _Atomic bool agent_stop, agent_done;
    int agent_err;
    char why[4096 + 512];
};

/* The first signal asks for an orderly exit; the second one exits at once. */
static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)context;
    atomic_store(&stop, true);
    if (roll_supervise_insists(info->si_code <= 0 ? info->si_pid : 0)) { /* of a terminal: from nobody */
        _exit(128 + number);
    }
}

static void set_up_process(void)
{
    struct sigaction sa = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGINT, &sa, NULL);
    sa = (struct sigaction){.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &sa, NULL);
    sigaction(SIGHUP, &sa, NULL);
    sigaction(SIGXFSZ, &sa, NULL); /* a file that reaches its size limit is then an error of write, like a full disk */
    roll_guard();                  /* rings belong to the jobs */
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    umask(077);
    /* Frames come in one thread and are judged in another: with a heap for each of them, what one has given back would
     * be of no use to the other, which is 150 MiB in the largest jobs. */
    mallopt(M_ARENA_MAX, 1);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) ==
        0) { /* all that may be had, but none whose bytes the guard could not count */
        files.rlim_cur = files.rlim_max < ROLL_COUNTED_FDS ? files.rlim_max : ROLL_COUNTED_FDS;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

static const char *mode_name(const struct daemon *d)
{
    return d->o.mode == ROLL_MODE_AGENT ? "agent" : d->o.mode == ROLL_MODE_RELAY ? "relay" : "root";
}

/* Why the daemon does not start. In the background it is a line of the log: the rank that started an agent has no other
 * place where somebody would look. */
static void complain(const struct daemon *d, const char *why)
{
    if (d->o.detach) {
        roll_log(ROLL_LOG_ERROR, "%s: cannot start: %s", mode_name(d), why);
    } else {
        fprintf(stderr, "rollcalld: %s\n", why);
    }
}

static int fail(struct daemon *d, const char *what)
{
    snprintf(d->why, sizeof(d->why), "%s", what);
    return EXIT_CANNOT;
}

/* pieces */

static int take_locks(struct daemon *d)
{
    const char *dir = d->o.dir;
    int pid = 0;
    if (d->o.mode == ROLL_MODE_RELAY) {
        return 0; /* it has no directory */
    }
    if (d->o.mode != ROLL_MODE_ROOT) {
        int err = roll_agent_lock(dir, &d->agent_lock, &pid);
        if (err == ROLL_E_BUSY) {
            if (d->o.if_none) {
                return 0; /* d->agent_lock stays -1, which run() checks */
            }
            snprintf(d->why, sizeof(d->why), "an agent (pid %d) already serves %s; stop it, or use another --dir", pid,
                     dir);
            return EXIT_CANNOT;
        }
        if (err) {
            snprintf(d->why, sizeof(d->why), "%s/agent.lock: %s", dir, roll_strerror(err));
            return EXIT_CANNOT;
        }
    }
    if (d->o.mode != ROLL_MODE_AGENT && dir[0]) {
        int err = roll_place_lock_root(dir, &d->root_lock);
        if (err) {
            snprintf(d->why, sizeof(d->why),
                     err == ROLL_E_BUSY ? "a root already serves %s; stop it, or use another --dir"
                                        : "%s/root.lock cannot be had",
                     dir);
            return EXIT_CANNOT;
        }
    }
    return 0;
}

/* Every tcp endpoint takes keys: those that were made, or the cookie, where nothing reaches beyond this host. */
static int load_keys(struct daemon *d)
{
    const struct roll_options *o = &d->o;
    bool tcp = false;
    for (unsigned i = 0; i < o->listens; i++) {
        tcp |= roll_net_takes_keys(o->listen[i]);
        if (roll_net_beyond_loopback(o->listen[i]) && !o->curve_dir && !o->insecure) {
            snprintf(d->why, sizeof(d->why), NEEDS_KEYS, o->listen[i]);
            return EXIT_CANNOT;
        }
    }
    int err = 0;
    if (tcp && (o->curve_dir || !o->insecure)) {
        err = o->curve_dir ? roll_curve_load(o->curve_dir, true, &d->server_keys, d->why, sizeof(d->why))
                           : roll_curve_cookie(&d->server_keys, d->why, sizeof(d->why));
        d->have_server_keys = !err;
    }
    if (!err && o->connect) {
        err = roll_curve_for(o->connect, o->curve_dir, &d->client_keys, &d->have_client_keys, d->why, sizeof(d->why));
    }
    return err ? EXIT_CANNOT : 0;
}

static int make_root(struct daemon *d)
{
    const struct roll_options *o = &d->o;
    struct roll_root_options r = {.context = d->context,
                                  .keys = d->have_server_keys ? &d->server_keys : NULL,
                                  .beyond = o->curve_dir || o->insecure,
                                  .policy_set = o->policy_set,
                                  .policy = o->policy,
                                  .trace_dir = o->trace,
                                  .trace_segment = o->trace_segment,
                                  .trace_limit = o->trace_limit,
                                  .trace_age_ns = o->trace_age_ns,
                                  .json_path = o->json,
                                  .http = o->http,
                                  .incident_dir = o->incident,
                                  .incident_keep = o->incident_keep ? (unsigned)o->incident_keep : BUNDLES,
                                  .curve_dir = o->curve_dir,
                                  .expected = d->expected,
                                  .stacks_auto = o->stacks_auto,
                                  .compare = o->compare,
                                  .case_ranks = o->case_ranks,
                                  .case_records = o->case_records,
                                  .stall_ns = o->stall_ns,
                                  .suspect_ns = o->suspect_ns,
                                  .linger_s = o->linger_s,
                                  .parent = o->parent,
                                  .deaths = d->together ? d->together->deaths : 0,
                                  .stop = &stop};
    memcpy(r.listen, o->listen, sizeof(r.listen));
    r.listens = o->listens;
    if (o->dir[0]) {
        snprintf(d->ipc, sizeof(d->ipc), "ipc://%s/root", o->dir);
        r.listen[r.listens++] = d->ipc;
    }
    if (o->mode == ROLL_MODE_STANDALONE) {
        r.listen[r.listens++] = INPROC;
        r.agent_stop = &d->agent_stop;
        r.agent_done = &d->agent_done;
    }
    if (d->have_server_keys && roll_curve_zap_new(d->context, o->curve_dir, &d->server_keys, &d->zap) != 0) {
        return fail(d, "the authenticator cannot be started");
    }
    int err = roll_root_new(&r, &d->root, d->why, sizeof(d->why));
    return err == ROLL_E_ARG ? EXIT_USAGE : err ? EXIT_CANNOT : 0;
}

static int make_relay(struct daemon *d)
{
    const struct roll_options *o = &d->o;
    struct roll_relay_options r = {.context = d->context,
                                   .listens = o->listens,
                                   .above = o->connect,
                                   .beyond = o->curve_dir || o->insecure,
                                   .server_keys = d->have_server_keys ? &d->server_keys : NULL,
                                   .client_keys = d->have_client_keys ? &d->client_keys : NULL,
                                   .stop = &stop};
    memcpy(r.listen, o->listen, o->listens * sizeof(r.listen[0]));
    if (d->have_server_keys && roll_curve_zap_new(d->context, o->curve_dir, &d->server_keys, &d->zap) != 0) {
        return fail(d, "the authenticator cannot be started");
    }
    return roll_relay_new(&r, &d->relay, d->why, sizeof(d->why)) ? EXIT_CANNOT : 0;
}

static void *agent_main(void *argument)
{
    struct daemon *d = argument;
    char why[256] = "";
    d->agent_err = roll_agent_run(&d->agent, why, sizeof(why));
    if (d->agent_err) {
        roll_log(ROLL_LOG_ERROR, "agent: %s", why);
        atomic_store(&stop, true);
    }
    atomic_store(&d->agent_done, true);
    return NULL;
}

static int start_agent_thread(struct daemon *d)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* only the main thread takes signals */
    int err = pthread_create(&d->thread, NULL, agent_main, d);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    d->threaded = err == 0;
    return err ? fail(d, "cannot start a thread") : 0;
}

/* Announces that the daemon is ready: in the endpoint file, on the ready descriptor, and to the waiting parent. */
static int announce(struct daemon *d)
{
    const char *endpoint = d->root    ? roll_root_endpoint(d->root, 0)
                           : d->relay ? roll_relay_endpoint(d->relay, 0)
                                      : d->o.connect;
    if (d->root && d->o.dir[0] && roll_place_endpoint(d->o.dir, d->ipc) != 0) {
        snprintf(d->why, sizeof(d->why), "%s/endpoint cannot be written: %s", d->o.dir, strerror(errno));
        return EXIT_CANNOT;
    }
    if (d->root) {
        roll_log(ROLL_LOG_INFO, "root: listening on %s", endpoint);
    }
    if (d->relay) {
        roll_log(ROLL_LOG_INFO, "relay: listening on %s", endpoint);
    }
    if (d->o.ready_fd >= 0) {
        char line[300];
        int n = snprintf(line, sizeof(line), "%s\n", endpoint);
        if (write(d->o.ready_fd, line, (size_t)n) != n) {
            roll_log(ROLL_LOG_WARNING, "--ready-fd %d cannot be written: %s", d->o.ready_fd, strerror(errno));
        }
        close(d->o.ready_fd);
    }
    for (unsigned i = 0; i < d->o.listens && d->together && (d->root || d->relay); i++) {
        const char *bound = d->root ? roll_root_endpoint(d->root, i) : roll_relay_endpoint(d->relay, i);
        snprintf(d->together->endpoint[i], sizeof(d->together->endpoint[i]), "%s", bound);
    }
    return 0;
}

static int run(struct daemon *d)
{
    const struct roll_options *o = &d->o;
    bool finding = false;
    int code = take_locks(d);
    if (code || (o->mode != ROLL_MODE_ROOT && o->mode != ROLL_MODE_RELAY && d->agent_lock < 0)) {
        return code;
    }
    code = load_keys(d);
    if (!code && o->mode == ROLL_MODE_AGENT && o->trace) { /* before it says that it is ready */
        char reason[sizeof(d->why) - 16];
        if (roll_segment_dir(o->trace, reason, sizeof(reason)) != 0) {
            snprintf(d->why, sizeof(d->why), "--trace %s", reason);
            code = EXIT_CANNOT;
        }
    }
    if (!code && !(d->context = zmq_ctx_new())) {
        code = fail(d, "cannot make a ZeroMQ context");
    }
    if (!code && o->mode == ROLL_MODE_RELAY) {
        code = make_relay(d);
    } else if (!code && o->mode != ROLL_MODE_AGENT) {
        code = make_root(d);
    }
    if (code) {
        return code;
    }
    bool standalone = o->mode == ROLL_MODE_STANDALONE;
    d->agent = (struct roll_agent_options){
        .context = d->context,
        .dir = o->dir,
        .endpoint = standalone ? INPROC : o->connect,
        .keys = d->have_client_keys ? &d->client_keys : NULL,
        .policy = o->policy,
        .linger_s = standalone ? 0 : o->linger_s,
        .parent = o->parent,
        .with_root = standalone,
        .trace_dir = standalone ? NULL : o->trace, /* in standalone mode the root keeps the trace */
        .trace_segment = o->trace_segment,
        .trace_limit = o->trace_limit,
        .trace_age_ns = o->trace_age_ns,
        .stop = standalone ? &d->agent_stop : &stop};
    if (standalone) {
        code = start_agent_thread(d);
    }
    if (!code) {
        code = announce(d);
    }
    if (code) {
        return code;
    }
    roll_place_ready(0, o->dir, mode_name(d));
    roll_supervise_ready(d->together);
    d->stood = true;
    if (d->root) {
        finding = roll_root_run(d->root);
    } else if (d->relay) {
        roll_relay_run(d->relay);
    } else {
        char why[256] = "";
        d->agent_err = roll_agent_run(&d->agent, why, sizeof(why));
        snprintf(d->why, sizeof(d->why), "%s", why[0] || !d->agent_err ? why : roll_strerror(d->agent_err));
    }
    if (d->agent_err) {
        return EXIT_CANNOT;
    }
    return finding ? 1 : 0;
}

static void take_down(struct daemon *d)
{
    roll_log_tick(true);
    if (d->threaded) {
        atomic_store(&d->agent_stop, true);
        pthread_join(d->thread, NULL);
    }
    roll_root_destroy(&d->root);
    roll_relay_destroy(&d->relay);
    roll_expected_destroy(&d->expected); /* the engines of the root borrow it */
    roll_curve_zap_destroy(&d->zap);
    if (d->context) {
        zmq_ctx_term(d->context);
    }
    explicit_bzero(&d->server_keys, sizeof(d->server_keys));
    explicit_bzero(&d->client_keys, sizeof(d->client_keys));
    bool ours = d->agent_lock >= 0 || d->root_lock >= 0;
    roll_place_leave_root(d->o.dir, &d->root_lock);
    roll_agent_unlock(d->o.dir, &d->agent_lock);
    if (d->o.detach && ours) {
        roll_place_log_done(d->o.dir, mode_name(d));
    }
    if (d->o.own_dir && ours && d->stood) { /* else whoever started this goes on without, and removes what it made */
        roll_place_remove(d->o.dir);
    }
}

/* Before this process goes to the background, so that whoever started it is told. */
static bool read_expected(struct daemon *d)
{
    char why[256], line[PATH_MAX + 300];
    if (roll_expected_read(d->o.expect, &d->expected, why, sizeof(why)) != 0) {
        snprintf(line, sizeof(line), "--expect %s%s", d->o.expect, why);
        complain(d, line);
        return false;
    }
    return true;
}

/* Who started this for one job, and waits to hear that it is ready, hears for which option it ends instead: it is
 * started again without, and the reason is told once. */
static void tell_option(const struct daemon *d)
{
    if (d->o.parent > 0 && d->o.ready_fd >= 0 && !d->stood && strncmp(d->why, "--", 2) == 0) {
        (void)dprintf(d->o.ready_fd, "without %.*s\n", (int)strcspn(d->why, " "), d->why);
    }
}

/* In the supervisor of a daemon in the background, whose lines go where its worker's go. */
static void to_log(void *argument)
{
    struct daemon *d = argument;
    if (d->o.detach) {
        roll_place_to_log(d->o.dir, mode_name(d));
    }
}

/* What a worker that is not the first one takes over: the addresses that its predecessor had bound, and that nobody
 * waits for it any more. */
static void take_over(struct daemon *d)
{
    for (unsigned i = 0; i < d->o.listens; i++) {
        if (d->together->endpoint[i][0]) {
            d->o.listen[i] = d->together->endpoint[i];
        }
    }
    if (d->together->ready) {
        d->o.ready_fd = -1;
        roll_place_was_ready();
    }
}

int main(int argc, char **argv)
{
    struct daemon d = {.agent_lock = -1, .root_lock = -1};
    if (argc == 3 && strcmp(argv[1], "--stack") == 0) { /* not for people: an agent starts this to look at its ranks */
        return roll_stack_helper(argv[2]);
    }
    if (argc == 3 &&
        strcmp(argv[1], "--facts") == 0) { /* not for people: an agent starts this to ask what its node knows */
        return roll_facts_helper(argv[2]);
    }
    roll_memory_begin();
    int code = roll_options_parse(argc, argv, &d.o);
    if (code >= 0) {
        return code;
    }
    roll_log_init(d.o.own_dir);
    set_up_process();
    if (d.o.dir[0] && roll_place_dir(d.o.dir, sizeof(d.o.dir), d.why, sizeof(d.why)) != 0) {
        complain(&d, d.why);
        return EXIT_CANNOT;
    }
    if (d.o.expect && !read_expected(&d)) {
        return EXIT_CANNOT;
    }
    if (d.o.detach && roll_place_detach(d.o.ready_fd) != 0) {
        snprintf(d.why, sizeof(d.why), "cannot go to the background: %s", strerror(errno));
        complain(&d, d.why);
        return EXIT_CANNOT;
    }
    if (!d.o.no_supervise && d.o.parent == 0) {
        code = roll_supervise(mode_name(&d), to_log, &d, &d.together);
        if (code >= 0) {
            roll_expected_destroy(&d.expected);
            return code;
        }
        if (d.together && d.together->deaths > 0) {
            take_over(&d);
        }
    }
    code = run(&d);
    if (code == EXIT_CANNOT || code == EXIT_USAGE) {
        complain(&d, d.why[0] ? d.why : roll_memory_failures() > 0 ? "there is no memory" : "it cannot go on");
        tell_option(&d);
    }
    if (d.o.detach) {
        roll_place_ready(code, d.o.dir,
                         mode_name(&d)); /* tells the parent of a failure; without effect once the daemon was ready */
    }
    take_down(&d);
    return code;
}
