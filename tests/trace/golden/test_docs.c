/*
 * test_docs.c: docs/RING.md and docs/FRAME.md against the compiler, docs/VERDICTS.md against verdict.def.
 *
 * A table under "### struct NAME" must list every byte of the struct, in order, without a gap, with the compiler's
 * offsets and sizes; a table under "### enum NAME" every value and name.
 */
#include "tests/trace/cmocka_all.h"

#include "trace/compare.h"
#include "trace/control.h"
#include "trace/def.h"
#include "trace/frame.h"
#include "trace/ring.h"
#include "trace/verdict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct member {
    const char *of, *name;
    size_t offset, size;
};
#define M(type, name)                                                                                                  \
    {                                                                                                                  \
#type, #name, offsetof(struct type, name), sizeof(((struct type *)0)->name)                                    \
    }

static const struct member members[] = {
    M(roll_ring_header, magic),
    M(roll_ring_header, version),
    M(roll_ring_header, oldest),
    M(roll_ring_header, header_bytes),
    M(roll_ring_header, record_bytes),
    M(roll_ring_header, capacity),
    M(roll_ring_header, defs_offset),
    M(roll_ring_header, defs_bytes),
    M(roll_ring_header, records_offset),
    M(roll_ring_header, file_bytes),
    M(roll_ring_header, pid),
    M(roll_ring_header, world_rank),
    M(roll_ring_header, world_size),
    M(roll_ring_header, local_rank),
    M(roll_ring_header, restart),
    M(roll_ring_header, flags),
    M(roll_ring_header, start_ticks),
    M(roll_ring_header, epoch),
    M(roll_ring_header, boot_id),
    M(roll_ring_header, job),
    M(roll_ring_header, host),
    M(roll_ring_header, exe),
    M(roll_ring_header, reserved0),
    M(roll_ring_header, static_crc),
    M(roll_ring_header, pad0),
    M(roll_ring_header, head),
    M(roll_ring_header, pad1),
    M(roll_ring_header, defs_used),
    M(roll_ring_header, pad2),
    M(roll_ring_header, state),
    M(roll_ring_header, exit_status),
    M(roll_ring_header, finish_ns),
    M(roll_ring_header, pad3),
    M(roll_ring_header, clock_mono_ns),
    M(roll_ring_header, clock_real_ns),
    M(roll_ring_header, counted),
    M(roll_ring_header, pad4),
    M(roll_ring_header, losses),
    M(roll_ring_header, completion),
    M(roll_ring_header, pad5),
    M(roll_ring_header, done),
    M(roll_ring_header, graph_done),
    M(roll_ring_header, pad6),
    M(roll_record, seal),
    M(roll_record, enter_ns),
    M(roll_record, count),
    M(roll_record, seq),
    M(roll_record, group),
    M(roll_record, peer),
    M(roll_record, call_ns),
    M(roll_record, step),
    M(roll_record, comm),
    M(roll_record, stream),
    M(roll_record, callsite),
    M(roll_record, thread),
    M(roll_record, layer),
    M(roll_record, microbatch),
    M(roll_record, op),
    M(roll_record, dtype),
    M(roll_record, redop),
    M(roll_record, flags),
    M(roll_record, phase),
    M(roll_record, result),
    M(roll_record, aux),
    M(roll_def_head, seal),
    M(roll_def_head, bytes),
    M(roll_def_head, id),
    M(roll_def_head, reserved),
    M(roll_def_comm, key),
    M(roll_def_comm, parent_key),
    M(roll_def_comm, rank),
    M(roll_def_comm, nranks),
    M(roll_def_comm, color),
    M(roll_def_comm, child),
    M(roll_def_comm, origin),
    M(roll_def_comm, device),
    M(roll_def_comm, flags),
    M(roll_def_comm, label_bytes),
    M(roll_def_callsite, depth),
    M(roll_def_callsite, lines),
    M(roll_callsite_line, line),
    M(roll_callsite_line, folded),
    M(roll_def_module, start),
    M(roll_def_module, end),
    M(roll_def_module, bias),
    M(roll_def_module, build_id_bytes),
    M(roll_def_module, build_id),
    M(roll_def_module, path_bytes),
    M(roll_def_module, reserved),
    M(roll_def_stream, handle),
    M(roll_def_thread, tid),
    M(roll_def_thread, name_bytes),
    M(roll_def_layer, name_bytes),
    M(roll_def_layer, reserved),
    M(roll_def_graph, first_ticket),
    M(roll_def_graph, last_ticket),
    M(roll_def_graph, calls),
    M(roll_def_graph, parts),
    M(roll_graph_part, hash),
    M(roll_graph_part, collectives),
    M(roll_graph_part, comm),
    M(roll_graph_part, p2p),
    M(roll_def_source, path_bytes),
    M(roll_def_source, reserved),
    M(roll_def_line, source),
    M(roll_def_line, line),
    M(roll_def_line, flags),
    M(roll_def_line, function_bytes),
    M(roll_def_stand, lines),
    M(roll_def_stand, reserved),
    M(roll_def_text, text_bytes),
    M(roll_def_text, reserved),
    M(roll_def_sites, sites),
    M(roll_def_sites, first),
    M(roll_site_number, whole),
    M(roll_site_number, near),
    M(roll_def_name, count),
    M(roll_def_name, kind),
    M(roll_def_name, size),
    M(roll_def_name, line),
    M(roll_def_name, label_bytes),
    M(roll_def_name, text_bytes),
    M(roll_def_name, file_bytes),
    M(roll_def_name, function_bytes),
    M(roll_def_name, reserved),
    M(roll_control, magic),
    M(roll_control, version),
    M(roll_control, oldest),
    M(roll_control, bytes),
    M(roll_control, generation),
    M(roll_control, policy),
    M(roll_control, on),
    M(roll_control, auto_local),
    M(roll_control, agent_pid),
    M(roll_control, agent_seen_ns),
    M(roll_control, policy_told),
    M(roll_control, pad0),
    M(roll_control, layer),
    M(roll_control, group),
    M(roll_control, pad1),
    M(roll_control_change, level),
    M(roll_control_change, action),
    M(roll_control_change, mask),
    M(roll_control_change, layer),
    M(roll_control_change, comm_key),
    M(roll_compare, magic),
    M(roll_compare, version),
    M(roll_compare, oldest),
    M(roll_compare, bytes),
    M(roll_compare, cells),
    M(roll_compare, cell_bytes),
    M(roll_compare, pad0),
    M(roll_compare, cell),
    M(roll_compare_cell, word),
    M(roll_compare_cell, check),
    M(roll_compare_cell, moment),
    M(roll_compare_cell, call),
    M(roll_compare_call, key),
    M(roll_compare_call, count),
    M(roll_compare_call, seq),
    M(roll_compare_call, pid),
    M(roll_compare_call, peer),
    M(roll_compare_call, world),
    M(roll_compare_call, rank),
    M(roll_compare_call, op),
    M(roll_compare_call, dtype),
    M(roll_compare_call, redop),
    M(roll_compare_call, flags),
    M(roll_compare_call, before),
    M(roll_compare_call, members),
    M(roll_compare_call, callsite),
    M(roll_compare_call, messages),
    M(roll_compare_call, pad0),
    M(roll_frame_head, magic),
    M(roll_frame_head, major),
    M(roll_frame_head, minor),
    M(roll_frame_head, type),
    M(roll_frame_head, flags),
    M(roll_frame_head, hdr_len),
    M(roll_frame_head, rec_size),
    M(roll_frame_head, count),
    M(roll_frame_head, payload),
    M(roll_frame_head, seq),
    M(roll_frame_head, stream),
    M(roll_frame_head, first),
    M(roll_frame_head, crc),
    M(roll_frame_head, reserved),
    M(roll_frame_status, head),
    M(roll_frame_status, defs_used),
    M(roll_frame_status, clock_mono_ns),
    M(roll_frame_status, clock_real_ns),
    M(roll_frame_status, finish_ns),
    M(roll_frame_status, proc_state),
    M(roll_frame_status, exit_status),
    M(roll_frame_status, losses),
    M(roll_frame_last, calls),
    M(roll_frame_last, comm),
    M(roll_frame_last, enter_ns),
    M(roll_frame_last, seq),
    M(roll_frame_last, comms),
    M(roll_frame_last, op),
    M(roll_frame_last, inside),
    M(roll_frame_last, pad),
    M(roll_frame_ack, next_ticket),
    M(roll_frame_ack, defs_offset),
    M(roll_frame_sight, heard),
    M(roll_frame_sight, starved),
    M(roll_frame_sight, reserved),
    M(roll_frame_settings, stall_ns),
    M(roll_frame_settings, suspect_ns),
    M(roll_frame_settings, policy),
    M(roll_frame_settings, reserved),
    M(roll_frame_heartbeat, unheard),
    M(roll_frame_heartbeat, agents),
    M(roll_frame_heartbeat, made_ns),
    M(roll_frame_heartbeat, late_ns),
    M(roll_frame_heartbeat, waited_ns),
    M(roll_frame_heartbeat, look_ns),
    M(roll_frame_heartbeat, below_ns),
    M(roll_frame_heartbeat, missed_ns),
    M(roll_frame_heartbeat, refused),
    M(roll_frame_excerpt, history),
    M(roll_frame_excerpt, most),
    M(roll_frame_excerpt, follow),
    M(roll_frame_excerpt, wants),
    M(roll_frame_excerpt, scope),
    M(roll_frame_want, key),
    M(roll_frame_want, low),
    M(roll_frame_want, classes),
    M(roll_frame_want, step),
    M(roll_frame_want, high),
    M(roll_frame_place, comm),
    M(roll_frame_place, op),
    M(roll_frame_place, sure),
    M(roll_frame_place, peer),
    M(roll_frame_place, next),
    M(roll_frame_place, made),
    M(roll_frame_control, job),
    M(roll_frame_control, change),
    M(roll_frame_control, restart),
    M(roll_frame_control, reserved),
};
#define MEMBERS (sizeof(members) / sizeof(members[0]))

static const struct {
    const char *name;
    size_t bytes;
    const char *file;
} structs[] = {
#define S(type, file)                                                                                                  \
    {                                                                                                                  \
#type, sizeof(struct type), file                                                                               \
    }
    S(roll_ring_header, "RING"),     S(roll_record, "RING"),           S(roll_def_head, "RING"),
    S(roll_def_comm, "RING"),        S(roll_def_callsite, "RING"),     S(roll_def_module, "RING"),
    S(roll_def_stream, "RING"),      S(roll_def_thread, "RING"),       S(roll_def_layer, "RING"),
    S(roll_def_graph, "RING"),       S(roll_graph_part, "RING"),       S(roll_callsite_line, "RING"),
    S(roll_def_source, "RING"),      S(roll_def_line, "RING"),         S(roll_control, "RING"),
    S(roll_def_stand, "RING"),       S(roll_def_name, "RING"),         S(roll_def_text, "RING"),
    S(roll_control_change, "RING"),  S(roll_compare, "RING"),          S(roll_compare_cell, "RING"),
    S(roll_compare_call, "RING"),    S(roll_frame_head, "FRAME"),      S(roll_frame_status, "FRAME"),
    S(roll_frame_ack, "FRAME"),      S(roll_frame_sight, "FRAME"),     S(roll_frame_control, "FRAME"),
    S(roll_frame_settings, "FRAME"), S(roll_frame_heartbeat, "FRAME"), S(roll_frame_excerpt, "FRAME"),
    S(roll_def_sites, "RING"),       S(roll_site_number, "RING"),      S(roll_frame_want, "FRAME"),
    S(roll_frame_place, "FRAME"),    S(roll_frame_last, "FRAME"),
#undef S
};

struct constant {
    const char *of, *name;
    long value;
};
#define C(type, prefix, name)                                                                                          \
    {                                                                                                                  \
#type, #name, prefix##name                                                                                     \
    }
static const struct constant constants[] = {
    C(roll_ring_state, ROLL_RING_, ATTACHED),
    C(roll_ring_state, ROLL_RING_, FINISHED),
    C(roll_ring_state, ROLL_RING_, DISABLED),
    C(roll_loss, ROLL_LOSS_, OVERRUN),
    C(roll_loss, ROLL_LOSS_, LAPPED),
    C(roll_loss, ROLL_LOSS_, DEFS_FULL),
    C(roll_loss, ROLL_LOSS_, COMM_UNKNOWN),
    C(roll_loss, ROLL_LOSS_, CALLSITE),
    C(roll_loss, ROLL_LOSS_, STREAM),
    C(roll_loss, ROLL_LOSS_, SIGNAL),
    C(roll_loss, ROLL_LOSS_, WIRE),
    C(roll_loss, ROLL_LOSS_, GRAPH),
    C(roll_loss, ROLL_LOSS_, MOE_KIND),
    C(roll_loss, ROLL_LOSS_, VERDICT),
    C(roll_loss, ROLL_LOSS_, CORRUPT),
    C(roll_loss, ROLL_LOSS_, NO_ROOM),
    C(roll_completion, ROLL_COMPLETION_, OFF),
    C(roll_completion, ROLL_COMPLETION_, WRITE),
    C(roll_completion, ROLL_COMPLETION_, COUNTER),
    C(roll_completion, ROLL_COMPLETION_, EVENT),
    C(roll_state, ROLL_STATE_, EMPTY),
    C(roll_state, ROLL_STATE_, ENTERED),
    C(roll_state, ROLL_STATE_, RETURNED),
    C(roll_state, ROLL_STATE_, COMPLETE),
    C(roll_record_flag, ROLL_FLAG_, CAPTURED),
    C(roll_record_flag, ROLL_FLAG_, IN_GROUP),
    C(roll_record_flag, ROLL_FLAG_, INPLACE),
    C(roll_record_flag, ROLL_FLAG_, NONBLOCKING),
    C(roll_record_flag, ROLL_FLAG_, BYTES),
    C(roll_record_flag, ROLL_FLAG_, REPLAYED),
    C(roll_record_flag, ROLL_FLAG_, PLUGIN),
    C(roll_record_flag, ROLL_FLAG_, UNSIZED),
    C(roll_def_type, ROLL_DEF_, COMM),
    C(roll_def_type, ROLL_DEF_, CALLSITE),
    C(roll_def_type, ROLL_DEF_, MODULE),
    C(roll_def_type, ROLL_DEF_, STREAM),
    C(roll_def_type, ROLL_DEF_, THREAD),
    C(roll_def_type, ROLL_DEF_, LAYER),
    C(roll_def_type, ROLL_DEF_, GRAPH),
    C(roll_def_type, ROLL_DEF_, SOURCE),
    C(roll_def_type, ROLL_DEF_, LINE),
    C(roll_def_type, ROLL_DEF_, STAND),
    C(roll_def_type, ROLL_DEF_, TEXT),
    C(roll_def_type, ROLL_DEF_, NAME),
    C(roll_def_type, ROLL_DEF_, SITES),
    C(roll_frame_type, ROLL_FRAME_, HELLO),
    C(roll_frame_type, ROLL_FRAME_, WELCOME),
    C(roll_frame_type, ROLL_FRAME_, RING),
    C(roll_frame_type, ROLL_FRAME_, DEFS),
    C(roll_frame_type, ROLL_FRAME_, RECORDS),
    C(roll_frame_type, ROLL_FRAME_, UPDATES),
    C(roll_frame_type, ROLL_FRAME_, STATUS),
    C(roll_frame_type, ROLL_FRAME_, HEARTBEAT),
    C(roll_frame_type, ROLL_FRAME_, ACK),
    C(roll_frame_type, ROLL_FRAME_, CONTROL),
    C(roll_frame_type, ROLL_FRAME_, QUERY),
    C(roll_frame_type, ROLL_FRAME_, REPLY),
    C(roll_frame_type, ROLL_FRAME_, VERDICT),
    C(roll_frame_type, ROLL_FRAME_, ERROR),
    C(roll_frame_type, ROLL_FRAME_, TICK),
    C(roll_frame_type, ROLL_FRAME_, BYE),
    C(roll_frame_type, ROLL_FRAME_, ASK),
    C(roll_frame_type, ROLL_FRAME_, ANSWER),
    C(roll_frame_type, ROLL_FRAME_, PACK),
    C(roll_frame_type, ROLL_FRAME_, NOTE),
    C(roll_frame_type, ROLL_FRAME_, SIGHT),
    C(roll_frame_type, ROLL_FRAME_, SETTINGS),
    C(roll_frame_type, ROLL_FRAME_, DIGEST),
    C(roll_frame_type, ROLL_FRAME_, EXCERPT),
    C(roll_frame_type, ROLL_FRAME_, PLACE),
};
#define CONSTANTS (sizeof(constants) / sizeof(constants[0]))

static char *load(const char *name)
{
    static char text[128 * 1024];
    char path[64];
    snprintf(path, sizeof(path), "docs/%s.md", name);
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    size_t n = fread(text, 1, sizeof(text) - 1, in);
    fclose(in);
    assert_true(n > 0 && n < sizeof(text) - 1);
    text[n] = '\0';
    return text;
}

/* The first row of the table under "### kind name", behind its head; fails when there is none. */
static const char *find_table(const char *text, const char *kind, const char *name)
{
    char heading[128];
    snprintf(heading, sizeof(heading), "\n### %s %s\n", kind, name);
    const char *section = strstr(text, heading);
    if (section == NULL) {
        fail_msg("no section \"### %s %s\"", kind, name);
    }
    const char *next = strstr(section + 1, "\n#");
    const char *table = strstr(section, "\n|---");
    assert_non_null(table);
    assert_true(next == NULL || table < next);
    return strchr(table + 1, '\n') + 1;
}

static const char *next_row(const char *row)
{
    return strchr(row, '\n') + 1;
}

static void every_struct_is_documented_byte_for_byte(void **state)
{
    (void)state;
    size_t checked = 0;
    for (size_t s = 0; s < sizeof(structs) / sizeof(structs[0]); s++) {
        const char *row = find_table(load(structs[s].file), "struct", structs[s].name);
        size_t end = 0;
        for (; *row == '|'; row = next_row(row)) {
            size_t offset;
            size_t size;
            char name[64];
            if (sscanf(row, "| %zu | %zu | `%63[^`]` |", &offset, &size, name) != 3) {
                fail_msg("%s: cannot read the row: %.60s", structs[s].name, row);
            }
            assert_int_equal(offset, end);
            size_t i = 0;
            while (i < MEMBERS && (strcmp(members[i].of, structs[s].name) != 0 || strcmp(members[i].name, name) != 0)) {
                i++;
            }
            if (i == MEMBERS || members[i].offset != offset || members[i].size != size) {
                fail_msg("struct %s: `%s` is not at offset %zu with %zu bytes", structs[s].name, name, offset, size);
            }
            end += size;
            checked++;
        }
        assert_int_equal(end, structs[s].bytes);
    }
    assert_int_equal(checked, MEMBERS);
}

static void every_constant_is_documented(void **state)
{
    (void)state;
    for (size_t c = 0; c < CONSTANTS;) {
        const char *of = constants[c].of;
        const char *row = find_table(load(strcmp(of, "roll_frame_type") == 0 ? "FRAME" : "RING"), "enum", of);
        for (; *row == '|'; row = next_row(row), c++) {
            long value;
            char name[64];
            assert_int_equal(sscanf(row, "| %ld | `%63[^`]` |", &value, name), 2);
            assert_true(c < CONSTANTS);
            assert_string_equal(constants[c].of, of);
            assert_string_equal(constants[c].name, name);
            assert_int_equal(constants[c].value, value);
        }
        assert_true(c == CONSTANTS || strcmp(constants[c].of, of) != 0);
    }
}

static void every_verdict_has_a_section_and_every_section_a_verdict(void **state)
{
    (void)state;
    static const struct {
        unsigned number;
        const char *code, *title;
    } rows[] = {
#define ROLL_VERDICT_ROW(name, number, code, family, title) {number, code, title},
#include "trace/verdict.def"
#undef ROLL_VERDICT_ROW
    };
    static const char *const parts[] = {"\n**Means.**", "\n**Certainty.**", "\n**Example.**", "\n**Do.**"};
    const char *text = load("VERDICTS");
    size_t i = 0;
    for (const char *p = strstr(text, "\n### "); p != NULL; p = strstr(p + 1, "\n### "), i++) {
        char code[64];
        unsigned number;
        assert_int_equal(sscanf(p, "\n### `%63[^`]` (%u)", code, &number), 2);
        assert_true(i < sizeof(rows) / sizeof(rows[0]));
        assert_string_equal(code, rows[i].code);
        assert_int_equal(number, rows[i].number);
        const char *end = strstr(p + 1, "\n### ");
        end = end != NULL ? end : text + strlen(text);
        const char *title = strstr(p, rows[i].title);
        assert_true(title != NULL && title < end);
        for (size_t part = 0; part < 4; part++) {
            const char *found = strstr(p, parts[part]);
            if (found == NULL || found > end) {
                fail_msg("docs/VERDICTS.md: %s lacks %s", code, parts[part] + 1);
            }
        }
    }
    assert_int_equal(i, sizeof(rows) / sizeof(rows[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_struct_is_documented_byte_for_byte),
        cmocka_unit_test(every_constant_is_documented),
        cmocka_unit_test(every_verdict_has_a_section_and_every_section_a_verdict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
