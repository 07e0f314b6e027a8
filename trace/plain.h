/*
 * plain.h: characters of texts from outside that must not reach a terminal: control characters, and those of Unicode
 * that show as nothing and change what stands around them (writing from right to left, zero width). With them a name
 * could look like another one, or a whole line be shown in another order. Pure.
 */
#ifndef ROLL_TRACE_PLAIN_H
#define ROLL_TRACE_PLAIN_H

#include <stddef.h>
#include <stdint.h>

/*
 * How many bytes the character at the beginning of this text takes, if it must not be shown; 0: it may. Bytes that are
 * no UTF-8 are left to who shows them. In UTF-8 this is: C0 controls and DEL; C1 (U+0080 to U+009F); U+00AD; U+061C;
 * U+180E; U+200B to U+200F; U+2028 to U+202E; U+2060 to U+206F; U+FEFF; U+FFF9 to U+FFFB; U+E0000 to U+E007F.
 */
static inline size_t roll_plain_odd(const char *text, size_t bytes)
{
    const unsigned char *c = (const unsigned char *)text;
    if (bytes == 0) {
        return 0;
    }
    if (c[0] < 0x80) {
        return c[0] < 0x20 || c[0] == 0x7f;
    }
    if (bytes >= 2 && c[0] == 0xc2 && (c[1] < 0xa0 || c[1] == 0xad)) {
        return 2;
    }
    if (bytes >= 2 && c[0] == 0xd8 && c[1] == 0x9c) {
        return 2;
    }
    if (bytes >= 3 && c[0] >= 0xe1 && c[0] <= 0xef) {
        uint32_t point = (uint32_t)(c[0] & 0x0f) << 12 | (uint32_t)(c[1] & 0x3f) << 6 | (c[2] & 0x3fu);
        return (point >= 0x200b && point <= 0x200f) || (point >= 0x2028 && point <= 0x202e) ||
                       (point >= 0x2060 && point <= 0x206f) || point == 0x180e || point == 0xfeff ||
                       (point >= 0xfff9 && point <= 0xfffb)
                   ? 3
                   : 0;
    }
    return bytes >= 4 && c[0] == 0xf3 && c[1] == 0xa0 && (c[2] == 0x80 || c[2] == 0x81) ? 4 : 0;
}

#endif
