/*
 * harness.c: see harness.h. Children are remembered by pid and ended by pid.
 */
#include "tests/daemon/harness.h"

#include "tests/daemon/synth.h"
#include "trace/ident.h"
#include "trace/ring.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_CHILDREN 192

bool harness_supervised;

static char dir[64];
static pid_t children[MAX_CHILDREN];
static int used;

const char *harness_dir(void)
{
    return dir;
}

const char *harness_path(const char *name)
{
    static struct {
        char name[64], path[256];
    } known[64];
    static int turn;
    for (int i = 0; i < 64; i++) {
        if (strcmp(known[i].name, name) == 0 && strncmp(known[i].path, dir, strlen(dir)) == 0) {
            return known[i].path;
        }
    }
    int i = turn++ % 64;
    snprintf(known[i].name, sizeof(known[i].name), "%s", name);
    snprintf(known[i].path, sizeof(known[i].path), "%s/%s", dir, name);
    return known[i].path;
}

int harness_set_up(void **state)
{
    (void)state;
    used = 0;
    harness_supervised = false;
    strcpy(dir, "/tmp/rollcall-test-XXXXXX");
    return mkdtemp(dir) && setenv("ROLLCALL_COOKIE", harness_path("cookie"), 1) == 0 ? 0 : -1;
}

int harness_tear_down(void **state)
{
    (void)state;
    for (int i = used; i-- > 0;) {
        if (children[i] > 0) {
            kill(children[i], SIGKILL);
            waitpid(children[i], NULL, 0);
        }
    }
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    return system(command);
}

/* processes */

static const char *program(const char *name)
{
    const char *path = NULL;
    if (strcmp(name, "rollcalld") == 0) {
        path = getenv("ROLL_TEST_ROLLCALLD");
    } else if (strcmp(name, "synth_rank") == 0) {
        path = getenv("ROLL_TEST_SYNTH_RANK");
    } else {
        return name;
    }
    if (!path) {
        fail_msg("set ROLL_TEST_ROLLCALLD and ROLL_TEST_SYNTH_RANK, as ctest does, to run %s", name);
    }
    return path;
}

pid_t harness_spawn(const char *log, const char *const *argv)
{
    const char *args[42];
    int n = 0;
    assert_true(used < MAX_CHILDREN);
    for (int i = 0; argv[i]; i++) {
        bool daemon = strcmp(argv[i], "rollcalld") == 0;
        bool first_word = i == 0 || daemon || strcmp(argv[i], "synth_rank") == 0;
        assert_true(n < 39);
        args[n++] = first_word ? program(argv[i]) : argv[i];
        if (daemon && !harness_supervised) {
            args[n++] = "--no-supervise";
        }
    }
    args[n] = NULL;
    const char *path = harness_path(log);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
        dup2(fd, STDERR_FILENO);
        unsetenv("ROLLCALL_DAEMON");
        unsetenv("ROLLCALL_DIR");
        unsetenv("ROLLCALL_QUIET");
        unsetenv("ROLLCALL_CURVE_DIR");
        execvp(args[0], (char *const *)args);
        _exit(127);
    }
    assert_true(pid > 0);
    children[used++] = pid;
    return pid;
}

pid_t harness_daemon(const char *log, char *endpoint, const char *const *argv)
{
    const char *args[40];
    char fd[16], line[256] = "";
    int ends[2], n = 0;
    assert_int_equal(pipe(ends), 0);
    for (; argv[n]; n++) {
        args[n] = argv[n];
    }
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    snprintf(fd, sizeof(fd), "%d", ends[1]);
    args[n++] = "--ready-fd";
    args[n++] = fd;
    args[n] = NULL;
    pid_t pid = harness_spawn(log, args);
    close(ends[1]);
    struct pollfd p = {ends[0], POLLIN, 0};
    ssize_t got = poll(&p, 1, HARNESS_END_MS) > 0 ? read(ends[0], line, sizeof(line) - 1) : -1;
    close(ends[0]);
    if (got <= 0) {
        return -1;
    }
    line[strcspn(line, "\n")] = '\0';
    if (endpoint) {
        strcpy(endpoint, line);
    }
    return pid;
}

pid_t harness_rank(const char *where, int rank, int size, unsigned rate, unsigned count, const char *end)
{
    char r[16], s[16], hz[16], c[16], log[32];
    snprintf(r, sizeof(r), "%d", rank);
    snprintf(s, sizeof(s), "%d", size);
    snprintf(hz, sizeof(hz), "%u", rate);
    snprintf(c, sizeof(c), "%u", count);
    snprintf(log, sizeof(log), "rank%d.err", rank);
    /* A ring that holds all its calls: nothing is lost however late the agent is. */
    return SPAWN(log, "synth_rank", where, "job", r, s, hz, c, count < 65536 ? "65536" : "131072", end);
}

int harness_end(pid_t pid, int number)
{
    int status = 0;
    if (number) {
        kill(pid, number);
    }
    for (int ms = 0; ms < HARNESS_END_MS; ms += 5) {
        if (waitpid(pid, &status, WNOHANG) == pid) {
            for (int i = 0; i < used; i++) {
                children[i] = children[i] == pid ? 0 : children[i];
            }
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }
        usleep(5000);
    }
    fail_msg("process %d did not end", (int)pid);
    return -1;
}

/* roots */

roll_client_t *harness_client(const char *endpoint)
{
    roll_client_t *client = NULL;
    char why[512] = "";
    if (roll_client_new(endpoint, NULL, HARNESS_END_MS, &client, why, sizeof(why)) != 0) {
        fail_msg("%s", why);
    }
    return client;
}

json_t *harness_ask(roll_client_t *client, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    json_error_t error;
    json_t *query = json_vpack_ex(&error, 0, format, args), *reply = NULL;
    va_end(args);
    assert_non_null(query);
    assert_int_equal(roll_client_query(client, query, HARNESS_END_MS, &reply), 0);
    assert_non_null(reply);
    return reply;
}

const char *harness_error(const json_t *reply)
{
    return json_string_value(json_object_get(reply, "error"));
}

json_int_t harness_drained(roll_client_t *client, const char *member)
{
    json_t *reply = harness_ask(client, "{s:s,s:i}", "op", "drain", "timeout_ms", HARNESS_END_MS - 10000);
    assert_true(json_is_true(json_object_get(reply, "drained")));
    json_int_t value = json_integer_value(json_object_get(json_object_get(reply, "summary"), member));
    json_decref(reply);
    return value;
}

json_int_t harness_has(roll_client_t *client, const char *job, const char *member)
{
    json_t *status = job ? harness_ask(client, "{s:s,s:s}", "op", "status", "job", job)
                         : harness_ask(client, "{s:s}", "op", "status");
    json_int_t value = json_integer_value(json_object_get(json_object_get(status, "summary"), member));
    json_decref(status);
    return value;
}

json_t *harness_verdict(roll_client_t *client, const char *code)
{
    uint64_t end = synth_mono_ns() + HARNESS_END_MS * UINT64_C(1000000);
    do {
        json_t *reply = harness_ask(client, "{s:s,s:i}", "op", "verdicts", "from", 0), *verdict, *found = NULL;
        size_t i;
        json_array_foreach(json_object_get(reply, "verdicts"), i, verdict)
        {
            if (!found && strcmp(json_string_value(json_object_get(verdict, "code")), code) == 0) {
                found = json_incref(verdict);
            }
        }
        json_decref(reply);
        if (found) {
            return found;
        }
        usleep(20000);
    } while (synth_mono_ns() < end);
    return NULL;
}

/* files */

uint64_t harness_calls(const char *where, int rank, int size, pid_t pid)
{
    char path[512];
    struct roll_ring ring;
    struct roll_ident ident = {.rank = rank, .size = size, .local_rank = rank, .job = "job"};
    assert_int_equal(roll_ring_path(path, sizeof(path), where, &ident, (uint32_t)pid), 0);
    if (roll_ring_open(path, false, &ring) != 0) {
        return 0;
    }
    uint64_t head = atomic_load(&ring.header->head);
    roll_ring_close(&ring);
    return head;
}

bool harness_logged(const char *log, const char *text)
{
    char *content = malloc(65536);
    bool found = false;
    for (int waited = 0; !found && waited <= HARNESS_END_MS; waited += 20) {
        FILE *f = fopen(harness_path(log), "r");
        size_t n = f ? fread(content, 1, 65535, f) : 0;
        if (f) {
            fclose(f);
        }
        content[n] = '\0';
        found = strstr(content, text) != NULL;
        if (!found) {
            usleep(20000);
        }
    }
    free(content);
    return found;
}

int harness_count(const char *where, const char *suffix)
{
    DIR *d = opendir(where);
    struct dirent *entry;
    int n = 0;
    while (d && (entry = readdir(d)) != NULL) {
        size_t have = strlen(entry->d_name), want = strlen(suffix);
        n += entry->d_name[0] != '.' && have >= want && strcmp(entry->d_name + have - want, suffix) == 0;
    }
    if (d) {
        closedir(d);
    }
    return n;
}
