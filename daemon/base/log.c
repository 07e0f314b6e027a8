/*
 * log.c: log lines, each one write(2), so that lines of several threads and processes do not mix. syslog was rejected:
 * the person who starts a job looks at its standard error.
 *
 * Each line says when it was written, to the millisecond and in UTC, as RFC 3339 has it: lines of several nodes, and of
 * a log file that several runs of a daemon have written to, are otherwise in no order.
 *
 * The whole line is cleaned, and not each name that goes into one: so no caller can forget it.
 */
#include "daemon/base/log.h"

#include "daemon/base/clock.h"
#include "daemon/base/file.h"
#include "daemon/base/memory.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 1024
#define TAIL_BYTES 16384 /* of lines that are kept for roll_log_tail */
#define KINDS      64    /* that are counted at a time; of more, the one that came longest ago is forgotten */

static _Atomic int log_level = ROLL_LOG_INFO;
static _Atomic unsigned log_troubles;

struct kind {
    uint64_t key; /* 0 = free */
    uint64_t begin_ns, last_ns;
    uint64_t lines, most; /* that came; that are written */
    char last[160];       /* of what was left out */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Two tables, so that many texts, or many names, do not push out the count of what they have in common. */
static struct kind by_text[KINDS], by_format[KINDS];
static char tail[TAIL_BYTES]; /* the newest lines, end to end */
static size_t tail_used;

void roll_log_init(bool quiet)
{
    const char *env = getenv("ROLLCALL_QUIET");
    atomic_store(&log_level, quiet || (env && strcmp(env, "1") == 0) ? ROLL_LOG_WARNING : ROLL_LOG_INFO);
}

unsigned roll_log_troubles(void)
{
    return atomic_load(&log_troubles);
}

/* text */

/* How many bytes at `s` are one character that may be shown: 0 = none. C1 controls, which some terminals obey, are
 * none.
 */
static size_t shown(const unsigned char *s)
{
    if (s[0] < 0x80) {
        return s[0] >= 0x20 && s[0] != 0x7f;
    }
    size_t n = s[0] >= 0xc2 && s[0] <= 0xdf ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : s[0] >= 0xf0 && s[0] <= 0xf4 ? 4 : 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    bool control = n == 2 && s[0] == 0xc2 && s[1] < 0xa0;
    bool overlong = (n == 3 && s[0] == 0xe0 && s[1] < 0xa0) || (n == 4 && s[0] == 0xf0 && s[1] < 0x90);
    bool turns = n == 3 && s[0] == 0xe2 &&
                 ((s[1] == 0x80 && s[2] >= 0xa8 && s[2] <= 0xae) ||
                  (s[1] == 0x81 && s[2] >= 0xa6 && s[2] <= 0xa9)); /* line ends, direction */
    return control || overlong || turns ? 0 : n;
}

void roll_log_clean(const char *text, char *out, size_t size)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t used = 0;
    while (*s && used + 5 < size) {
        size_t n = shown(s);
        if (n > 0) {
            memcpy(out + used, s, n);
        } else {
            snprintf(out + used, 5, "\\x%02x", *s);
        }
        used += n ? n : 4;
        s += n ? n : 1;
    }
    out[used] = '\0';
}

/* Keeps a line; the oldest make room. Under the lock. */
static void keep_line(const char *line, size_t bytes)
{
    while (bytes <= TAIL_BYTES && tail_used + bytes > TAIL_BYTES) {
        const char *end = memchr(tail, '\n', tail_used);
        size_t gone = end ? (size_t)(end - tail) + 1 : tail_used;
        memmove(tail, tail + gone, tail_used - gone);
        tail_used -= gone;
    }
    if (bytes <= TAIL_BYTES) {
        memcpy(tail + tail_used, line, bytes);
        tail_used += bytes;
    }
}

void roll_log_tail(char *out, size_t size)
{
    size_t from = 0;
    pthread_mutex_lock(&lock);
    while (tail_used - from >= size) { /* whole lines */
        const char *end = memchr(tail + from, '\n', tail_used - from);
        from = end ? (size_t)(end - tail) + 1 : tail_used;
    }
    memcpy(out, tail + from, tail_used - from);
    out[tail_used - from] = '\0';
    pthread_mutex_unlock(&lock);
}

static void write_line(const char *text, bool shown)
{
    char line[LINE_BYTES + 64], date[24] = "?";
    uint64_t now = roll_real_ns();
    time_t seconds = (time_t)(now / 1000000000u);
    struct tm tm;
    if (gmtime_r(&seconds, &tm) != NULL) {
        strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm);
    }
    int n = snprintf(line, sizeof(line), "rollcalld: %s.%03uZ %s\n", date, (unsigned)(now / 1000000u % 1000u), text);
    keep_line(line, (size_t)n);
    if (shown) {
        (void)roll_write_all(STDERR_FILENO, line,
                             (size_t)n); /* where it cannot be written is no other place to say so */
    }
}

/* kinds */

static uint64_t hash(const void *data, size_t bytes)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (const unsigned char *p = data; bytes > 0; bytes--) {
        h = (h ^ *p++) * 0x100000001b3u;
    }
    return h ? h : 1;
}

/* Tells what was left out of a kind, and frees it. */
static void finish(struct kind *k)
{
    if (k->lines > k->most) {
        char text[LINE_BYTES];
        snprintf(text, sizeof(text), "%llu more like this one: %s", (unsigned long long)(k->lines - k->most), k->last);
        write_line(text, true);
    }
    k->key = 0;
}

static struct kind *kind_of(struct kind *kinds, uint64_t key, uint64_t most, uint64_t now)
{
    struct kind *oldest = &kinds[0], *unused = NULL;
    for (size_t i = 0; i < KINDS; i++) {
        struct kind *k = &kinds[i];
        if (k->key && now - k->begin_ns >= ROLL_LOG_KIND_NS) {
            finish(k);
        }
        if (k->key == key) {
            k->last_ns = now;
            return k;
        }
        unused = k->key == 0 ? k : unused;
        oldest = k->last_ns < oldest->last_ns ? k : oldest;
    }
    if (!unused) {
        if (kinds == by_format) { /* many texts, or names, must not be as many lines */
            finish(oldest);
        }
        unused = oldest;
    }
    *unused = (struct kind){.key = key, .begin_ns = now, .last_ns = now, .most = most};
    return unused;
}

/* What has no memory says less, or nothing, and goes on: that this has happened must not stay unsaid. */
static void say_memory(void)
{
    static _Atomic uint64_t told;
    uint64_t failures = roll_memory_failures();
    if (atomic_exchange(&told, failures) != failures) {
        roll_log(ROLL_LOG_WARNING, "there was no memory (%llu times so far): something may be missing in what is told",
                 (unsigned long long)failures);
    }
}

void roll_log_tick(bool all)
{
    uint64_t now = roll_mono_ns();
    say_memory();
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < 2 * KINDS; i++) {
        struct kind *k = i < KINDS ? &by_text[i] : &by_format[i - KINDS];
        if (k->key && (all || now - k->begin_ns >= ROLL_LOG_KIND_NS)) {
            finish(k);
        }
    }
    pthread_mutex_unlock(&lock);
}

/* Counts a line of this kind. Whether it is written; else it is kept as the last of those that are not. */
static bool admit(struct kind *kinds, uint64_t key, uint64_t most, const char *text)
{
    struct kind *k = kind_of(kinds, key, most, roll_mono_ns());
    bool written = ++k->lines <= k->most;
    if (!written) {
        snprintf(k->last, sizeof(k->last), "%.*s", (int)sizeof(k->last) - 1, text);
    }
    return written;
}

static void log_line(enum roll_log_level level, const char *whom, const char *format, va_list args)
{
    if (level <= ROLL_LOG_WARNING) {
        atomic_fetch_add(&log_troubles, 1);
    }
    bool is_shown = (int)level <= atomic_load(&log_level);
    char line[LINE_BYTES], text[LINE_BYTES];
    vsnprintf(line, sizeof(line), format, args);
    roll_log_clean(line, text, sizeof(text));
    bool news = level > ROLL_LOG_WARNING;
    uint64_t form = hash(&format, sizeof(format)), same = whom ? form * 31 ^ hash(whom, strlen(whom)) : 0;
    same = news && !whom ? hash(text, strlen(text)) : same;
    pthread_mutex_lock(&lock);
    /* What is not shown is kept for a bundle, and is of no kind. */
    if (!is_shown || ((same == 0 || admit(by_text, same, whom ? 1 : ROLL_LOG_KIND_LINES, text)) &&
                      admit(by_format, form, news ? ROLL_LOG_NEWS_LINES : ROLL_LOG_KIND_LINES, text))) {
        write_line(text, is_shown);
    }
    pthread_mutex_unlock(&lock);
}

void roll_log(enum roll_log_level level, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_line(level, NULL, format, args);
    va_end(args);
}

void roll_log_about(enum roll_log_level level, const char *whom, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_line(level, whom, format, args);
    va_end(args);
}
