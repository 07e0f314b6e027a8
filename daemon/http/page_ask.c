/*
 * page_ask.c: the questions of browsers, on their way to the thread that answers and back. Each waits at a place of its
 * own with its connection suspended, so the HTTP thread waits for nothing.
 */
#include "daemon/http/page_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct roll_page_wait *find(roll_page_t *page, const struct MHD_Connection *connection)
{
    for (unsigned i = 0; i < ROLL_PAGE_ASKS; i++) {
        if (page->wait[i].connection == connection) {
            return &page->wait[i];
        }
    }
    return NULL;
}

/* One argument of the address; MHD_NO where it does not fit: then the question is refused. */
static enum MHD_Result add_argument(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct roll_page_ask *ask = arg;
    (void)kind;
    if (value == NULL || strlen(name) >= ROLL_PAGE_TEXT_BYTES || strlen(value) >= ROLL_PAGE_TEXT_BYTES ||
        ask->args >= ROLL_PAGE_ARGS) {
        ask->args = ROLL_PAGE_ARGS + 1;
        return MHD_NO;
    }
    snprintf(ask->arg[ask->args].name, ROLL_PAGE_TEXT_BYTES, "%s", name);
    snprintf(ask->arg[ask->args].value, ROLL_PAGE_TEXT_BYTES, "%s", value);
    ask->args++;
    return MHD_YES;
}

static enum MHD_Result begin(roll_page_t *page, struct MHD_Connection *connection, const struct roll_page_ask *ask,
                             void **state)
{
    pthread_mutex_lock(&page->lock);
    struct roll_page_wait *w = page->ends ? NULL : find(page, NULL);
    if (w != NULL) {
        *w = (struct roll_page_wait){.connection = connection, .ask = *ask};
        w->ask.number = ++page->asked;
        *state = w;
        MHD_suspend_connection(connection);
    }
    pthread_mutex_unlock(&page->lock);
    if (w == NULL) {
        return roll_page_send_json(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                                   "{\"error\":\"too many questions at a time: ask again\"}");
    }
    roll_page_wake(page);
    return MHD_YES;
}

static enum MHD_Result finish(roll_page_t *page, struct MHD_Connection *connection, struct roll_page_wait *w)
{
    pthread_mutex_lock(&page->lock);
    char *text = w->text;
    unsigned status = w->status;
    w->text = NULL;
    pthread_mutex_unlock(&page->lock);
    if (text == NULL) {
        return roll_page_send_json(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "{\"error\":\"there is no answer\"}");
    }
    struct MHD_Response *response = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(text);
    }
    return roll_page_send(connection, status, "application/json", response);
}

enum MHD_Result roll_page_ask(roll_page_t *page, struct MHD_Connection *connection, const char *op, bool operates,
                              void **state)
{
    if (*state != NULL) {
        return finish(page, connection, *state);
    }
    struct roll_page_ask ask = {.operates = operates};
    MHD_get_connection_values(connection, MHD_GET_ARGUMENT_KIND, add_argument, &ask);
    if (ask.args > ROLL_PAGE_ARGS || strlen(op) >= sizeof(ask.op)) {
        return roll_page_send_json(connection, MHD_HTTP_BAD_REQUEST,
                                   "{\"error\":\"too many arguments, or one that is too long\"}");
    }
    snprintf(ask.op, sizeof(ask.op), "%s", op);
    return begin(page, connection, &ask, state);
}

void roll_page_ask_over(roll_page_t *page, struct roll_page_wait *wait)
{
    pthread_mutex_lock(&page->lock);
    free(wait->text);
    *wait = (struct roll_page_wait){.connection = NULL};
    pthread_mutex_unlock(&page->lock);
}

bool roll_page_take(roll_page_t *page, struct roll_page_ask *out)
{
    uint64_t unused;
    (void)!read(page->fd, &unused, sizeof(unused)); /* before the look: what comes meanwhile wakes again */
    pthread_mutex_lock(&page->lock);
    struct roll_page_wait *oldest = NULL;
    for (unsigned i = 0; i < ROLL_PAGE_ASKS; i++) {
        struct roll_page_wait *w = &page->wait[i];
        if (w->connection != NULL && !w->taken && (oldest == NULL || w->ask.number < oldest->ask.number)) {
            oldest = w;
        }
    }
    if (oldest != NULL) {
        oldest->taken = true;
        *out = oldest->ask;
    }
    pthread_mutex_unlock(&page->lock);
    return oldest != NULL;
}

void roll_page_answer(roll_page_t *page, uint64_t number, unsigned status, char *text)
{
    pthread_mutex_lock(&page->lock);
    for (unsigned i = 0; i < ROLL_PAGE_ASKS; i++) {
        struct roll_page_wait *w = &page->wait[i];
        if (w->connection != NULL && w->ask.number == number && !w->answered) {
            w->answered = true;
            w->status = status;
            w->text = text;
            text = NULL;
            MHD_resume_connection(w->connection);
        }
    }
    pthread_mutex_unlock(&page->lock);
    free(text);
}
