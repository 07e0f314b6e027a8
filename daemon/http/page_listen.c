/*
 * page_listen.c: pages that are told what happens (server-sent events).
 *
 * A listener is sent one whole text after the other, each the newest of its part when its turn comes: what it was too
 * slow for is left out and not kept, so all listeners together hold a few texts, however they read. Where one takes
 * nothing for LET_GO_S, it is let go. A queue for each was rejected: it has to be bounded, and then loses news at its
 * end, the newest.
 */
#include "daemon/http/page_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define LET_GO_S   10u
#define BLOCK      8192u
#define SEND_BYTES (64 * 1024) /* of the kernel's buffer, which counts as read by nobody */

static const char *const names[ROLL_PAGE_PARTS] = {
    [ROLL_PAGE_STATUS] = "status",     [ROLL_PAGE_PLACES] = "places", [ROLL_PAGE_FIELD] = "field",
    [ROLL_PAGE_FINDINGS] = "findings", [ROLL_PAGE_WAITS] = "waits",
};

/* What a page is told in which order: places before the field that relies on them, and the status when all is there. */
static const enum roll_page_part order[ROLL_PAGE_PARTS] = {ROLL_PAGE_PLACES, ROLL_PAGE_FIELD, ROLL_PAGE_FINDINGS,
                                                           ROLL_PAGE_WAITS, ROLL_PAGE_STATUS};

/* The next text that the listener lacks begins. False: it lacks none. */
static bool next_text(roll_page_t *page, struct roll_page_listener *l)
{
    for (unsigned i = 0; i < ROLL_PAGE_PARTS; i++) {
        enum roll_page_part k = order[i];
        if (page->topic[l->topic].part[k].version > l->seen[k]) {
            l->seen[k] = page->topic[l->topic].part[k].version;
            l->text = page->topic[l->topic].part[k].text;
            l->text->refs++;
            l->sent = 0;
            return true;
        }
    }
    return false;
}

static ssize_t send_more(void *arg, uint64_t position, char *buffer, size_t room)
{
    struct roll_page_listener *l = arg;
    roll_page_t *page = l->page;
    ssize_t n = MHD_CONTENT_READER_END_OF_STREAM;
    (void)position;
    pthread_mutex_lock(&page->lock);
    if (!page->ends && l->text == NULL && !next_text(page, l)) {
        l->suspended = true;
        MHD_suspend_connection(l->connection);
        n = 0;
    } else if (!page->ends) {
        size_t left = l->text->bytes - l->sent;
        n = (ssize_t)(left < room ? left : room);
        memcpy(buffer, l->text->at + l->sent, (size_t)n);
        l->sent += (size_t)n;
        if (l->sent == l->text->bytes) {
            roll_page_drop(l->text);
            l->text = NULL;
        }
    }
    pthread_mutex_unlock(&page->lock);
    return n;
}

/* A topic without listeners is forgotten: nobody makes texts for it any more. */
static void leave_topic(roll_page_t *page, unsigned topic)
{
    if (--page->topic[topic].listeners > 0) {
        return;
    }
    for (unsigned k = 0; k < ROLL_PAGE_PARTS; k++) {
        roll_page_drop(page->topic[topic].part[k].text);
    }
    memset(&page->topic[topic], 0, sizeof(page->topic[topic]));
}

static void gone(void *arg)
{
    struct roll_page_listener *l = arg;
    roll_page_t *page = l->page;
    pthread_mutex_lock(&page->lock);
    roll_page_drop(l->text);
    leave_topic(page, l->topic);
    *l = (struct roll_page_listener){.connection = NULL};
    pthread_mutex_unlock(&page->lock);
}

/* The topic of this run, made where it is none yet; ROLL_PAGE_TOPICS: there are too many. */
static unsigned topic_of(roll_page_t *page, const char *job, int64_t restart)
{
    unsigned unused = ROLL_PAGE_TOPICS;
    for (unsigned i = 0; i < ROLL_PAGE_TOPICS; i++) {
        const struct roll_page_topic *t = &page->topic[i].is;
        if (page->topic[i].listeners > 0 && t->restart == restart && strcmp(t->job, job) == 0) {
            return i;
        }
        unused = page->topic[i].listeners == 0 ? i : unused;
    }
    if (unused < ROLL_PAGE_TOPICS) {
        struct roll_page_topic *t = &page->topic[unused].is;
        *t = (struct roll_page_topic){.id = ++page->topics, .restart = restart, .fresh = true};
        snprintf(t->job, sizeof(t->job), "%s", job);
    }
    return unused;
}

/* A place for the listener; NULL: too many listen, as *why (an answer) says. */
static struct roll_page_listener *take_place(roll_page_t *page, struct MHD_Connection *connection, const char *job,
                                             int64_t restart, const char **why)
{
    *why = "{\"error\":\"too many pages listen: ask now and then instead\"}";
    for (unsigned i = 0; i < ROLL_PAGE_LISTENERS && !page->ends; i++) {
        struct roll_page_listener *l = &page->listener[i];
        if (l->connection == NULL) {
            unsigned topic = topic_of(page, job, restart);
            if (topic == ROLL_PAGE_TOPICS) {
                *why = "{\"error\":\"pages listen to too many other runs: ask now and then instead\"}";
                return NULL;
            }
            page->topic[topic].listeners++;
            *l = (struct roll_page_listener){.page = page, .connection = connection, .topic = topic};
            return l;
        }
    }
    return NULL;
}

enum MHD_Result roll_page_listen(roll_page_t *page, struct MHD_Connection *connection)
{
    const char *job = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "job");
    const char *restart = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "restart");
    if (job != NULL && strlen(job) >= ROLL_NAME_BYTES) {
        return roll_page_send_json(connection, MHD_HTTP_BAD_REQUEST, "{\"error\":\"no job has so long a name\"}");
    }
    const char *why;
    pthread_mutex_lock(&page->lock);
    struct roll_page_listener *l =
        take_place(page, connection, job ? job : "", restart ? strtoll(restart, NULL, 10) : ROLL_PAGE_NEWEST, &why);
    pthread_mutex_unlock(&page->lock);
    if (l == NULL) {
        return roll_page_send_json(connection, MHD_HTTP_SERVICE_UNAVAILABLE, why);
    }
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    int bytes = SEND_BYTES;
    if (info != NULL) {
        (void)setsockopt(info->connect_fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    }
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, LET_GO_S);
    struct MHD_Response *response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, send_more, l, gone);
    if (response == NULL) {
        gone(l);
        return MHD_NO;
    }
    roll_page_wake(page);
    return roll_page_send(connection, MHD_HTTP_OK, "text/event-stream", response);
}

bool roll_page_topic(roll_page_t *page, unsigned i, struct roll_page_topic *out)
{
    pthread_mutex_lock(&page->lock);
    bool listened = page->topic[i].listeners > 0;
    *out = page->topic[i].is;
    pthread_mutex_unlock(&page->lock);
    return listened;
}

static struct roll_page_text *event_of(enum roll_page_part part, const char *json)
{
    size_t room = strlen(json) + strlen(names[part]) + sizeof("event: \ndata: \n\n");
    struct roll_page_text *text = malloc(sizeof(*text) + room);
    if (text != NULL) {
        text->refs = 1;
        text->bytes = (size_t)snprintf(text->at, room, "event: %s\ndata: %s\n\n", names[part], json);
    }
    return text;
}

/* Puts a new text in the place of the old one, and wakes who waits for it. Takes text. */
static void replace(roll_page_t *page, unsigned topic, enum roll_page_part part, struct roll_page_text *text)
{
    roll_page_drop(page->topic[topic].part[part].text);
    page->topic[topic].is.fresh = false;
    page->topic[topic].part[part].text = text;
    page->topic[topic].part[part].version++;
    for (unsigned i = 0; i < ROLL_PAGE_LISTENERS; i++) {
        struct roll_page_listener *l = &page->listener[i];
        if (l->connection != NULL && l->topic == topic && l->suspended) {
            l->suspended = false;
            MHD_resume_connection(l->connection);
        }
    }
}

void roll_page_publish(roll_page_t *page, uint64_t id, enum roll_page_part part, const char *json)
{
    struct roll_page_text *text = event_of(part, json);
    if (text == NULL) {
        return; /* what was told before stands, and the next look makes it again */
    }
    pthread_mutex_lock(&page->lock);
    for (unsigned i = 0; i < ROLL_PAGE_TOPICS && text != NULL; i++) {
        const struct roll_page_text *old = page->topic[i].part[part].text;
        bool same = old != NULL && old->bytes == text->bytes && memcmp(old->at, text->at, text->bytes) == 0;
        if (page->topic[i].listeners > 0 && page->topic[i].is.id == id && !same) {
            replace(page, i, part, text);
            text = NULL;
        }
    }
    roll_page_drop(text);
    pthread_mutex_unlock(&page->lock);
}
