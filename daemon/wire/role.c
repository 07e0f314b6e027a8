/*
 * role.c: see role.h. Three roles, and not one right for each query: a list that nobody reads protects nobody.
 */
#include "daemon/wire/role.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    unsigned allowed;
} roles[] = {
    {"node", ROLL_DENY_REPORT},
    {"viewer", ROLL_DENY_ASK},
    {"operator", ROLL_DENY_ASK | ROLL_DENY_SWITCH},
};

static bool host_ok(const char *host)
{
    size_t n = strlen(host);
    return n > 0 && n < ROLL_NAME_BYTES &&
           strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") == n;
}

bool roll_role_read(const char *text, const char *host, struct roll_role *out)
{
    *out = (struct roll_role){.denied = ROLL_DENY_ALL};
    while (*text) {
        size_t n = strcspn(text, ","), i = 0;
        while (i < sizeof(roles) / sizeof(*roles) &&
               (strlen(roles[i].name) != n || strncmp(roles[i].name, text, n) != 0)) {
            i++;
        }
        if (i == sizeof(roles) / sizeof(*roles)) {
            return false;
        }
        out->denied &= ~roles[i].allowed;
        text += text[n] == ',' ? n + 1 : n;
    }
    if (host && !host_ok(host)) {
        return false;
    }
    snprintf(out->host, sizeof(out->host), "%s", host ? host : "");
    return out->denied != ROLL_DENY_ALL;
}

void roll_role_text(const struct roll_role *role, char out[ROLL_ROLE_TEXT_BYTES])
{
    snprintf(out, ROLL_ROLE_TEXT_BYTES, "%u %s", role->denied, role->host);
}

void roll_role_of_text(const char *text, struct roll_role *out)
{
    *out = (struct roll_role){.denied = ROLL_DENY_ALL};
    if (text && text[0] >= '0' && text[0] <= '7' && text[1] == ' ' && strlen(text + 2) < sizeof(out->host)) {
        out->denied = (unsigned)(text[0] - '0');
        strcpy(out->host, text + 2);
    }
}

void roll_role_of(zmq_msg_t *msg, struct roll_role *out)
{
    roll_role_of_text(zmq_msg_gets(msg, "User-Id"), out);
}
