/*
 * start.c: starts and ends recording. See record/session.h.
 *
 * Relies on: the ring file is complete when it appears (trace/ring.h); the page that holds the session is wiped in
 * forked children (MADV_WIPEONFORK), so that even a child made by a bare clone() never writes into its parent's ring;
 * pthread_atfork does the same where the kernel cannot, and replaces the mappings by private memory, so that a call
 * that was being recorded when the process forked ends harmlessly in the child. Comparing a cached pid at each call
 * was rejected: getpid is a system call.
 */
#include "interposer/cuda/completion.h"
#include "interposer/failfast/failfast.h"
#include "interposer/record/clock.h"
#include "interposer/record/pydump.h"
#include "interposer/record/pysite.h"
#include "interposer/record/session.h"
#include "interposer/record/thread.h"
#include "interposer/wrap/names.h"
#include "trace/compare.h"
#include "trace/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIR_BYTES  3072u
#define PATH_BYTES 4096u
#define DEFS_BYTES (512u * 1024u)

static bool tried;

/* The ring directory: made when absent, refused when another user owns it or others may look into it. */
static int open_directory(char *dir, size_t size)
{
    const char *wanted = getenv("ROLLCALL_DIR");
    if (wanted != NULL && wanted[0] != '\0') {
        if (strlen(wanted) >= size) {
            roll_say("ROLLCALL_DIR is longer than %zu bytes", size - 1);
            return ROLL_E_SIZE;
        }
        if (wanted[0] != '/' && getcwd(dir, size) != NULL && strlen(dir) + strlen(wanted) + 2 <= size) {
            strcat(dir, "/"); /* a relative path would mean another place for the agent, or when the job changes its
                                 directory */
            strcat(dir, wanted);
        } else {
            strcpy(dir, wanted);
        }
    } else {
        int rc = roll_default_dir(dir, size);
        if (rc != 0) {
            return rc;
        }
    }
    struct stat st;
    bool chosen = wanted != NULL && wanted[0] != '\0';
    if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
        roll_say("cannot make the directory %s: %s", dir, strerror(errno));
        return ROLL_E_IO;
    }
    /* The parent of the default directory is open to all users: another user may have put a link to a directory of this
     * user there. */
    if ((chosen ? stat(dir, &st) : lstat(dir, &st)) != 0) {
        roll_say("cannot look at the directory %s: %s", dir, strerror(errno));
        return ROLL_E_IO;
    }
    if (!S_ISDIR(st.st_mode)) {
        roll_say("%s is not a directory", dir);
        return ROLL_E_ARG;
    }
    if (st.st_uid != geteuid() || (st.st_mode & 077) != 0) {
        roll_say("the directory %s must belong to this user alone (chmod 0700)", dir);
        return ROLL_E_DENIED;
    }
    return 0;
}

static uint32_t ring_records(void)
{
    const char *at = getenv("ROLLCALL_RING_RECORDS");
    uint32_t records = 0;
    /* strtoul is avoided: newer headers rename it to a function that older systems lack. */
    for (; at != NULL && *at >= '0' && *at <= '9' && records <= ROLL_RING_MAX_RECORDS; at++) {
        records = records * 10 + (uint32_t)(*at - '0');
    }
    bool good = at != NULL && *at == '\0' && records >= ROLL_RING_MIN_RECORDS && records <= ROLL_RING_MAX_RECORDS;
    return good ? records : 0;
}

static const char *environment(const char *name)
{
    return getenv(name);
}

/* Whether some ranks of the job are stood in for (hostnccl): then nobody must wait for as many as the job believes in.
 */
static bool is_part(void)
{
    const char *set = getenv("HOSTNCCL_PRESENT");
    return set != NULL && set[0] != '\0';
}

/* The path is static, as is the directory: the thread that comes here first may have a very small stack. Under
 * roll_lock. */
static char path[PATH_BYTES];

static int make_ring(const char *dir, const struct roll_ident *ident, struct roll_ring *ring)
{
    int rc = roll_ring_path(path, sizeof(path), dir, ident, (uint32_t)getpid());
    if (rc == 0) {
        struct roll_ring_params params = {
            .capacity = ring_records(),
            .defs_bytes = DEFS_BYTES,
            .world_rank = ident->rank,
            .world_size = is_part() ? -1 : ident->size,
            .local_rank = ident->local_rank,
            .restart = ident->restart,
            .job = ident->job,
        };
        rc = roll_ring_create(path, &params, ring);
    }
    if (rc != 0) {
        roll_say("cannot make the ring of this rank in %s: %s", dir, roll_strerror(rc));
    }
    return rc;
}

static struct roll_control *open_control(const char *dir, const struct roll_ident *ident)
{
    struct roll_control *control = NULL;
    enum roll_policy policy = ROLL_POLICY_OBSERVE;
    const char *name = getenv("ROLLCALL_POLICY");
    if (name != NULL) {
        roll_policy_by_name(name, &policy);
    }
    int rc = roll_control_path(path, sizeof(path), dir, ident->job, ident->restart);
    if (rc == 0) {
        rc = roll_control_open(path, true, policy, &control);
    }
    if (rc != 0) {
        roll_say("cannot open the control page in %s: %s", dir, roll_strerror(rc));
        control = NULL;
    }
    return control;
}

/* Gives a forked child private memory in place of a mapping that it shares with its parent. */
static void drop_mapping(void *start, size_t bytes)
{
    if (start != NULL && bytes > 0) {
        mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    }
}

/* The mappings that a forked child must drop, kept outside the session page because that page is wiped in the child. */
static struct roll_ring parent_ring;
static struct roll_control *parent_control;
static struct roll_compare *parent_compare;

static void after_fork_in_child(void)
{
    int saved = errno;
    pthread_mutex_init(&roll_lock, NULL); /* its holder may have been another thread of the parent */
    atomic_store_explicit(&roll_session->state, ROLL_SESSION_NONE, memory_order_release);
    atomic_store_explicit(&roll_completion_mode, ROLL_COMPLETION_OFF, memory_order_relaxed);
    drop_mapping(parent_ring.header, parent_ring.bytes);
    drop_mapping(parent_control, parent_control != NULL ? ROLL_CONTROL_BYTES : 0);
    drop_mapping(parent_compare, parent_compare != NULL ? ROLL_COMPARE_BYTES : 0);
    errno = saved;
}

static void start_agent(const char *dir)
{
    const char *endpoint = getenv("ROLLCALL_DAEMON");
    if (endpoint == NULL || endpoint[0] == '\0') {
        return;
    }
    int rc = roll_agent_start(dir, endpoint);
    if (rc != 0) {
        roll_say("cannot start the agent rollcalld (set ROLLCALL_BIN to its path): %s", roll_strerror(rc));
    }
}

/* Starts recording. True when there is a ring; dir is then its directory. */
static bool start(char *dir)
{
    struct roll_ident ident;
    if (roll_env_true("ROLLCALL_DISABLE")) {
        return false;
    }
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    _Static_assert(sizeof(struct roll_session) <= 4096, "the session is one page");
    if (page == MAP_FAILED) {
        roll_say("no memory for recording");
        return false;
    }
    madvise(page, 4096, MADV_WIPEONFORK);
    struct roll_session *session = page;
    if (open_directory(dir, DIR_BYTES) != 0) {
        return false;
    }
    roll_ident_read(environment, &ident);
    if (make_ring(dir, &ident, &session->ring) != 0) {
        return false;
    }
    session->control = open_control(dir, &ident);
    session->compare = roll_failfast_start(dir, &ident);
    parent_ring = session->ring;
    parent_control = session->control;
    roll_completion_start(session->ring.header);
    parent_compare = session->compare;
    roll_clock_start();
    roll_pysite_start();
    __atomic_store_n(&roll_session, session, __ATOMIC_RELEASE);
    roll_step_begin(session);
    atomic_store_explicit(&session->state, ROLL_SESSION_ACTIVE, memory_order_release);
    return true;
}

void roll_session_start(void)
{
    static char dir[DIR_BYTES];
    static _Atomic bool watching;
    struct roll_thread *t = &roll_thread_self;
    if (!ROLL_RECORDING || roll_active() || t->depth != 0 || __atomic_load_n(&tried, __ATOMIC_ACQUIRE)) {
        return;
    }
    int saved = errno, cancel = PTHREAD_CANCEL_ENABLE;
    bool started = false;
    /* From here to the end neither a signal handler that calls NCCL nor a cancellation may come between: a handler
     * would wait for a lock that its own thread holds, a cancelled thread would leave the lock held. */
    t->depth = 1;
    t->busy = true;
    atomic_signal_fence(memory_order_seq_cst);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    if (!atomic_exchange(&watching, true)) {
        pthread_atfork(NULL, NULL, after_fork_in_child);
    }
    pthread_mutex_lock(&roll_lock);
    if (!tried) {
        started = start(dir);
        __atomic_store_n(&tried, true, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&roll_lock);
    if (started) {
        start_agent(dir); /* outside the lock: starting a program may take long */
        roll_pydump_start(dir);
        roll_ptracer_refresh(dir);
    }
    pthread_setcancelstate(cancel, NULL);
    atomic_signal_fence(memory_order_seq_cst);
    t->busy = false;
    t->depth = 0;
    errno = saved;
}

/* Runs at exit(): the ring says that the process has ended, so that nobody takes this end for a crash. The mapping
 * stays: other threads may still be running, and destructors that run after this one may still call NCCL. */
__attribute__((destructor)) static void finish(void)
{
    if (roll_active()) {
        struct roll_ring_header *header = roll_session->ring.header;
        atomic_store_explicit(&header->finish_ns, roll_clock_monotonic(), memory_order_relaxed);
        atomic_store_explicit(&header->state, ROLL_RING_FINISHED, memory_order_release);
        roll_pydump_end();
    }
}
