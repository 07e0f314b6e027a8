/*
 * record.h: one record of a rank, on its way through the floors. Private to engine.c and record.c.
 */
#ifndef ROLL_ENGINE_RECORD_H
#define ROLL_ENGINE_RECORD_H

#include "daemon/engine/model/engine_state.h"

/* A record with a ticket that was not seen before; those before it have come or are lost. 0 or NOMEM. */
int record_fresh(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket);
/* An update of a record that was seen before. */
void record_grown(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket);

#endif
