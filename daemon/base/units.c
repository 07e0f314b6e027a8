/*
 * units.c: see units.h.
 */
#include "daemon/base/units.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads a number; one letter behind the number scales it. */
static bool scaled(const char *text, const char *letters, const uint64_t *scale, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    const char *letter = *end ? strchr(letters, *end) : NULL;
    uint64_t by = letter ? scale[letter - letters] : 1;
    bool whole = *end == '\0' || (letter && end[1] == '\0');
    *out = n * by;
    return text[0] >= '0' && text[0] <= '9' && whole && errno == 0 && n <= UINT64_MAX / by;
}

bool roll_units_bytes(const char *text, uint64_t *out)
{
    static const uint64_t scale[] = {1u << 10, 1u << 20, 1u << 30, UINT64_C(1) << 40};
    return scaled(text, "KMGT", scale, out);
}

bool roll_units_time(const char *text, uint64_t *out_ns)
{
    static const uint64_t scale[] = {1, 60, 3600, 86400};
    uint64_t s;
    bool fits = scaled(text, "smhd", scale, &s) && s > 0 && s <= 36500 * 86400ull;
    *out_ns = fits ? s * 1000000000u : 0;
    return fits;
}

const char *roll_units_bytes_text(double bytes, char *out, size_t size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    while (bytes >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, size, unit == 0 || bytes >= 100 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
    return out;
}
