/*
 * bench_tp.h: an LTTng-UST tracepoint with the fields of one record, for the comparison in roll_bench. The macros and
 * the repeated inclusion are LTTng-UST's own form.
 */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER rollcall_bench

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "tests/interposer/bench_tp.h"

#if !defined(ROLL_TESTS_BENCH_TP_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define ROLL_TESTS_BENCH_TP_H

#include "trace/record.h"

#include <lttng/tracepoint.h>

LTTNG_UST_TRACEPOINT_EVENT(
    rollcall_bench, call, LTTNG_UST_TP_ARGS(const struct roll_record *, rec),
    LTTNG_UST_TP_FIELDS(
        lttng_ust_field_integer(uint64_t, enter_ns, rec->enter_ns) lttng_ust_field_integer(uint64_t, count, rec->count)
            lttng_ust_field_integer(uint32_t, seq, rec->seq) lttng_ust_field_integer(uint32_t, group, rec->group)
                lttng_ust_field_integer(int32_t, peer, rec->peer)
                    lttng_ust_field_integer(uint32_t, call_ns, rec->call_ns) lttng_ust_field_integer(uint32_t, step,
                                                                                                     rec->step)
                        lttng_ust_field_integer(uint16_t, comm, rec->comm) lttng_ust_field_integer(uint16_t, stream,
                                                                                                   rec->stream)
                            lttng_ust_field_integer(uint16_t, callsite, rec->callsite)
                                lttng_ust_field_integer(uint16_t, thread, rec->thread)
                                    lttng_ust_field_integer(uint16_t, layer, rec->layer)
                                        lttng_ust_field_integer(uint16_t, microbatch, rec->microbatch)
                                            lttng_ust_field_integer(uint8_t, op, rec->op)
                                                lttng_ust_field_integer(uint8_t, dtype, rec->dtype)
                                                    lttng_ust_field_integer(uint8_t, redop, rec->redop)
                                                        lttng_ust_field_integer(uint8_t, flags, rec->flags)
                                                            lttng_ust_field_integer(uint8_t, phase, rec->phase)
                                                                lttng_ust_field_integer(uint8_t, result, rec->result)
                                                                    lttng_ust_field_integer(uint16_t, aux, rec->aux)))
#endif

#include <lttng/tracepoint-event.h>
