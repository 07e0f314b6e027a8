/* segment.h: the shared memory of one communicator: its layout, and how ranks find and attach it. See segment.c. */
#ifndef ROLL_HOSTNCCL_NCCL_SEGMENT_H
#define ROLL_HOSTNCCL_NCCL_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "hostnccl/nccl/futex.h"

enum {
    HN_SLOTS = 2,     /* pieces of a collective that a rank may have posted and not yet seen consumed */
    HN_CTL_SLOTS = 2, /* as HN_SLOTS, for the host-side exchanges (split, windows) */
    HN_CTL_WORDS = 4,
    HN_MAX_RANKS = 4096,
    HN_SIGNALS = 8, /* per ordered pair; as many as fit beside the channel's other counters */
};

/* A rank's description of the collective to which a posted piece belongs; the peers compare it with their own. */
struct hn_head {
    uint16_t kind;
    uint16_t captured; /* 1: part of a graph */
    int32_t root;      /* -1 without root */
    uint64_t bytes;    /* per-rank contribution */
};

struct hn_ctl {
    uint64_t word[HN_CTL_WORDS];
};

/* The part of one rank; only that rank writes it, apart from the bell. */
struct hn_rank {
    struct hn_word joined; /* futex: 1 once the rank has attached */
    uint32_t pid;
    uint32_t pad;
    struct hn_word posted;   /* pieces written to the outbox */
    struct hn_word reduced;  /* pieces whose own part this rank has reduced in place */
    struct hn_word consumed; /* pieces that this rank has finished reading */
    struct hn_word ctl_posted;
    struct hn_word ctl_consumed;
    _Alignas(64) struct hn_word bell; /* bumped by peers when a point-to-point channel with this rank has moved */
    _Alignas(64) struct hn_head head[HN_SLOTS];
    struct hn_ctl ctl[HN_CTL_SLOTS];
};

/* One per ordered pair (source, destination). Sequence numbers count messages; byte counters never go back. */
struct hn_channel {
    _Alignas(64) _Atomic uint64_t send_bytes; /* by the source: length of message number send_seq */
    _Atomic uint64_t written;                 /* bytes put into the ring, over all messages */
    _Atomic uint64_t origin;      /* value of these counters at the ring's first byte; moved when the ring is empty */
    _Atomic uint32_t send_seq;    /* messages offered */
    _Atomic uint32_t skipped_seq; /* the last message whose bytes are counted, and not put into the ring */
    _Atomic uint32_t signals[HN_SIGNALS];     /* by the source: how often each was raised */
    _Alignas(64) _Atomic uint64_t recv_bytes; /* by the destination, likewise */
    _Atomic uint64_t read;
    _Atomic uint32_t recv_seq;
};

/* First bytes of the segment. */
struct hn_segment {
    uint64_t magic;
    uint64_t name;
    uint32_t version;
    uint32_t nranks;
    uint32_t left_out_bytes;  /* as the first rank has it; all ranks must agree */
    uint32_t places;          /* ranks that are present: nranks, unless HOSTNCCL_PRESENT says otherwise */
    _Atomic uint32_t joining; /* ranks that have claimed their place */
    struct hn_word attached;  /* set to `places` by the last rank to come, after it removed the name */
};

/* A rank's own mapping. */
struct hn_map {
    struct hn_segment *base;
    size_t size;
    int fd; /* kept for posix_fallocate; carries the shared lock that says "alive" */
    uint64_t name;
    uint32_t nranks;
    uint32_t places;  /* parts of the segment: one for each rank that is present */
    const int *place; /* borrowed; of each rank; that of an absent rank is its stand-in's. NULL: rank r has place r */
    size_t chunk;     /* bytes of one outbox slot */
    size_t window;    /* bytes of one pair's ring */
    size_t ranks_at, channels_at, outbox_at, rings_at;
};

/*
 * Makes or opens the segment `name` and maps it. `places` and `place` as in struct hn_map. 0, -1 with errno, -2: it
 * exists for another number of ranks, -3: its first rank says otherwise about `left_out_bytes`, -4: about `places`.
 */
int hn_map_open(struct hn_map *map, uint64_t name, uint32_t nranks, uint32_t places, const int *place,
                uint32_t left_out_bytes);

/* Removes the name: no further process can attach, and nothing stays behind, whatever happens to the processes. */
void hn_map_unlink(const struct hn_map *map);

/* Unmaps and closes. Harmless on a zeroed map. */
void hn_map_close(struct hn_map *map);

/* Makes [at, at+size) of the segment real memory. 0, or -1 with errno (ENOSPC: /dev/shm is full). */
int hn_map_reserve(const struct hn_map *map, size_t at, size_t size);

/* Gives that memory back; whole pages only. */
void hn_map_release(const struct hn_map *map, size_t at, size_t size);

struct hn_rank *hn_map_rank(const struct hn_map *map, int rank);
struct hn_channel *hn_map_channel(const struct hn_map *map, int source, int destination);
size_t hn_map_slot_at(const struct hn_map *map, int rank, uint32_t piece);
size_t hn_map_ring_at(const struct hn_map *map, int source, int destination);

static inline char *hn_map_bytes(const struct hn_map *map, size_t at)
{
    return (char *)map->base + at;
}

/* The directory of the segments: $HOSTNCCL_DIR or /dev/shm/hostnccl-UID, made 0700. 0, or -1 with errno. */
int hn_segment_dir(char *buf, size_t size);

#endif
