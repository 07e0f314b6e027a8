/*
 * metrics.c: serves the exposition, and the page, with libmicrohttpd, from one thread of its own.
 *
 * Who sends or reads slowly gives its place to who comes after (seats.h). Scrapes are rare and small, so one polling
 * thread that answers one request at a time is enough; a thread per connection was rejected: a port scanner could make
 * as many as it likes.
 */
#include "daemon/http/metrics.h"
#include "daemon/http/listen.h"
#include "daemon/http/page_state.h"
#include "daemon/http/seats.h"
#include "trace/err.h"

#include <errno.h>
#include <microhttpd.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct roll_metrics {
    struct MHD_Daemon *daemon;
    roll_metrics_fill *fill;
    void *arg;
    roll_page_t *page; /* NULL = none; borrowed */
    struct roll_seats seats;
};

static const char plain_text[] = "text/plain; charset=utf-8";
static const char metrics_text[] = "text/plain; version=0.0.4; charset=utf-8";
static const char openmetrics_text[] = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/* Sends `body`, which it takes (malloc'ed). */
static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *type, char *body,
                              size_t bytes)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(bytes, body, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(body);
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result answer_line(struct MHD_Connection *connection, unsigned status, const char *line)
{
    char *body = strdup(line);
    return body != NULL ? answer(connection, status, plain_text, body, strlen(body)) : MHD_NO;
}

static enum MHD_Result answer_metrics(struct roll_metrics *metrics, struct MHD_Connection *connection)
{
    const char *accept = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT);
    bool openmetrics = accept != NULL && strstr(accept, "application/openmetrics-text") != NULL;
    struct roll_metrics_snapshot snapshot = {0};
    metrics->fill(metrics->arg, &snapshot);
    char *body = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&body, &bytes);
    if (out == NULL) {
        return MHD_NO;
    }
    int err = roll_metrics_write(out, &snapshot, openmetrics);
    if (fclose(out) != 0 || err < 0) {
        free(body);
        return MHD_NO;
    }
    return answer(connection, MHD_HTTP_OK, openmetrics ? openmetrics_text : metrics_text, body, bytes);
}

static int descriptor_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info != NULL ? info->connect_fd : -1;
}

/* A connection comes or goes. */
static void note_connection(void *arg, struct MHD_Connection *connection, void **context,
                            enum MHD_ConnectionNotificationCode code)
{
    struct roll_metrics *metrics = arg;
    int fd = descriptor_of(connection);
    (void)context;
    if (fd >= 0) {
        (code == MHD_CONNECTION_NOTIFY_STARTED ? roll_seats_take : roll_seats_leave)(&metrics->seats, fd);
    }
}

static int seen; /* its address marks a request whose headers have come */

/* A listener has a place among listeners: it does not give it to who comes after. */
static enum MHD_Result show_page(struct roll_metrics *metrics, struct MHD_Connection *connection, const char *url,
                                 const char *method, void **state)
{
    void *of_page = *state == &seen ? NULL : *state;
    bool listens;
    enum MHD_Result result = roll_page_handle(metrics->page, connection, url, method, &of_page, &listens);
    *state = of_page ? of_page : &seen;
    if (listens) {
        roll_seats_leave(&metrics->seats, descriptor_of(connection));
    }
    return result;
}

static void note_end(void *arg, struct MHD_Connection *connection, void **state, enum MHD_RequestTerminationCode code)
{
    struct roll_metrics *metrics = arg;
    (void)connection, (void)code;
    if (*state != NULL && *state != &seen) {
        roll_page_ask_over(metrics->page, *state);
    }
    *state = NULL;
}

static enum MHD_Result handle(void *arg, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *upload, size_t *upload_bytes, void **state)
{
    struct roll_metrics *metrics = arg;
    (void)version, (void)upload;
    if (*state == NULL) { /* the first call for a request has the headers only */
        *state = &seen;
        return MHD_YES;
    }
    if (*upload_bytes != 0) { /* a request's body is dropped piece by piece; the answer follows its end */
        *upload_bytes = 0;
        return MHD_YES;
    }
    roll_seats_answered(&metrics->seats, descriptor_of(connection));
    if (!roll_listen_host_is_loopback(MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST))) {
        return answer_line(connection, MHD_HTTP_FORBIDDEN,
                           "forbidden: the Host header must name the loopback address\n");
    }
    bool posts = strcmp(method, MHD_HTTP_METHOD_POST) == 0;
    bool reads = strcmp(method, MHD_HTTP_METHOD_GET) == 0 || strcmp(method, MHD_HTTP_METHOD_HEAD) == 0;
    if (reads && strcmp(url, "/metrics") == 0) {
        return answer_metrics(metrics, connection);
    }
    if (reads && strcmp(url, "/healthz") == 0) {
        return answer_line(connection, MHD_HTTP_OK, "ok\n");
    }
    if ((reads || posts) && metrics->page != NULL && roll_page_has(url)) {
        return show_page(metrics, connection, url, method, state);
    }
    return answer_line(connection, MHD_HTTP_NOT_FOUND,
                       metrics->page != NULL
                           ? "not found: the page is at /, and there are /metrics and /healthz; `rollcall page` says "
                             "the page's password\n"
                           : "not found: there are /metrics and /healthz\n");
}

static struct MHD_Daemon *start(struct roll_metrics *metrics, const struct sockaddr_storage *address)
{
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO | MHD_ALLOW_SUSPEND_RESUME;
    flags |= address->ss_family == AF_INET6 ? MHD_USE_IPv6 : 0;
    /* Signals are blocked here: the daemon's own threads take them. */
    sigset_t all;
    sigset_t old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    errno = 0;
    struct MHD_Daemon *daemon =
        MHD_start_daemon(flags, 0, NULL, NULL, handle, metrics, MHD_OPTION_SOCK_ADDR, address,
                         MHD_OPTION_CONNECTION_LIMIT, ROLL_SEATS_MOST, MHD_OPTION_CONNECTION_TIMEOUT, 5u,
                         MHD_OPTION_NOTIFY_CONNECTION, note_connection, metrics, MHD_OPTION_NOTIFY_COMPLETED, note_end,
                         metrics, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)32768, MHD_OPTION_END);
    int number = errno;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    errno = number;
    return daemon;
}

int roll_metrics_new(const char *listen, roll_metrics_fill *fill, void *arg, roll_page_t *page, roll_metrics_t **out)
{
    *out = NULL;
    struct sockaddr_storage address;
    int err = roll_listen_parse(listen, &address);
    if (err < 0) {
        return err;
    }
    struct roll_metrics *metrics = calloc(1, sizeof(*metrics));
    if (metrics == NULL) {
        return ROLL_E_NOMEM;
    }
    metrics->fill = fill;
    metrics->arg = arg;
    metrics->page = page;
    roll_seats_init(&metrics->seats);
    metrics->daemon = start(metrics, &address);
    if (metrics->daemon == NULL) {
        err = errno == EADDRINUSE ? ROLL_E_BUSY : errno == EACCES ? ROLL_E_DENIED : ROLL_E_IO;
        free(metrics);
        return err;
    }
    *out = metrics;
    return ROLL_OK;
}

void roll_metrics_destroy(roll_metrics_t **metrics)
{
    if (*metrics != NULL) {
        if ((*metrics)->page != NULL) {
            roll_page_end((*metrics)->page);
        }
        MHD_stop_daemon((*metrics)->daemon);
        free(*metrics);
        *metrics = NULL;
    }
}

unsigned roll_metrics_port(const roll_metrics_t *metrics)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(metrics->daemon, MHD_DAEMON_INFO_BIND_PORT);
    return info != NULL ? info->port : 0;
}
