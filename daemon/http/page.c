/*
 * page.c: see page.h: what there is under which address, and who may have it.
 *
 * Everything of the page needs a password, the files included: one rule is easier kept than two. What changes something
 * is asked by POST, by the operator, and from the page itself (Origin): a browser adds what it knows of passwords to
 * the requests of every other site as well.
 */
#include "daemon/http/page_state.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static const char ask_url[] = "/api/ask/";
static const char who_url[] = "/api/ask/who";
static const char listen_url[] = "/api/listen";

int roll_page_new(const char *viewer, const char *operator_, roll_page_t **out)
{
    *out = NULL;
    roll_page_t *page = calloc(1, sizeof(*page));
    if (page == NULL) {
        return ROLL_E_NOMEM;
    }
    page->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (page->fd < 0 || roll_auth_init(&page->nonces) < 0) {
        if (page->fd >= 0) {
            close(page->fd);
        }
        free(page);
        return ROLL_E_IO;
    }
    page->viewer = viewer;
    page->operator_ = operator_;
    pthread_mutex_init(&page->lock, NULL);
    *out = page;
    return ROLL_OK;
}

void roll_page_destroy(roll_page_t **pointer)
{
    roll_page_t *page = *pointer;
    if (page == NULL) {
        return;
    }
    for (unsigned i = 0; i < ROLL_PAGE_ASKS; i++) {
        free(page->wait[i].text);
    }
    for (unsigned i = 0; i < ROLL_PAGE_TOPICS; i++) {
        for (unsigned k = 0; k < ROLL_PAGE_PARTS; k++) {
            roll_page_drop(page->topic[i].part[k].text);
        }
    }
    close(page->fd);
    pthread_mutex_destroy(&page->lock);
    free(page);
    *pointer = NULL;
}

int roll_page_fd(const roll_page_t *page)
{
    return page->fd;
}

bool roll_page_has(const char *url)
{
    return roll_page_has_asset(url) || strncmp(url, ask_url, sizeof(ask_url) - 1) == 0 || strcmp(url, listen_url) == 0;
}

/* Whether the page itself asks: its address is the one that the request was sent to. */
static bool is_of_the_page(struct MHD_Connection *connection)
{
    const char *origin = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ORIGIN);
    const char *host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
    return origin != NULL && host != NULL && strncmp(origin, "http://", 7) == 0 && strcmp(origin + 7, host) == 0;
}

enum MHD_Result roll_page_handle(roll_page_t *page, struct MHD_Connection *connection, const char *url,
                                 const char *method, void **state, bool *listens)
{
    bool stale = false, posts = strcmp(method, MHD_HTTP_METHOD_POST) == 0;
    *listens = false;
    if (*state != NULL) { /* an answer has come, of a question that was let in */
        return roll_page_ask(page, connection, "", posts, state);
    }
    enum roll_page_who who = roll_page_login(page, connection, method, url, &stale);
    if (who == ROLL_PAGE_NOBODY) {
        return roll_page_send_login(page, connection, stale);
    }
    bool asks = strncmp(url, ask_url, sizeof(ask_url) - 1) == 0;
    if (posts && (!asks || who != ROLL_PAGE_OPERATOR || !is_of_the_page(connection))) {
        return roll_page_send_json(connection, MHD_HTTP_FORBIDDEN,
                                   "{\"error\":\"only the operator switches, on the page itself: come as the user "
                                   "operator, with the password of rollcall page --operator\"}");
    }
    if (strcmp(url, who_url) == 0) {
        return roll_page_send_json(connection, MHD_HTTP_OK,
                                   who == ROLL_PAGE_OPERATOR ? "{\"user\":\"operator\"}" : "{\"user\":\"viewer\"}");
    }
    if (asks) {
        return roll_page_ask(page, connection, url + sizeof(ask_url) - 1, posts, state);
    }
    if (strcmp(url, listen_url) == 0) {
        *listens = true;
        return roll_page_listen(page, connection);
    }
    return roll_page_send_asset(connection, url);
}

void roll_page_end(roll_page_t *page)
{
    pthread_mutex_lock(&page->lock);
    page->ends = true;
    for (unsigned i = 0; i < ROLL_PAGE_ASKS; i++) {
        struct roll_page_wait *w = &page->wait[i];
        if (w->connection != NULL && !w->answered) {
            w->answered = true;
            MHD_resume_connection(w->connection);
        }
    }
    for (unsigned i = 0; i < ROLL_PAGE_LISTENERS; i++) {
        struct roll_page_listener *l = &page->listener[i];
        if (l->connection != NULL && l->suspended) {
            l->suspended = false;
            MHD_resume_connection(l->connection);
        }
    }
    pthread_mutex_unlock(&page->lock);
}
