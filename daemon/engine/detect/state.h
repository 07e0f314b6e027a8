/*
 * state.h: what a detector keeps of the engine, of a source, of a communicator, or of a member.
 *
 * The objects of the model know nothing of these states. Each object has one pointer, `state`. It is NULL until some
 * detector keeps something of the object; then it is a table with one place for each detector that keeps something of
 * such objects (detectors.def). A state is made, all zero, when its detector calls `_make_`, and is freed with its
 * object. What the state owns is freed before that by a hook of the detector (`source_fini` and so on). States of the
 * engine are made with the engine.
 *
 * Two simpler ways were rejected. One struct with the members of all detectors has a hundred members whose owner nobody
 * knows, and each of a million members of communicators pays for all of them. A table by object and detector has to be
 * searched on the path of records.
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_STATE_H
#define ROLL_DAEMON_ENGINE_DETECT_STATE_H

#include "daemon/engine/model/engine_state.h"

/* The place of a detector's state in the table of an object. A detector without such a state has its END one below its
 * place, so that it takes no place. */
#define STATE_PLACE(kind, name, keeps)                                                                                 \
    STATE_##kind##_##name, STATE_##kind##_##name##_END = STATE_##kind##_##name + (keeps)-1,
#define DETECTOR_TEMPLATE DETECTOR
enum state_of_engine {
#define DETECTOR(name, engine, source, comm, member) STATE_PLACE(ENGINE, name, engine)
#include "daemon/engine/detect/detectors.def"
#undef DETECTOR
    STATE_ENGINE_PLACES
};
enum state_of_source {
#define DETECTOR(name, engine, source, comm, member) STATE_PLACE(SOURCE, name, source)
#include "daemon/engine/detect/detectors.def"
#undef DETECTOR
    STATE_SOURCE_PLACES
};
enum state_of_comm {
#define DETECTOR(name, engine, source, comm, member) STATE_PLACE(COMM, name, comm)
#include "daemon/engine/detect/detectors.def"
#undef DETECTOR
    STATE_COMM_PLACES
};
enum state_of_member {
#define DETECTOR(name, engine, source, comm, member) STATE_PLACE(MEMBER, name, member)
#include "daemon/engine/detect/detectors.def"
#undef DETECTOR
    STATE_MEMBER_PLACES
};
#undef DETECTOR_TEMPLATE

/* The state at a place of the table. Where there is none, it is made, all zero; NULL: no memory. *table is made as
 * well. */
void *state_make(void ***table, uint32_t places, uint32_t at, size_t bytes);
/* Frees the table and the states in it. */
void state_free(void ***table, uint32_t places);

/*
 * Two functions for the state that detector `name` keeps of an object, struct name_source for one of a source:
 *
 *     struct name_source *name_of_source(const struct source *)     NULL: none has been made
 *     struct name_source *name_make_source(struct source *)         made if there is none; NULL: no memory
 *
 * It is one line, without a semicolon, in the detector's file or in the header that its files share. name_of_engine
 * never gives NULL: an engine whose states could not be made does not exist (detectors_open).
 */
#define STATE_OF_ENGINE(name) STATE_FUNCTIONS(name, engine, struct roll_engine, ENGINE)
#define STATE_OF_SOURCE(name) STATE_FUNCTIONS(name, source, struct source, SOURCE)
#define STATE_OF_COMM(name)   STATE_FUNCTIONS(name, comm, struct comm, COMM)
#define STATE_OF_MEMBER(name) STATE_FUNCTIONS(name, member, struct member, MEMBER)
#define STATE_FUNCTIONS(name, object, type, KIND)                                                                      \
    _Static_assert(STATE_##KIND##_##name##_END == STATE_##KIND##_##name,                                               \
                   "detectors.def does not say that " #name " keeps a state of this kind of object");                  \
    __attribute__((unused)) static inline struct name##_##object *name##_of_##object(const type *of)                   \
    {                                                                                                                  \
        return of->state ? of->state[STATE_##KIND##_##name] : NULL;                                                    \
    }                                                                                                                  \
    __attribute__((unused)) static inline struct name##_##object *name##_make_##object(type *of)                       \
    {                                                                                                                  \
        struct name##_##object *state = name##_of_##object(of);                                                        \
        return state ? state                                                                                           \
                     : state_make(&of->state, STATE_##KIND##_PLACES, STATE_##KIND##_##name,                            \
                                  sizeof(struct name##_##object));                                                     \
    }

#endif
