/*
 * page_login.c: who asks, by the browser's own Digest authentication (RFC 7616, SHA-256).
 *
 * Any local user reaches a port of the loopback interface, and may listen on ours while the root is away. With Digest
 * the password is never sent, so who listens there is told nothing that opens the page. A token in the link and a
 * cookie were rejected: browsers send a cookie to every port of a host.
 */
#include "daemon/http/page_state.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static const char realm[] = "rollcall";

static uint64_t now_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec;
}

static const char *password_of(const roll_page_t *page, const char *user, enum roll_page_who *who)
{
    *who = strcmp(user, "viewer") == 0     ? ROLL_PAGE_VIEWER
           : strcmp(user, "operator") == 0 ? ROLL_PAGE_OPERATOR
                                           : ROLL_PAGE_NOBODY;
    return *who == ROLL_PAGE_VIEWER ? page->viewer : page->operator_;
}

/* The answer is for this address; what stands behind a question mark is not compared. */
static bool is_for(const struct roll_auth *auth, const char *url)
{
    size_t n = strlen(url);
    return strncmp(auth->uri, url, n) == 0 && (auth->uri[n] == '\0' || auth->uri[n] == '?');
}

enum roll_page_who roll_page_login(const roll_page_t *page, struct MHD_Connection *connection, const char *method,
                                   const char *url, bool *stale)
{
    const char *header = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    struct roll_auth auth;
    enum roll_page_who who;
    *stale = false;
    if (header == NULL || !roll_auth_read(header, &auth) || strcmp(auth.realm, realm) != 0 || !is_for(&auth, url)) {
        return ROLL_PAGE_NOBODY;
    }
    const char *password = password_of(page, auth.username, &who);
    if (who == ROLL_PAGE_NOBODY || !roll_auth_matches(&auth, method, password)) {
        return ROLL_PAGE_NOBODY;
    }
    *stale = !roll_auth_nonce_is_ours(&page->nonces, now_s(), auth.nonce);
    return *stale ? ROLL_PAGE_NOBODY : who;
}

/* stale: the password was right, and the nonce is too old or of another process: the browser asks nobody again. */
enum MHD_Result roll_page_send_login(const roll_page_t *page, struct MHD_Connection *connection, bool stale)
{
    static char text[] = "rollcall page prints the user and the password of this page\n";
    char nonce[ROLL_AUTH_NONCE_BYTES], challenge[256];
    roll_auth_nonce(&page->nonces, now_s(), nonce);
    snprintf(challenge, sizeof(challenge), "Digest realm=\"%s\", qop=\"auth\", algorithm=SHA-256, nonce=\"%s\"%s",
             realm, nonce, stale ? ", stale=true" : "");
    struct MHD_Response *response = MHD_create_response_from_buffer(sizeof(text) - 1, text, MHD_RESPMEM_PERSISTENT);
    if (response != NULL) {
        MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, challenge);
    }
    return roll_page_send(connection, MHD_HTTP_UNAUTHORIZED, "text/plain; charset=utf-8", response);
}
