/*
 * page_send.c: how the page's answers are sent: what a browser may do with them stands in the headers of each.
 *
 * No script and no style comes from a page's text (Content-Security-Policy), no other site shows or reads the page.
 */
#include "daemon/http/page_state.h"

#include <string.h>

static const char *const headers[][2] = {
    {MHD_HTTP_HEADER_CACHE_CONTROL, "no-store"},
    {"X-Content-Type-Options", "nosniff"},
    {"Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
                                "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
                                "require-trusted-types-for 'script'; trusted-types 'none'"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Referrer-Policy", "no-referrer"},
};

enum MHD_Result roll_page_send(struct MHD_Connection *connection, unsigned status, const char *type,
                               struct MHD_Response *response)
{
    if (response == NULL) {
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        MHD_add_response_header(response, headers[i][0], headers[i][1]);
    }
    enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

enum MHD_Result roll_page_send_json(struct MHD_Connection *connection, unsigned status, const char *json)
{
    union {
        const char *constant;
        void *bytes;
    } body = {json};
    return roll_page_send(connection, status, "application/json",
                          MHD_create_response_from_buffer(strlen(json), body.bytes, MHD_RESPMEM_MUST_COPY));
}
