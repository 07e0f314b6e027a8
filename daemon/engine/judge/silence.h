/*
 * silence.h: what silence.c (what is explained) and silence_end.c (until when) share.
 */
#ifndef ROLL_DAEMON_ENGINE_JUDGE_SILENCE_H
#define ROLL_DAEMON_ENGINE_JUDGE_SILENCE_H

#include "daemon/engine/judge/judge.h"

/* The record is that of a collective or a message. */
bool silence_is_call(const struct roll_record *rec);
/* This call of m lies at or behind the place of the trouble. */
bool silence_is_beyond(const struct member *m, const struct source *s, const struct roll_record *rec);
/* The host came back from this wait, and what the host waited for had gone well. */
bool silence_is_good_wait(const struct roll_record *rec);
/* Some call of m at or behind the place of the trouble was made before `wait`, which covers it. */
bool silence_covers(const struct source *s, const struct member *m, const struct roll_record *wait);

#endif
