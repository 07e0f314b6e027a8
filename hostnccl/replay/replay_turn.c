/*
 * replay_turn.c: whose turn it is. Each host thread of the rank is a thread here, and they enter their calls in the
 * order in which they entered them; a call that was over before another one began is over before it begins. So threads
 * that raced, race as they did, and one that is inside a call keeps nobody from calling.
 *
 * Between two calls the rank waits as long as it did, but 20 ms at most, unless ROLL_REPLAY_PACED is set: a hang does
 * not depend on it, and nobody wants to wait for a day.
 */
#include "hostnccl/replay/replay.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define THREADS    256u
#define GAP_NS     UINT64_C(20000000)
#define SHORT_NS   UINT64_C(100000) /* not worth sleeping for */
#define SECOND_NS  UINT64_C(1000000000)
#define LEAVING_US 200000 /* for a call to be entered from which its process ended */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t next;      /* the ticket that is to be entered */
    uint64_t before_ns; /* when the last one was over, as recorded; 0 = there was none */
    struct actor actor[THREADS];
    unsigned actors;
    bool paced;
    void (*make)(struct actor *, uint64_t ticket);
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};

/* The first ticket from `t` on of which there is a record. */
static uint64_t from(const struct rank *r, uint64_t t)
{
    while (t < r->head.calls && r->rec[t].seal == 0) {
        t++;
    }
    return t;
}

/* Whether somebody is inside a call that was over when this one was entered. */
static bool has_to_wait(uint64_t enter_ns)
{
    bool wait = false;
    for (unsigned i = 0; i < all.actors; i++) {
        const struct actor *a = &all.actor[i];
        wait = wait || (a->inside && a->returns && a->until_ns <= enter_ns);
    }
    return wait;
}

static void rest(const struct rank *r, const struct roll_record *rec)
{
    uint64_t since = all.before_ns != 0 ? all.before_ns : r->head.begin_ns;
    uint64_t ns = rec->enter_ns > since ? rec->enter_ns - since : 0;
    ns = ns > GAP_NS && !all.paced ? GAP_NS : ns;
    const struct timespec pause = {.tv_sec = (time_t)(ns / SECOND_NS), .tv_nsec = (long)(ns % SECOND_NS)};
    if (ns > SHORT_NS) {
        nanosleep(&pause, NULL);
    }
}

static void *act(void *ctx)
{
    struct actor *a = ctx;
    struct rank *r = a->rank;
    const char *local = getenv("LOCAL_RANK");
    int devices = 0;
    cuda(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    cuda(cudaSetDevice(devices > 0 && local != NULL ? atoi(local) % devices : 0), "cudaSetDevice");
    for (uint64_t t = from(r, 0); t < r->head.calls; t = from(r, t + 1)) {
        const struct roll_record *rec = &r->rec[t];
        if (rec->thread != a->thread) {
            continue;
        }
        pthread_mutex_lock(&all.lock);
        while (all.next != t || has_to_wait(rec->enter_ns)) {
            pthread_cond_wait(&all.moved, &all.lock);
        }
        pthread_mutex_unlock(&all.lock);
        if (a->group == 0) {
            rest(r, rec); /* nobody else can call, because it is this one's turn */
        }
        pthread_mutex_lock(&all.lock);
        a->inside = true;
        a->returns = roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED;
        a->until_ns = rec->enter_ns + rec->call_ns;
        all.before_ns = a->returns ? a->until_ns : rec->enter_ns;
        all.next = from(r, t + 1);
        pthread_cond_broadcast(&all.moved);
        pthread_mutex_unlock(&all.lock);
        all.make(a, t);
        pthread_mutex_lock(&all.lock);
        a->inside = false;
        pthread_cond_broadcast(&all.moved);
        pthread_mutex_unlock(&all.lock);
    }
    return NULL;
}

static void find_actors(struct rank *r)
{
    for (uint64_t t = from(r, 0); t < r->head.calls; t = from(r, t + 1)) {
        unsigned i = 0;
        while (i < all.actors && all.actor[i].thread != r->rec[t].thread) {
            i++;
        }
        if (i == THREADS) {
            stop(r->dir, "a rank has more than 256 threads");
        }
        if (i == all.actors) {
            all.actor[all.actors++] = (struct actor){.rank = r, .thread = r->rec[t].thread};
        }
    }
}

void make_all(struct rank *r, void (*make)(struct actor *, uint64_t ticket))
{
    const char *set = getenv("ROLL_REPLAY_PACED");
    bool waits = true, stuck = false;
    all.paced = set != NULL && strcmp(set, "1") == 0;
    all.make = make;
    all.next = from(r, 0);
    find_actors(r);
    for (unsigned i = 0; i < all.actors; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, act, &all.actor[i]) != 0 || pthread_detach(thread) != 0) {
            stop(r->dir, "no thread could be started");
        }
    }
    pthread_mutex_lock(&all.lock);
    while (waits) {
        waits = all.next < r->head.calls;
        stuck = false;
        for (unsigned i = 0; i < all.actors; i++) {
            waits = waits || (all.actor[i].inside && all.actor[i].returns);
            stuck = stuck || all.actor[i].inside;
        }
        if (waits) {
            pthread_cond_wait(&all.moved, &all.lock);
        }
    }
    pthread_mutex_unlock(&all.lock);
    if (stuck && r->head.fate != ROLL_REPLAY_STAYS) {
        usleep(LEAVING_US);
    }
}
