/*
 * ahead.h: a batch of records asks for the memory that each record needs, so many records before its turn: first for
 * the places of its rank, then for what these point to. The first records of a batch are asked for together.
 *
 * At thousands of ranks that are far apart nothing of a rank is in a cache when its records come; one record at a time
 * would wait for each line of it.
 */
#ifndef ROLL_DAEMON_ENGINE_AHEAD_H
#define ROLL_DAEMON_ENGINE_AHEAD_H

#include "daemon/engine/model/comm.h"
#include "daemon/engine/model/source.h"

#define AHEAD_PLACE 8u
#define AHEAD_SLOT  5u

ASKS_MEMORY void ahead_place(const struct source *s, const struct roll_record *rec)
{
    const struct comm *c = source_comm(s, rec->comm);
    if (c) {
        __builtin_prefetch(c, 1);
        __builtin_prefetch((const char *)c + CACHE_LINE, 1);
        __builtin_prefetch(source_member(s, rec->comm), 1);
    }
    if (rec->stream < s->queues) {
        __builtin_prefetch(&s->queue[rec->stream], 1);
    }
    const struct log_chunk *chunk = s->log ? source_chunk(s, roll_seal_ticket(rec->seal)) : NULL;
    if (chunk) {
        const char *entry = (const char *)&chunk->entry[roll_seal_ticket(rec->seal) % LOG_CHUNK];
        __builtin_prefetch(entry, 1);
        __builtin_prefetch(entry + CACHE_LINE, 1);
    }
}

ASKS_MEMORY void ahead_slot(const struct source *s, const struct roll_record *rec)
{
    const struct comm *c = source_comm(s, rec->comm);
    if (c) {
        __builtin_prefetch(comm_slot(c, rec->seq), 1);
    }
}

ASKS_MEMORY void ahead_first(const struct source *s, const struct roll_record *recs, size_t n)
{
    for (size_t i = 0; i < n && i < AHEAD_PLACE; i++) {
        ahead_place(s, &recs[i]);
    }
    for (size_t i = 0; i < n && i < AHEAD_SLOT; i++) {
        ahead_slot(s, &recs[i]);
    }
}

ASKS_MEMORY void ahead_next(const struct source *s, const struct roll_record *recs, size_t left)
{
    if (left > AHEAD_PLACE) {
        ahead_place(s, &recs[AHEAD_PLACE]);
    }
    if (left > AHEAD_SLOT) {
        ahead_slot(s, &recs[AHEAD_SLOT]);
    }
}

#endif
