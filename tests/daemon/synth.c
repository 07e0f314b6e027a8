/*
 * synth.c: see synth.h. Uses the writer's half of the ring itself, so what the daemon reads is what the interposer
 * writes.
 */
#include "tests/daemon/synth.h"

#include "trace/def.h"
#include "trace/err.h"
#include "trace/frame.h"
#include "trace/ident.h"
#include "trace/op.h"
#include "trace/ring_write.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

uint64_t synth_mono_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void synth_until(uint64_t mono_ns)
{
    struct timespec ts = {.tv_sec = (time_t)(mono_ns / 1000000000u), .tv_nsec = (long)(mono_ns % 1000000000u)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
}

int synth_open(struct synth *s, const char *dir, const char *job, int32_t rank, int32_t size, uint32_t capacity)
{
    return synth_open_restart(s, dir, job, 0, rank, size, capacity);
}

int synth_open_restart(struct synth *s, const char *dir, const char *job, uint32_t restart, int32_t rank, int32_t size,
                       uint32_t capacity)
{
    memset(s, 0, sizeof(*s));
    s->rank = rank;
    s->size = size;
    struct roll_ident ident = {.rank = rank, .size = size, .local_rank = rank, .restart = restart};
    snprintf(ident.job, sizeof(ident.job), "%s", job);
    int err = roll_ring_path(s->path, sizeof(s->path), dir, &ident, (uint32_t)getpid());
    if (err) {
        return err;
    }
    struct roll_ring_params params = {.capacity = capacity,
                                      .world_rank = rank,
                                      .world_size = size,
                                      .local_rank = rank,
                                      .restart = restart,
                                      .job = job,
                                      .exe = "synth_rank",
                                      .defs_bytes = 1024 * 1024};
    return roll_ring_create(s->path, &params, &s->ring);
}

uint16_t synth_comm(struct synth *s, uint64_t key)
{
    return synth_comm_of(s, key, s->rank, s->size);
}

void synth_site(struct synth *s, const char *file, uint32_t line, const char *function)
{
    struct roll_def_source source = {.path_bytes = (uint32_t)strlen(file)};
    struct roll_def_line at = {.source = 1, .line = line, .function_bytes = (uint32_t)strlen(function)};
    struct {
        struct roll_def_callsite site;
        struct roll_callsite_line line;
    } made = {{.lines = 1}, {.line = 1}};
    roll_def_append(&s->ring, ROLL_DEF_SOURCE, 1, &source, sizeof(source), file, source.path_bytes);
    roll_def_append(&s->ring, ROLL_DEF_LINE, 1, &at, sizeof(at), function, at.function_bytes);
    roll_def_append(&s->ring, ROLL_DEF_CALLSITE, 1, &made, sizeof(made), NULL, 0);
    s->site = 1;
}

uint16_t synth_comm_of(struct synth *s, uint64_t key, int32_t rank, int32_t size)
{
    struct roll_def_comm def = {.key = key,
                                .rank = rank,
                                .nranks = size,
                                .color = ROLL_COLOR_NONE,
                                .origin = ROLL_COMM_INIT,
                                .device = s->rank,
                                .label_bytes = s->label ? (uint32_t)strlen(s->label) : 0};
    s->comms++;
    roll_def_append(&s->ring, ROLL_DEF_COMM, s->comms, &def, sizeof(def), s->label, def.label_bytes);
    return s->comms;
}

uint64_t synth_allreduce(struct synth *s, const struct synth_call *call)
{
    uint64_t ticket, begin = synth_mono_ns();
    struct roll_record *rec = roll_ring_reserve(&s->ring, &ticket);
    rec->enter_ns = begin;
    rec->count = call->count;
    rec->seq = s->seq[call->comm % 4096]++;
    rec->group = 0;
    rec->peer = ROLL_PEER_NONE;
    rec->call_ns = 0;
    rec->step = ROLL_STEP_NONE;
    rec->comm = call->comm;
    rec->stream = 1;
    rec->callsite = s->site;
    rec->thread = 1;
    rec->layer = ROLL_LAYER_NONE;
    rec->microbatch = 0;
    rec->op = ROLL_OP_ALLREDUCE;
    rec->dtype = ROLL_DTYPE_FLOAT32;
    rec->redop = ROLL_RED_SUM;
    rec->flags = 0;
    rec->phase = ROLL_PHASE_NONE;
    rec->result = 0;
    rec->aux = 0;
    roll_ring_publish(rec, ticket, ROLL_STATE_ENTERED);
    if (!call->hang) {
        roll_ring_return(&s->ring, rec, ticket, (uint32_t)(synth_mono_ns() - begin), 0);
    }
    return ticket;
}

void synth_tokens(struct synth *s, uint16_t comm, uint64_t tokens)
{
    uint64_t ticket;
    struct roll_record *rec = roll_ring_reserve(&s->ring, &ticket);
    *rec = (struct roll_record){.seal = rec->seal, .enter_ns = synth_mono_ns(), .count = tokens, .comm = comm};
    rec->stream = rec->thread = 1;
    rec->op = ROLL_OP_MOE_UNIFORM;
    rec->step = s->step;
    rec->layer = s->layer;
    rec->dtype = ROLL_DTYPE_NONE;
    rec->redop = ROLL_RED_NONE;
    rec->phase = ROLL_PHASE_FORWARD;
    roll_ring_publish(rec, ticket, ROLL_STATE_RETURNED);
}

void synth_return(struct synth *s, uint64_t ticket)
{
    roll_ring_return(&s->ring, &s->ring.records[ticket & s->ring.mask], ticket, 1000, 0);
}

void synth_finish(struct synth *s)
{
    atomic_store(&s->ring.header->finish_ns, synth_mono_ns());
    atomic_store(&s->ring.header->state, ROLL_RING_FINISHED);
}

void synth_close(struct synth *s)
{
    roll_ring_close(&s->ring);
}

int synth_trace_append(const char *path, const void *frames, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    uint8_t head[ROLL_TRACE_HEAD_BYTES];
    struct stat st;
    if (fd < 0) {
        return ROLL_E_IO;
    }
    roll_trace_head(head);
    bool whole = fstat(fd, &st) == 0 && (st.st_size > 0 || write(fd, head, sizeof(head)) == (ssize_t)sizeof(head)) &&
                 write(fd, frames, bytes) == (ssize_t)bytes;
    close(fd);
    return whole ? 0 : ROLL_E_IO;
}
