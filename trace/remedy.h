/*
 * remedy.h: remedy bits (remedy.def) and the policy that decides who may switch them.
 */
#ifndef ROLL_TRACE_REMEDY_H
#define ROLL_TRACE_REMEDY_H

#include <stdint.h>

enum roll_remedy {
#define ROLL_REMEDY_ROW(name, bit, label, scope, text) ROLL_REMEDY_##name = 1u << (bit),
#include "common/remedy.def"
#undef ROLL_REMEDY_ROW
};

enum roll_policy {
    ROLL_POLICY_OBSERVE = 0, /* say what is wrong and which remedy would help; switch nothing */
    ROLL_POLICY_ADVISE = 1,  /* the explanation also says the command that switches it on */
    ROLL_POLICY_AUTO = 2,    /* local remedies act at once where a hazard is met; the root switches symmetric ones */
};

/* "fill", "pad"; "?" for an unknown bit. Any thread; static storage. */
const char *roll_remedy_name(uint32_t bit);
/* One sentence that says what the remedy does. */
const char *roll_remedy_text(uint32_t bit);
/* The bit with this label; 0 when there is none. */
uint32_t roll_remedy_by_name(const char *label);
/* The bits of all LOCAL remedies. */
uint32_t roll_remedy_local(void);
/* The bits of all remedies. Any thread. */
uint32_t roll_remedy_all(void);
/* "observe", "advise", "auto". */
const char *roll_policy_name(unsigned policy);
/* The policy with this name into *policy; 0 or ROLL_E_ARG. */
int roll_policy_by_name(const char *name, enum roll_policy *policy);

#endif
