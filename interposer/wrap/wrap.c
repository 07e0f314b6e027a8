/*
 * wrap.c: the generated wrappers: every CALL and PASS row of api.def becomes one exported function.
 *
 * The result of the real function is returned unchanged, whatever happens to the record. A function that the loaded
 * NCCL does not have returns ncclInvalidUsage; the application would otherwise have failed to link.
 * Compiled once for each set of api.h: nothing here may be global but the wrappers.
 */
#include "interposer/wrap/call.h"

/* The two buffers of a call, which show whether it is in place. Operations without two buffers never ask. */
#define sendbuff_of_NEVER        NULL
#define recvbuff_of_NEVER        NULL
#define sendbuff_of_ALWAYS       NULL
#define recvbuff_of_ALWAYS       NULL
#define sendbuff_of_SAME         sendbuff
#define recvbuff_of_SAME         recvbuff
#define sendbuff_of_SEND_AT_RANK sendbuff
#define recvbuff_of_SEND_AT_RANK recvbuff
#define sendbuff_of_RECV_AT_RANK sendbuff
#define recvbuff_of_RECV_AT_RANK recvbuff
#define sendbuff_of_SEND_AT_ROOT sendbuff
#define recvbuff_of_SEND_AT_ROOT recvbuff
#define sendbuff_of_RECV_AT_ROOT sendbuff
#define recvbuff_of_RECV_AT_ROOT recvbuff

/* The communicator among the arguments of a PASS row, which does not name one: the first three arguments are looked at,
 * and the last of five (ncclRedOpCreatePreMulSum). NULL when there is none. */
#define COMM_OR(x, rest)                    _Generic((x), ncclComm_t : (x), default : (rest))
#define COMM_PICK(zero, a, b, c, d, e, ...) COMM_OR(a, COMM_OR(b, COMM_OR(c, COMM_OR(e, (ncclComm_t)NULL))))
#define COMM_AMONG(...)                     COMM_PICK(0, ##__VA_ARGS__, 0, 0, 0, 0, 0, 0)

/* The function that a PASS row's result goes through on its way to the application: none, except for the names listed
 * here. */
#define VIA_ncclGetLastError ~, last_error
#define SECOND(a, b, ...)    b
#define SECOND_OF(...)       SECOND(__VA_ARGS__)
#define VIA(name)            SECOND_OF(VIA_##name, , ~)

static inline const char *last_error(const char *real)
{
    return roll_failfast_last_error(ROLL_SET, real);
}

#define ROLL_API_CALL(id, name, params, args, op_, class_, flags_, inplace_, count_, dtype_, redop_, peer_, comm_,     \
                      stream_)                                                                                         \
    ROLL_WRAPPER ncclResult_t name params ROLL_LABEL(name);                                                            \
    ROLL_OWN_WRAPPER(name)                                                                                             \
    ROLL_WRAPPER ncclResult_t name params                                                                              \
    {                                                                                                                  \
        typedef ncclResult_t(*real_t) params;                                                                          \
        static const struct roll_kind kind = {ROLL_OP_##op_, ROLL_CLASS_##class_, flags_, ROLL_INPLACE_##inplace_};    \
        struct roll_thread *t = &roll_thread_self;                                                                     \
        real_t real = ROLL_REAL(name, real_t);                                                                         \
        if (ROLL_UNLIKELY(real == NULL)) {                                                                             \
            return roll_api_absent(ROLL_SET, id);                                                                      \
        }                                                                                                              \
        if (!roll_wanted(t)) {                                                                                         \
            return real args;                                                                                          \
        }                                                                                                              \
        struct roll_call call;                                                                                         \
        roll_enter(t, &call, &kind, sendbuff_of_##inplace_, recvbuff_of_##inplace_, count_, (int)(dtype_),             \
                   (int)(redop_), peer_, comm_, stream_, ROLL_PC, ROLL_FRAME);                                         \
        if (ROLL_UNLIKELY(call.refused)) {                                                                             \
            roll_leave(t, &call, roll_failfast_result());                                                              \
            return roll_failfast_refused(t, ROLL_PC, ROLL_FRAME);                                                      \
        }                                                                                                              \
        ncclResult_t result = real args;                                                                               \
        roll_leave(t, &call, (int)result);                                                                             \
        return result;                                                                                                 \
    }
#define ROLL_API_LIFE(id, name, ...)
#define ROLL_API_PASS(id, ret, name, params, args, absent)                                                             \
    ROLL_WRAPPER ret name params ROLL_LABEL(name);                                                                     \
    ROLL_OWN_WRAPPER(name)                                                                                             \
    ROLL_WRAPPER ret name params                                                                                       \
    {                                                                                                                  \
        typedef ret(*real_t) params;                                                                                   \
        real_t real = ROLL_REAL(name, real_t);                                                                         \
        bool ended = roll_failfast_aborted(COMM_AMONG args);                                                           \
        if (ROLL_UNLIKELY(real == NULL || ended)) {                                                                    \
            ncclResult_t ABSENT = ended ? ncclInvalidUsage : roll_api_absent(ROLL_SET, id);                            \
            (void)ABSENT;                                                                                              \
            return VIA(name)(absent);                                                                                  \
        }                                                                                                              \
        return VIA(name)(real args);                                                                                   \
    }
#define ROLL_API_JUMP(id, name)
#include "interposer/wrap/api.def"
