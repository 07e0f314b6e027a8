/*
 * doors.c: see doors.h. libzmq takes connections by accept4(2) alone, and a function of that name in the program comes
 * before that of libc (counted.c has the same for recv): so who comes is known before the first byte is read. By the
 * monitor of the socket it is known some ms later, in which a handshake, a name and a message have been and gone.
 * The page's library takes its connections by accept4 too, and leaves none: which sockets are libzmq's is known by
 * listen(2), which zmq_bind calls in its own thread.
 *
 * Rejected: to close what libzmq has forgotten, because it closes it once more at its end, when the number is
 * another one's; no handover, because a second connection with a name that is taken is then never read, so an agent
 * would be lost that comes back before its end was noticed, and 9 KiB stay of each all the same; its own heartbeats,
 * which would end such a connection (net.c says what they do else).
 */
#include "daemon/wire/doors.h"

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/wire/counted.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KEYS     1024u /* addresses that are told apart */
#define SHARED   KEYS  /* the place of those that come when each of these holds something */
#define DOOR     (KEYS + 1)
#define AGAIN_NS (60000 * ROLL_MS)
#define LOOK_NS  (1000 * ROLL_MS) /* who comes again and again is not to cost a look each time */
#define PAUSE_MS 1
#define PREFIX_6 8 /* bytes of an IPv6 address that say whose it is: what follows everybody chooses for himself */

/* Who is at the other end, as far as he cannot choose it: an address, or a user of this host. These are compared
 * themselves: a hash of them would put one address into another's place, and who has many would find such a one. */
struct who {
    sa_family_t family; /* AF_UNSPEC: nobody */
    uint64_t bits;
    char text[INET6_ADDRSTRLEN + 16];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    ino_t inode;
    unsigned place;       /* of who came; DOOR: it listens */
} here[ROLL_COUNTED_FDS]; /* what was accepted on this descriptor last; it may have been closed since */
static int top;           /* behind the highest of them */
static struct place {
    sa_family_t family; /* AF_UNSPEC: it is free */
    uint64_t bits;
    unsigned come;      /* connections since they were looked at, and those that were there then */
    unsigned look_at;   /* so many: they are looked at again */
    unsigned left;      /* so many had stayed then */
    bool kept_out;      /* which was too many */
    uint64_t look_ns;   /* before that they are not looked at again */
    uint64_t let_in_ns; /* when one was let in all the same; 0: never */
} places[KEYS + 1];
static uint64_t clear_ns; /* before that no free place is looked for again */
static struct {
    unsigned count, left;
    bool kept_out;
    char text[sizeof(((struct who *)0)->text)];
} turned_away; /* and were not told */
static struct {
    unsigned lost;               /* connections that could not be taken, */
    int error, wanted;           /* why not the last one; and why others have to wait, 0: they do not */
} not_taken;                     /* and were not told */
static _Thread_local bool watch; /* what this thread listens on */

static bool find_out(int fd, struct who *out)
{
    struct sockaddr_storage at = {.ss_family = AF_UNSPEC};
    struct ucred user;
    socklen_t size = sizeof(at);
    memset(out, 0, sizeof(*out));
    if (getpeername(fd, (struct sockaddr *)&at, &size) != 0) {
        return false; /* it has gone: libzmq closes it at once */
    }
    if (at.ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)&at;
        out->family = AF_INET;
        out->bits = v4->sin_addr.s_addr;
        return inet_ntop(AF_INET, &v4->sin_addr, out->text, sizeof(out->text)) != NULL;
    }
    if (at.ss_family == AF_INET6) {
        const struct in6_addr *v6 = &((const struct sockaddr_in6 *)&at)->sin6_addr;
        bool mapped = IN6_IS_ADDR_V4MAPPED(v6);
        out->family = mapped ? AF_INET : AF_INET6;
        memcpy(&out->bits, v6->s6_addr + (mapped ? 12 : 0), mapped ? sizeof(struct in_addr) : PREFIX_6);
        return inet_ntop(out->family, mapped ? v6->s6_addr + 12 : v6->s6_addr, out->text, sizeof(out->text)) != NULL;
    }
    size = sizeof(user);
    if (at.ss_family != AF_UNIX || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &size) != 0) {
        return false;
    }
    out->family = AF_UNIX;
    out->bits = user.uid;
    snprintf(out->text, sizeof(out->text), "user %u", (unsigned)user.uid);
    return true;
}

static unsigned most(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur / ROLL_DOORS_SHARE > ROLL_DOORS_LEFT) {
        return ROLL_DOORS_LEFT;
    }
    return (unsigned)files.rlim_cur / ROLL_DOORS_SHARE;
}

/* The other end of this connection has gone, and libzmq has not closed ours. It does so in a moment, as a rule: it is
 * the thread that reads its end that asks here. */
static bool has_gone(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0;
}

/* Whether what was noted of this descriptor is still there; forgets it else. Under the lock. */
static bool is_here(int fd)
{
    struct stat st;
    if (here[fd].inode != 0 && (fstat(fd, &st) != 0 || st.st_ino != here[fd].inode)) {
        here[fd].inode = 0;
    }
    return here[fd].inode != 0;
}

/* Counts the connections of this place that have stayed behind their ends; *held: all of it that are there. Under the
 * lock. */
static unsigned count_left(unsigned place, unsigned *held)
{
    unsigned left = 0;
    *held = 0;
    for (int fd = 0; fd < top; fd++) {
        if (here[fd].place == place && is_here(fd)) {
            (*held)++;
            left += has_gone(fd);
        }
    }
    return left;
}

/* Frees the places that hold no connection: of those nothing has stayed, and nothing is forgotten with them. Under the
 * lock. */
static void clear_places(void)
{
    bool holds[KEYS] = {false};
    for (int fd = 0; fd < top; fd++) {
        if (here[fd].place < KEYS && is_here(fd)) {
            holds[here[fd].place] = true;
        }
    }
    for (unsigned i = 0; i < KEYS; i++) {
        places[i].family = holds[i] ? places[i].family : AF_UNSPEC;
    }
}

static unsigned find_place(sa_family_t family, uint64_t bits)
{
    unsigned i = 0;
    while (i < KEYS && (places[i].family != family || (family != AF_UNSPEC && places[i].bits != bits))) {
        i++;
    }
    return i;
}

/* The place of this one: its own, a new one, or SHARED. Under the lock. */
static unsigned place_of(const struct who *who, uint64_t now)
{
    unsigned i = find_place(who->family, who->bits);
    if (i < KEYS) {
        return i;
    }
    i = find_place(AF_UNSPEC, 0);
    if (i == KEYS && now >= clear_ns) {
        clear_ns = now + LOOK_NS;
        clear_places();
        i = find_place(AF_UNSPEC, 0);
    }
    if (i < KEYS) {
        places[i] = (struct place){.family = who->family, .bits = who->bits};
    }
    return i;
}

/* Whether one more may come in to this place. Connections are looked at only where as many have come as could have
 * stayed, so an address with thousands that live costs each newcomer little; where that is few, once a second, and who
 * comes sooner has to come again. Under the lock. */
static bool may_come(unsigned place, uint64_t now)
{
    struct place *p = &places[place];
    unsigned limit = most(), held;
    if (!p->kept_out && (p->come + 1 < limit || p->come + 1 < p->look_at)) {
        p->come++;
        return true;
    }
    if (now < p->look_ns) {
        return false;
    }
    p->left = count_left(place, &held);
    p->kept_out = p->left >= limit;
    p->come = held + 1;
    p->look_at = p->kept_out ? 0 : held + limit - p->left;
    p->look_ns = p->left < limit / 2 ? 0 : now + LOOK_NS;
    if (!p->kept_out) {
        return true;
    }
    if (p->let_in_ns != 0 && now - p->let_in_ns < AGAIN_NS) {
        return false;
    }
    p->let_in_ns = now;
    return true;
}

/* Under the lock. */
static void note(int fd, unsigned place)
{
    struct stat st;
    if (fd >= 0 && fd < ROLL_COUNTED_FDS && fstat(fd, &st) == 0) {
        here[fd].inode = st.st_ino;
        here[fd].place = place;
        top = fd >= top ? fd + 1 : top;
    }
}

/* Under the lock. */
static void note_turned_away(const struct who *who, unsigned place)
{
    turned_away.count++;
    turned_away.left = places[place].left;
    turned_away.kept_out = places[place].kept_out;
    memcpy(turned_away.text, who->text, sizeof(who->text));
    if (place == SHARED) {
        snprintf(turned_away.text, sizeof(turned_away.text), "who comes behind %u addresses", KEYS);
    }
}

void roll_doors_watch(bool on)
{
    watch = on;
}

__attribute__((visibility("default"))) int listen(int fd, int backlog)
{
    if (watch) {
        pthread_mutex_lock(&lock);
        note(fd, DOOR);
        pthread_mutex_unlock(&lock);
    }
    return (int)syscall(SYS_listen, fd, backlog);
}

/* Of one connection, of the network behind it, or of a firewall: the next one may come in (accept(2)). Others are
 * mistakes of the program. */
static bool is_of_connection(int error)
{
    static const int known[] = {ECONNABORTED, EPROTO,          EPERM,           EACCES,       ENETDOWN,
                                ENETUNREACH,  ENONET,          EHOSTDOWN,       EHOSTUNREACH, ENOPROTOOPT,
                                EOPNOTSUPP,   ESOCKTNOSUPPORT, EPROTONOSUPPORT, ETIMEDOUT,    ECONNRESET};
    bool is = false;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        is = is || error == known[i];
    }
    return is;
}

/* For want of a descriptor, or of memory: who comes waits at the door, and is tried again at once. */
static bool is_want(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

/*
 * libzmq ends the process by an assertion where accept4 fails with another error than it expects: in 4.3.4 of a
 * firewall's EPERM, say, and at a socket file also where there is no descriptor left. Each kind of listener bears that
 * a connection has gone by itself, so that is what it is told of an error after which the next one may come in. It
 * tries again at once, and is held for a moment, because the same thread serves all that are connected.
 */
static int failed(int listener, int error)
{
    bool wants = is_want(error), ours = wants || is_of_connection(error);
    pthread_mutex_lock(&lock);
    ours = ours && listener >= 0 && listener < ROLL_COUNTED_FDS && here[listener].place == DOOR && is_here(listener);
    if (ours && wants) {
        not_taken.wanted = error;
    } else if (ours) {
        not_taken.lost++;
        not_taken.error = error;
    }
    pthread_mutex_unlock(&lock);
    if (ours) {
        (void)poll(NULL, 0, PAUSE_MS);
    }
    return ours ? ECONNABORTED : error;
}

__attribute__((visibility("default"))) int accept4(int listener, struct sockaddr *from, socklen_t *size, int flags)
{
    struct who who;
    int fd = (int)syscall(SYS_accept4, listener, from, size, flags);
    if (fd < 0) {
        errno = failed(listener, errno);
        return fd;
    }
    if (listener >= ROLL_COUNTED_FDS) {
        return fd;
    }
    bool comes = true;
    pthread_mutex_lock(&lock);
    if (here[listener].place == DOOR && is_here(listener) && find_out(fd, &who)) {
        uint64_t now = roll_mono_ns();
        unsigned place = place_of(&who, now);
        comes = may_come(place, now);
        if (comes) {
            note(fd, place);
        } else {
            note_turned_away(&who, place);
        }
    }
    pthread_mutex_unlock(&lock);
    if (!comes) {
        close(fd);
        errno = ECONNABORTED; /* as if it had gone by itself, which every server has to bear */
        return -1;
    }
    return fd;
}

static void tell_not_taken(const char *role, int wanted, unsigned lost, int error)
{
    if (wanted) {
        roll_log_about(ROLL_LOG_WARNING, "want at the door", "%s: who comes is not let in, and waits: %s%s", role,
                       strerror(wanted), wanted == EMFILE ? " (ulimit -n says how many)" : "");
    }
    if (lost > 0) {
        roll_log_about(ROLL_LOG_WARNING, "lost at the door", "%s: %u connection%s could not be taken; the last one: %s",
                       role, lost, lost == 1 ? "" : "s", strerror(error));
    }
}

unsigned roll_doors_tell(const char *role)
{
    pthread_mutex_lock(&lock);
    __typeof__(turned_away) told = turned_away;
    __typeof__(not_taken) untaken = not_taken;
    turned_away.count = 0;
    memset(&not_taken, 0, sizeof(not_taken));
    pthread_mutex_unlock(&lock);
    tell_not_taken(role, untaken.wanted, untaken.lost, untaken.error);
    if (told.count > 0) {
        roll_log_about(ROLL_LOG_WARNING, told.kept_out ? told.text : "with pauses",
                       "%s: %s is let in %s: %u of its connections have ended and cannot be closed, "
                       "because another one came under their names (a restart of the %s frees them)",
                       role, told.text, told.kept_out ? "once a minute only" : "with pauses", told.left, role);
    }
    return told.count + untaken.lost;
}
