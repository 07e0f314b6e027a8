/*
 * doctor_python.c: whether calls of a Python job will be told by their lines of Python, and if not, why.
 *
 * The preload judges that inside the job, by what it finds in the interpreter's memory (interposer/record/pystack.c).
 * Beforehand only the interpreter's release and kind are known, which it says itself; of a running process, what its
 * ring holds is better than any guess.
 */
#include "daemon/console/doctor/doctor.h"
#include "daemon/console/rehearse/rehearse.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OLDEST 9u
#define NEWEST 14u

enum roll_health roll_python_words(const char *name, unsigned major, unsigned minor, const char *flags, char *out,
                                   size_t size)
{
    bool known = major == 3 && minor >= OLDEST && minor <= NEWEST;
    const char *why = strcmp(name, "cpython") != 0 ? "another interpreter than CPython"
                      : !known                     ? "frames are known of CPython 3.9 to 3.14"
                      : strchr(flags, 't') != NULL ? "a free-threaded build, in which frames may change under a reader"
                      : strchr(flags, 'd') != NULL ? "a debug build, whose objects are laid out otherwise"
                                                   : NULL;
    name = strcmp(name, "cpython") == 0 ? "CPython" : name;
    if (why != NULL) {
        snprintf(out, size, "%.20s %u.%u%.8s: calls are told by native frames alone: %s", name, major, minor, flags,
                 why);
        return ROLL_HEALTH_WARN;
    }
    snprintf(out, size, "%.20s %u.%u: calls are told by their lines of Python", name, major, minor);
    return ROLL_HEALTH_OK;
}

/* Says it of what an interpreter has said of itself: "cpython 3 11 -", the last word its flags. */
static bool say_answer(struct roll_checkup *c, const char *answer)
{
    char name[32], flags[16], text[256];
    unsigned major, minor;
    if (sscanf(answer, "%31s %u %u %15s", name, &major, &minor, flags) != 4) {
        return false;
    }
    enum roll_health health =
        roll_python_words(name, major, minor, strcmp(flags, "-") == 0 ? "" : flags, text, sizeof(text));
    roll_checkup_say(c, "python", health, "%s", text);
    return true;
}

bool roll_is_python(const char *interpreter)
{
    const char *slash = strrchr(interpreter, '/'), *name = slash != NULL ? slash + 1 : interpreter;
    return fnmatch("python*", name, 0) == 0 || fnmatch("pypy*", name, 0) == 0;
}

void roll_checkup_python(struct roll_checkup *c, char *const command[])
{
    static const char question[] = "import sys; print(sys.implementation.name, *sys.version_info[:2], "
                                   "getattr(sys, 'abiflags', '') or '-')";
    char interpreter[PATH_MAX], answer[256];
    if (!roll_rehearse_interpreter(command, interpreter, sizeof(interpreter))) {
        return;
    }
    if (!roll_is_python(interpreter)) {
        return;
    }
    if (!roll_rehearse_ask(interpreter, question, answer, sizeof(answer)) || !say_answer(c, answer)) {
        roll_checkup_say(c, "python", ROLL_HEALTH_WARN, "%s does not say what it is", interpreter);
    }
}

void roll_checkup_python_lines(struct roll_checkup *c, const char *program, uint64_t calls, uint32_t lines)
{
    const char *slash = strrchr(program, '/');
    if (lines > 0) {
        roll_checkup_say(c, "python", ROLL_HEALTH_OK, "its calls are told by their lines of Python (%u so far)", lines);
    } else if (fnmatch("python*", slash != NULL ? slash + 1 : program, 0) == 0 && calls > 0) {
        roll_checkup_say(
            c, "python", ROLL_HEALTH_WARN,
            "its calls are told by native frames alone: `rollcall doctor %s` says what this interpreter is", program);
    }
}
