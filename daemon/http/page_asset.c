/*
 * page_asset.c: the files of the page, which the assembler puts into the program as they are.
 *
 * The installed folder could be read instead. But then a daemon could not find it, or find that of another release, and
 * who may write there could have a script run in the browser of everybody who looks.
 */
#include "daemon/http/page_state.h"

#include <string.h>

#define ROLL_PAGE_ASSET_ROW(name, path, type)                                                                          \
    __asm__(".pushsection .rodata\n"                                                                                   \
            ".hidden roll_page_asset_" #name "\n"                                                                      \
            ".globl roll_page_asset_" #name "\n"                                                                       \
            "roll_page_asset_" #name ":\n"                                                                             \
            ".incbin \"" ROLL_PAGE_FOLDER "/" path "\"\n"                                                              \
            ".hidden roll_page_asset_end_" #name "\n"                                                                  \
            ".globl roll_page_asset_end_" #name "\n"                                                                   \
            "roll_page_asset_end_" #name ":\n"                                                                         \
            ".byte 0\n"                                                                                                \
            ".popsection\n");                                                                                          \
    extern char roll_page_asset_##name[], roll_page_asset_end_##name[];
#include "daemon/http/page_asset.def"
#undef ROLL_PAGE_ASSET_ROW

static const struct asset {
    const char *path, *type;
    char *begin; /* constant; libmicrohttpd takes what it does not change without saying so */
    const char *end;
} assets[] = {
#define ROLL_PAGE_ASSET_ROW(name, path, type) {path, type, roll_page_asset_##name, roll_page_asset_end_##name},
#include "daemon/http/page_asset.def"
#undef ROLL_PAGE_ASSET_ROW
};

static const struct asset *find(const char *url)
{
    if (strcmp(url, "/") == 0) {
        return &assets[0];
    }
    for (size_t i = 0; i < sizeof(assets) / sizeof(assets[0]); i++) {
        if (url[0] == '/' && strcmp(url + 1, assets[i].path) == 0) {
            return &assets[i];
        }
    }
    return NULL;
}

bool roll_page_has_asset(const char *url)
{
    return find(url) != NULL;
}

enum MHD_Result roll_page_send_asset(struct MHD_Connection *connection, const char *url)
{
    const struct asset *a = find(url);
    return a == NULL ? MHD_NO
                     : roll_page_send(connection, MHD_HTTP_OK, a->type,
                                      MHD_create_response_from_buffer((size_t)(a->end - a->begin), a->begin,
                                                                      MHD_RESPMEM_PERSISTENT));
}
