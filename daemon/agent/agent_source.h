/*
 * agent_source.h: the text of the lines of Python that ranks of this node define: read from their files, and written
 * into the area of definitions of the rank's ring, where everybody finds it who reads the ring; and the lines around
 * one, for who asks. Private to the agent.
 */
#ifndef ROLL_DAEMON_AGENT_AGENT_SOURCE_H
#define ROLL_DAEMON_AGENT_AGENT_SOURCE_H

#include "daemon/agent/agent_ring.h"
#include "daemon/stack/source_line.h"

typedef struct roll_agent_sources roll_agent_sources_t;

/* NULL without memory or thread, or where the environment forbids it (ROLLCALL_SOURCE=off): then no line has a text. */
roll_agent_sources_t *roll_agent_sources_new(void);
/* Ends the thread that reads; one that hangs in a file system is left behind, with what it needs. */
void roll_agent_sources_destroy(roll_agent_sources_t **sources);

/*
 * Asks for the texts of lines that are new in a ring, waits a moment for them, and writes those that have come. To be
 * called before definitions are sent, so that the first verdict has the texts. sources may be NULL.
 */
void roll_agent_sources_look(roll_agent_sources_t *sources, struct roll_agent_ring *ring);

/* The lines around one, for a question. */
struct roll_agent_around {
    uint64_t question, epoch; /* whose number the asker gave; of the ring */
    size_t item;              /* likewise */
    bool said;                /* false: nothing can be said of it */
    struct roll_source_lines lines;
};
/*
 * Asks for the lines around one that the ring defines; nobody gets others. The answer is there later. False: the ring
 * defines no such line, nobody may read for it, or as much is being read as there may be.
 */
bool roll_agent_sources_ask(roll_agent_sources_t *sources, struct roll_agent_ring *ring, uint64_t question, size_t item,
                            const char *file, uint32_t line);
/* The next answer; false: none is there. */
bool roll_agent_sources_take(roll_agent_sources_t *sources, struct roll_agent_around *out);

/* What is known of a ring's lines (agent_ring.h); called when the ring is closed. */
void roll_sources_of_ring_destroy(struct roll_sources_of_ring **known);

#endif
