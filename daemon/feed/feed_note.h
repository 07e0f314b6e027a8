/*
 * feed_note.h: NOTE frames: what is in no ring, from an agent to the engine. docs/FRAME.md has their members.
 */
#ifndef ROLL_DAEMON_FEED_FEED_NOTE_H
#define ROLL_DAEMON_FEED_FEED_NOTE_H

#include "daemon/engine/engine.h"
#include "trace/frame.h"

#define ROLL_NOTE_FACTS      16u  /* facts that are read of one note; the facts beyond are counted */
#define ROLL_NOTE_TEXT_BYTES 160u /* bytes of one fact's text, with its end */

/* Decodes a NOTE frame and gives it to the engine. Bounded; does nothing else. Notes of an unknown kind are ignored. 0,
 * CORRUPT, NOMEM. */
int roll_feed_note(roll_engine_t *engine, const struct roll_frame *frame);

#endif
