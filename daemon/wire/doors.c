/*
 * doors.c: see doors.h. libzmq takes connections by accept4(2) alone, and a function of that name in the program comes
 * before that of libc (counted.c has the same for recv): so who comes is known before the first byte is read. By the
 * monitor of the socket it is known some ms later, in which a handshake, a name and a message have been and gone.
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
#include "trace/ident.h"

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

#define GROUPS   1024u /* in which addresses are counted, by a hash */
#define AGAIN_NS (60000 * ROLL_MS)
#define LOOK_NS  (1000 * ROLL_MS) /* who is kept out asks again and again, and is not to cost a look each time */
#define PREFIX_6 8 /* bytes of an IPv6 address that say whose it is: what follows everybody chooses for himself */

/* Who is at the other end, as far as he cannot choose it: an address, or a user of this host. */
struct who {
    uint64_t key;
    char text[INET6_ADDRSTRLEN + 16];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    ino_t inode;
    uint64_t key;
} here[ROLL_COUNTED_FDS]; /* what was accepted on this descriptor last; it may have been closed since */
static int top;           /* behind the highest of them */
static struct {
    unsigned come;      /* connections since all of the group were looked at, and those that were there then */
    unsigned look_at;   /* so many: they are looked at again */
    uint64_t kept_out;  /* the key of which too many had stayed; 0: of none */
    uint64_t look_ns;   /* until then that is not asked again */
    uint64_t let_in_ns; /* when one was let in all the same; 0: never */
} group[GROUPS];
static struct {
    unsigned count;
    char text[sizeof(((struct who *)0)->text)];
} turned_away; /* and were not told */

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
        out->key = roll_hash64(AF_INET, &v4->sin_addr, sizeof(v4->sin_addr));
        return inet_ntop(AF_INET, &v4->sin_addr, out->text, sizeof(out->text)) != NULL;
    }
    if (at.ss_family == AF_INET6) {
        const struct in6_addr *v6 = &((const struct sockaddr_in6 *)&at)->sin6_addr;
        bool mapped = IN6_IS_ADDR_V4MAPPED(v6);
        out->key = mapped ? roll_hash64(AF_INET, v6->s6_addr + 12, 4) : roll_hash64(AF_INET6, v6, PREFIX_6);
        return inet_ntop(mapped ? AF_INET : AF_INET6, mapped ? v6->s6_addr + 12 : v6->s6_addr, out->text,
                         sizeof(out->text)) != NULL;
    }
    size = sizeof(user);
    if (at.ss_family != AF_UNIX || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &size) != 0) {
        return false;
    }
    out->key = roll_hash64(AF_UNIX, &user.uid, sizeof(user.uid));
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

/* Counts the connections of this address that have stayed behind their ends; *held: all of its group that are there.
 * Under the lock. */
static unsigned count_left(uint64_t key, unsigned *held)
{
    unsigned left = 0;
    *held = 0;
    for (int fd = 0; fd < top; fd++) {
        struct stat st;
        if (here[fd].inode == 0 || here[fd].key % GROUPS != key % GROUPS) {
            continue;
        }
        if (fstat(fd, &st) != 0 || st.st_ino != here[fd].inode) {
            here[fd].inode = 0;
            continue;
        }
        (*held)++;
        left += here[fd].key == key && has_gone(fd);
    }
    return left;
}

/* Whether this one may come in. Connections are looked at only where as many have come as could have stayed, so an
 * address with thousands that live costs each newcomer little. Under the lock. */
static bool may_come(uint64_t key, uint64_t now)
{
    size_t at = key % GROUPS;
    unsigned limit = most(), held;
    if (group[at].kept_out == key && now < group[at].look_ns) {
        return false;
    }
    group[at].come++;
    if (group[at].kept_out != key && (group[at].come < limit || group[at].come < group[at].look_at)) {
        return true;
    }
    unsigned left = count_left(key, &held);
    group[at].come = held + 1;
    group[at].look_at = left < limit ? held + limit - left : 0;
    group[at].kept_out = left < limit ? 0 : key;
    group[at].look_ns = now + LOOK_NS;
    if (left < limit) {
        return true;
    }
    if (group[at].let_in_ns != 0 && now - group[at].let_in_ns < AGAIN_NS) {
        return false;
    }
    group[at].let_in_ns = now;
    return true;
}

static void note(int fd, const struct who *who)
{
    struct stat st;
    if (fd < ROLL_COUNTED_FDS && fstat(fd, &st) == 0) {
        here[fd].inode = st.st_ino;
        here[fd].key = who->key;
        top = fd >= top ? fd + 1 : top;
    }
}

__attribute__((visibility("default"))) int accept4(int listener, struct sockaddr *from, socklen_t *size, int flags)
{
    struct who who;
    int fd = (int)syscall(SYS_accept4, listener, from, size, flags);
    if (fd < 0 || !find_out(fd, &who)) {
        return fd;
    }
    pthread_mutex_lock(&lock);
    bool comes = may_come(who.key, roll_mono_ns());
    if (comes) {
        note(fd, &who);
    } else {
        turned_away.count++;
        memcpy(turned_away.text, who.text, sizeof(who.text));
    }
    pthread_mutex_unlock(&lock);
    if (!comes) {
        close(fd);
        errno = ECONNABORTED; /* as if it had gone by itself, which every server has to bear */
        return -1;
    }
    return fd;
}

unsigned roll_doors_tell(const char *role)
{
    char text[sizeof(turned_away.text)];
    pthread_mutex_lock(&lock);
    unsigned count = turned_away.count;
    turned_away.count = 0;
    memcpy(text, turned_away.text, sizeof(text));
    pthread_mutex_unlock(&lock);
    if (count > 0) {
        roll_log_about(ROLL_LOG_WARNING, text,
                       "%s: %s is let in once a minute only: %u of its connections have ended and cannot be closed, "
                       "because another one came under their names (a restart of the %s frees them)",
                       role, text, most(), role);
    }
    return count;
}
