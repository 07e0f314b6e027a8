/*
 * page_login.c: who asks, by the browser's own Digest authentication (RFC 7616, SHA-256).
 *
 * Any local user reaches a port of the loopback interface, and may listen on ours while the root is away. With Digest
 * the password is never sent, so who listens there is told nothing that opens the page. A token in the link and a
 * cookie were rejected: browsers send a cookie to every port of a host.
 */
#include "daemon/http/page_state.h"

#include <stdlib.h>
#include <string.h>

#define NONCE_SECONDS 300u

static const char realm[] = "rollcall";

enum roll_page_who roll_page_login(const roll_page_t *page, struct MHD_Connection *connection, bool *stale)
{
    char *name = MHD_digest_auth_get_username(connection);
    enum roll_page_who who = name == NULL                    ? ROLL_PAGE_NOBODY
                             : strcmp(name, "viewer") == 0   ? ROLL_PAGE_VIEWER
                             : strcmp(name, "operator") == 0 ? ROLL_PAGE_OPERATOR
                                                             : ROLL_PAGE_NOBODY;
    int checked = MHD_NO;
    if (who != ROLL_PAGE_NOBODY) {
        checked =
            MHD_digest_auth_check2(connection, realm, name, who == ROLL_PAGE_VIEWER ? page->viewer : page->operator_,
                                   NONCE_SECONDS, MHD_DIGEST_ALG_SHA256);
    }
    free(name);
    *stale = checked == MHD_INVALID_NONCE;
    return checked == MHD_YES ? who : ROLL_PAGE_NOBODY;
}

enum MHD_Result roll_page_send_login(struct MHD_Connection *connection, bool stale)
{
    static char text[] = "rollcall page prints the user and the password of this page\n";
    struct MHD_Response *response = MHD_create_response_from_buffer(sizeof(text) - 1, text, MHD_RESPMEM_PERSISTENT);
    if (response == NULL) {
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "text/plain; charset=utf-8");
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    enum MHD_Result result = MHD_queue_auth_fail_response2(connection, realm, "rollcall", response,
                                                           stale ? MHD_YES : MHD_NO, MHD_DIGEST_ALG_SHA256);
    MHD_destroy_response(response);
    return result;
}
