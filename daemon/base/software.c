/* software.c: see software.h. */
#include "daemon/base/software.h"

#include "daemon/base/json.h"

#include <gnu/libc-version.h>
#include <stdio.h>
#include <sys/utsname.h>

json_t *roll_software_json(void)
{
    struct utsname u = {.release = ""};
    char kernel[sizeof(u.sysname) + sizeof(u.release) + sizeof(u.version) + 4], libc[64];
    (void)uname(&u);
    snprintf(kernel, sizeof(kernel), "%s %s %s", u.sysname, u.release, u.version);
    snprintf(libc, sizeof(libc), "glibc %s", gnu_get_libc_version());
    return json_pack("{s:s, s:o, s:s, s:o}", "rollcall", ROLL_VERSION, "kernel", roll_text_to_json(kernel), "libc",
                     libc, "machine", roll_text_to_json(u.machine));
}
