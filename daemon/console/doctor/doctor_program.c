/*
 * doctor_program.c: checks what rollcall would see of a command, binding by binding.
 *
 * One line says what the command is, one where its NCCL is, one for each binding what it would see. Only what all this
 * means together fails: a binding that does not reach an NCCL is no fault while another one does.
 */
#include "daemon/console/doctor/doctor.h"
#include "daemon/console/run/bind.h"

#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

/* The reason why no library can be preloaded into the program; NULL when one can. */
static const char *closed_because(const struct roll_study *s)
{
    const struct roll_program *p = &s->program;
    return p->script          ? NULL
           : !p->elf          ? "is neither an ELF program nor a script"
           : p->other_machine ? "is made for another processor than librollcall.so"
           : !p->dynamic      ? "is linked statically: nothing can be preloaded into it; link it dynamically"
           : strstr(p->loader, "ld-musl") != NULL ? "uses musl: librollcall.so needs glibc"
           : p->elevated ? "is set-user-id: the loader ignores LD_PRELOAD for it; run the program it starts instead"
                         : NULL;
}

static void say_command(struct roll_checkup *c, const struct roll_study *s)
{
    const char *closed = closed_because(s);
    if (closed != NULL) {
        roll_checkup_say(c, "command", ROLL_HEALTH_FAIL, "%s %s", s->path, closed);
    } else if (s->program.script) {
        roll_checkup_say(c, "command", ROLL_HEALTH_OK, "%s is a script for %s: what it starts is preloaded as well",
                         s->path, s->program.interpreter);
    } else if (s->holder[0] != '\0') {
        roll_checkup_say(c, "command", ROLL_HEALTH_OK, "%s contains NCCL itself (static libnccl)%s%s", s->path,
                         strcmp(s->holder, s->path) != 0 ? ", in " : "",
                         strcmp(s->holder, s->path) != 0 ? s->holder : "");
    } else if (s->nccls > 0 || s->program.needs_nccl) {
        roll_checkup_say(c, "command", ROLL_HEALTH_OK, "%s uses the shared libnccl", s->path);
    } else {
        roll_checkup_say(c, "command", ROLL_HEALTH_OK,
                         "%s is not linked to libnccl: it may load it later, or start what does", s->path);
    }
}

static void say_nccl(struct roll_checkup *c, const struct roll_study *s)
{
    char release[32];
    for (unsigned i = 0; i < s->nccls; i++) {
        bool told = roll_nccl_release(s->nccl[i], release, sizeof(release));
        roll_checkup_say(c, "its nccl", ROLL_HEALTH_OK, "%s%s%s", s->nccl[i], told ? ", release " : "",
                         told ? release : "");
    }
    if (s->holder[0] != '\0') {
        bool told = roll_nccl_release(s->holder, release, sizeof(release));
        roll_checkup_say(c, "its nccl", ROLL_HEALTH_OK, "inside %s%s%s", s->holder, told ? ", release " : "",
                         told ? release : "");
    }
    if (s->nccls + (s->holder[0] != '\0') > 1) {
        roll_checkup_say(
            c, "its nccl", ROLL_HEALTH_WARN,
            "%u NCCLs in one process: each is recorded by itself; communicators of one cannot be used with the other",
            s->nccls + (s->holder[0] != '\0'));
    }
    if (s->nccls == 0 && s->holder[0] == '\0') {
        roll_checkup_say(c, "its nccl", ROLL_HEALTH_INFO, "not known until it runs: `rollcall doctor PID` then tells");
    }
}

static void say_bindings(struct roll_checkup *c, const struct roll_place *place, const struct roll_study *s)
{
    bool inside = s->holder[0] != '\0', plugins = !inside || roll_nccl_has_profiler(s->holder);
    const char *taken = roll_bind_users_plugin();
    roll_checkup_say(c, "by preload", inside && s->nccls == 0 ? ROLL_HEALTH_INFO : ROLL_HEALTH_OK, "%s",
                     inside && s->nccls == 0 ? "does not reach an NCCL that is linked in"
                     : s->nccls > 0          ? "sees every call of the shared NCCL, looked-up functions too"
                                             : "sees a shared NCCL however it comes: linked, loaded later, by ctypes");
    roll_checkup_say(c, "by audit", ROLL_HEALTH_INFO, "%s",
                     place->audit[0] == '\0'   ? "not built here"
                     : inside && s->nccls == 0 ? "does not reach an NCCL that is linked in"
                                               : "not needed; --bind=audit for programs that go round the preload");
    roll_checkup_say(c, "by plugin", inside && plugins ? ROLL_HEALTH_OK : ROLL_HEALTH_INFO, "%s%s%s%s",
                     !plugins   ? "this NCCL is older than 2.23 and has no profiler interface"
                     : inside   ? "sees its calls, without reduction and call site; `rollcall run` takes it by itself"
                     : s->nccls ? "not needed"
                                : "--bind=plugin, should its NCCL turn out to be linked in",
                     taken != NULL ? "; NCCL_PROFILER_PLUGIN=" : "", taken != NULL ? taken : "",
                     taken != NULL ? " is yours: it is chained" : "");
    const char *path = getenv("VLLM_NCCL_SO_PATH");
    path = path != NULL ? path : getenv("SGLANG_NCCL_SO_PATH");
    roll_checkup_say(c, "by front", ROLL_HEALTH_INFO, "%s%s",
                     path != NULL ? "--bind=front for " : "no variable names a path of NCCL", path != NULL ? path : "");
}

static void conclude(struct roll_checkup *c, const struct roll_study *s)
{
    bool inside = s->holder[0] != '\0';
    const char *disabled = getenv("ROLLCALL_DISABLE");
    if (closed_because(s) != NULL) {
        roll_checkup_conclude(c, ROLL_HEALTH_FAIL, "Nothing of %s will be seen.", s->path);
    } else if (disabled != NULL && strcmp(disabled, "1") == 0) {
        roll_checkup_conclude(c, ROLL_HEALTH_FAIL, "Nothing will be seen: ROLLCALL_DISABLE=1 is set.");
    } else if (inside && s->nccls == 0 && !roll_nccl_has_profiler(s->holder)) {
        roll_checkup_conclude(c, ROLL_HEALTH_FAIL,
                              "Its NCCL calls will not be seen: NCCL is linked in and older than 2.23; link with "
                              "libnccl.so, or a newer NCCL.");
    } else if (inside) {
        roll_checkup_conclude(c, ROLL_HEALTH_OK, "`rollcall run` will see its NCCL calls by NCCL's profiler plugin.");
    } else if (s->nccls > 0) {
        roll_checkup_conclude(c, ROLL_HEALTH_OK, "`rollcall run` will see every NCCL call of it.");
    } else {
        roll_checkup_conclude(
            c, ROLL_HEALTH_OK,
            "`rollcall run` will see its NCCL calls, if it makes any, unless NCCL is linked into what it loads.");
    }
}

void roll_checkup_program(struct roll_checkup *c, const struct roll_place *place, const char *command, bool hostnccl)
{
    static struct roll_study s; /* large */
    roll_study(command, hostnccl ? place->hostnccl : NULL, &s);
    if (s.error != 0) {
        roll_checkup_say(c, "command", ROLL_HEALTH_FAIL, "%s: %s; give a program that can be run", command,
                         roll_strerror(s.error));
        roll_checkup_conclude(c, ROLL_HEALTH_FAIL, "%s cannot be run, so nothing else is said about it.", command);
        return;
    }
    say_command(c, &s);
    if (closed_because(&s) == NULL) {
        say_nccl(c, &s);
        roll_checkup_libraries(c, place, &s, command, hostnccl);
        say_bindings(c, place, &s);
    }
    conclude(c, &s);
}
