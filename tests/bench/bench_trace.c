/*
 * bench_trace.c: what a call costs in a trace: bytes and CPU time, of plain frames, of plain frames through zstd, and
 * of what is written.
 *
 * The calls are those of a real job: moe_train with 8 ranks on hostnccl under `rollcall run --trace`, recorded now. Its
 * frames are read back and packed again, a PACK for each 0.8 s of the job as the daemon does, so the three sides are
 * the same frames. The second half is told apart, because a job of an hour is nearly all second half: by then
 * signatures and definitions have been written.
 */
#include "tests/bench/bench.h"

#include "daemon/base/clock.h"
#include "daemon/store/pack.h"
#include "daemon/store/segment.h"
#include "daemon/store/trace_file.h"
#include "trace/err.h"
#include "trace/op.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#define RANKS    "8"
#define STEPS    "400"
#define BLOCK_NS (800 * ROLL_MS)
#define MOST     ((size_t)1 << 30)

struct frames {
    uint8_t *bytes;
    size_t used, room, half;
    uint64_t records, updates, count;
    uint64_t calls; /* collectives, sends and receives among the records */
};

/* One side: bytes of all and of the second half, CPU time of making and of reading it. */
struct side {
    double bytes, half_bytes, make_ns, read_ns;
};

static double cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static int beside(const char *name, char *out, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", out, size - 32);
    if (n <= 0) {
        return ROLL_E_NOTFOUND;
    }
    out[n] = '\0';
    strcpy(strrchr(out, '/') + 1, name);
    return access(out, X_OK) == 0 ? 0 : ROLL_E_NOTFOUND;
}

static int record_job(const char *dir)
{
    char rollcall[PATH_MAX], train[PATH_MAX];
    if (beside("rollcall", rollcall, sizeof(rollcall)) != 0 || beside("moe_train", train, sizeof(train)) != 0) {
        fprintf(stderr, "bench: rollcall or moe_train is not beside this program\n");
        return ROLL_E_NOTFOUND;
    }
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        execl(rollcall, rollcall, "run", "-n", RANKS, "--hostnccl", "--trace", dir, "--", train, "--steps", STEPS,
              (char *)NULL);
        _exit(127);
    }
    int status = -1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "bench: rollcall run -n " RANKS " moe_train did not end well\n");
        return ROLL_E_IO;
    }
    return 0;
}

static int keep_frame(struct frames *f, const struct roll_frame *frame)
{
    const size_t n = ROLL_FRAME_HEAD_BYTES + frame->head.payload;
    if (f->used + n > f->room) {
        f->room = f->room ? 2 * f->room : 16u << 20;
        uint8_t *grown = f->room > MOST ? NULL : realloc(f->bytes, f->room);
        if (!grown) {
            return ROLL_E_NOMEM;
        }
        f->bytes = grown;
    }
    int64_t wrote = roll_frame_encode(&frame->head, frame->payload, frame->head.payload, f->bytes + f->used, n);
    f->used += wrote > 0 ? (size_t)wrote : 0;
    for (uint32_t i = 0; frame->head.type == ROLL_FRAME_RECORDS && i < frame->head.count; i++) {
        struct roll_record rec;
        roll_frame_record(frame, i, &rec);
        enum roll_op_class class = roll_op_class(rec.op);
        f->calls += class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P;
        f->records++;
    }
    f->updates += frame->head.type == ROLL_FRAME_UPDATES ? frame->head.count : 0;
    f->count++;
    return wrote > 0 ? 0 : (int)wrote;
}

/* Reads what was recorded, what segments repeat left out; removes the files. */
static int read_back(const char *dir, struct frames *f)
{
    struct dirent **entry = NULL;
    int n = scandir(dir, &entry, NULL, alphasort), err = n > 2 ? 0 : ROLL_E_NOTFOUND;
    bool first = true;
    for (int i = 0; i < n; i++) {
        char path[PATH_MAX];
        roll_trace_reader_t *r = NULL;
        struct roll_frame frame;
        if (!err && entry[i]->d_name[0] != '.') {
            snprintf(path, sizeof(path), "%s/%s", dir, entry[i]->d_name);
            err = roll_trace_reader_new(path, &r);
            if (!err && !first) {
                roll_trace_reader_resume(r);
            }
            while (!err && roll_trace_reader_next(r, &frame) == 0) {
                err = keep_frame(f, &frame);
            }
            roll_trace_reader_destroy(&r);
            first = false;
            unlink(path);
        }
        free(entry[i]);
    }
    free(entry);
    rmdir(dir);
    return err;
}

static int take_pack(roll_packer_t *p, roll_unpacker_t *u, struct side *s, bool second, const uint8_t *want, size_t *at)
{
    const uint8_t *out;
    size_t bytes;
    struct roll_frame pack;
    double begin = cpu_ns();
    int err = roll_packer_finish(p, false, &out, &bytes);
    s->make_ns += cpu_ns() - begin;
    if (err) {
        return err;
    }
    s->bytes += (double)bytes;
    s->half_bytes += second ? (double)bytes : 0;
    err = roll_frame_decode(out, bytes, &pack, NULL);
    begin = cpu_ns();
    err = err ? err : roll_unpacker_take(u, &pack, &out, &bytes);
    s->read_ns += cpu_ns() - begin;
    if (!err && memcmp(out, want + *at, bytes) != 0) {
        fprintf(stderr, "bench: a frame came back changed\n");
        err = ROLL_E_CORRUPT;
    }
    *at += err ? 0 : bytes;
    return err;
}

static int measure_ours(const struct frames *f, struct side *s, uint64_t *half_records)
{
    roll_packer_t *p = roll_packer_new();
    roll_unpacker_t *u = roll_unpacker_new();
    uint64_t count = 0, tick = 0, packed = 0;
    size_t checked = 0, used = 0;
    int err = p && u ? 0 : ROLL_E_NOMEM;
    for (size_t at = 0; at < f->used && !err; at += used) {
        struct roll_frame frame;
        size_t waiting;
        bool full;
        err = roll_frame_decode(f->bytes + at, f->used - at, &frame, &used);
        double begin = cpu_ns();
        err = err ? err : roll_packer_add(p, &frame, f->bytes + at, used);
        s->make_ns += cpu_ns() - begin;
        bool second = ++count > f->count / 2;
        *half_records += second && frame.head.type == ROLL_FRAME_RECORDS ? frame.head.count : 0;
        tick = frame.head.type == ROLL_FRAME_TICK ? frame.head.seq : tick;
        packed = packed ? packed : tick;
        roll_packer_waiting(p, &waiting, &full);
        if (!err && (full || tick - packed >= BLOCK_NS || at + used == f->used || count == f->count / 2)) {
            err = take_pack(p, u, s, second, f->bytes, &checked);
            packed = tick;
        }
    }
    roll_packer_destroy(&p);
    roll_unpacker_destroy(&u);
    return err;
}

static int measure_zstd(const struct frames *f, struct side *s)
{
    size_t bound = ZSTD_compressBound(f->used);
    uint8_t *out = malloc(bound), *back = malloc(f->used);
    int err = out && back ? 0 : ROLL_E_NOMEM;
    if (!err) {
        double begin = cpu_ns();
        size_t n = ZSTD_compress(out, bound, f->bytes, f->used, ROLL_PACK_LEVEL);
        s->make_ns = cpu_ns() - begin;
        begin = cpu_ns();
        err = ZSTD_isError(n) || ZSTD_decompress(back, f->used, out, n) != f->used ? ROLL_E_IO : 0;
        s->read_ns = cpu_ns() - begin;
        s->bytes = (double)n;
    }
    free(out);
    free(back);
    return err;
}

static void say(json_t *out, FILE *table, const char *name, const char *label, const struct side *s,
                const struct frames *f, const char *goal)
{
    double n = (double)f->records, mb = (double)f->used * 1e-6;
    char figure[80], measured[64];
    json_object_set_new(out, name,
                        json_pack("{s:f,s:f,s:f,s:f}", "bytes_per_record", s->bytes / n, "write_ns_per_record",
                                  s->make_ns / n, "read_ns_per_record", s->read_ns / n, "write_mb_per_s",
                                  s->make_ns > 0 ? mb / (s->make_ns * 1e-9) : 0.0));
    snprintf(figure, sizeof(figure), "bytes a record, %s", label);
    snprintf(measured, sizeof(measured), "%.2f", s->bytes / n);
    roll_bench_line(table, figure, measured, goal);
    if (s->make_ns > 0) {
        snprintf(figure, sizeof(figure), "CPU a million records, write / read, %s", label);
        snprintf(measured, sizeof(measured), "%.2f / %.2f s", s->make_ns / n * 1e-3, s->read_ns / n * 1e-3);
        roll_bench_line(table, figure, measured, "");
    }
}

int roll_bench_trace(json_t *out, FILE *table)
{
    char dir[] = "/tmp/rollcall-bench-trace-XXXXXX", measured[64];
    struct frames f = {0};
    struct side plain = {0}, zstd = {0}, ours = {0};
    uint64_t half = 0;
    int err = mkdtemp(dir) ? record_job(dir) : ROLL_E_IO;
    if (!err) {
        err = read_back(dir, &f);
    }
    if (!err) {
        err = measure_zstd(&f, &zstd);
    }
    if (!err) {
        err = measure_ours(&f, &ours, &half);
    }
    if (!err && f.records > 0 && half > 0) {
        plain.bytes = (double)f.used;
        json_object_set_new(out, "job", json_string("moe_train, " RANKS " ranks, " STEPS " steps, once"));
        json_object_set_new(out, "records", json_integer((json_int_t)f.records));
        json_object_set_new(out, "updates", json_integer((json_int_t)f.updates));
        json_object_set_new(out, "frames", json_integer((json_int_t)f.count));
        fprintf(table, "  moe_train, " RANKS " ranks, " STEPS " steps, recorded once: %llu records in %llu frames\n",
                (unsigned long long)f.records, (unsigned long long)f.count);
        say(out, table, "plain", "plain frames", &plain, &f, "");
        say(out, table, "zstd", "plain frames through zstd", &zstd, &f, "");
        say(out, table, "packed", "as written", &ours, &f, "<= 8");
        double steady = ours.half_bytes / (double)half;
        json_object_set_new(out, "steady_bytes_per_record", json_real(steady));
        snprintf(measured, sizeof(measured), "%.2f", steady);
        roll_bench_line(table, "bytes a record, as written, second half", measured, "<= 8");
        json_object_set_new(out, "calls", json_integer((json_int_t)f.calls));
        json_object_set_new(out, "bytes_per_call", json_real(ours.bytes / (double)(f.calls ? f.calls : 1)));
        snprintf(measured, sizeof(measured), "%.2f", ours.bytes / (double)(f.calls ? f.calls : 1));
        roll_bench_line(table, "all bytes, by collectives, sends and receives", measured, "<= 8");
        double percent = ours.make_ns / (double)f.records * 80000 * 1e-7;
        json_object_set_new(out, "percent_of_a_core_at_80000_per_s", json_real(percent));
        snprintf(measured, sizeof(measured), "%.1f %%", percent);
        roll_bench_line(table, "packing 8 ranks at 10,000 calls/s, of one core", measured, "");
    }
    free(f.bytes);
    return err;
}
