/*
 * test_incident.c: the parts of a bundle that need no job: the image of a ring, bytes as text, who is concerned, what
 * is told of an environment, and names.
 */
#include "daemon/agent/agent_process.h"
#include "daemon/base/base64.h"
#include "daemon/base/log.h"
#include "daemon/console/file.h"
#include "daemon/console/incident/incident.h"
#include "daemon/store/ring_image.h"
#include "trace/err.h"
#include "trace/ring_write.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define ENOUGH (1u << 20)

/* A ring of 256 records to which n calls have been written. */
static void make_ring(struct roll_ring *ring, unsigned n)
{
    char path[] = "/tmp/rollcall-image-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    const struct roll_ring_params params = {.capacity = 256, .world_rank = 3, .world_size = 8, .job = "j"};
    assert_int_equal(roll_ring_create(path, &params, ring), 0);
    unlink(path);
    for (unsigned i = 0; i < n; i++) {
        uint64_t ticket;
        struct roll_record *r = roll_ring_reserve(ring, &ticket);
        assert_non_null(r);
        r->op = 1;
        r->count = i;
        roll_ring_publish(r, ticket, ROLL_STATE_ENTERED);
    }
}

static void image_holds_the_newest_records_and_says_what_is_gone(void **state)
{
    (void)state;
    struct roll_ring ring, view;
    struct roll_ring_image image;
    struct roll_record rec[256];
    uint8_t *data;
    size_t size;
    uint64_t next, lost = 0;
    make_ring(&ring, 1000);
    assert_int_equal(roll_ring_image_make(&ring, 100, ENOUGH, &image), 0);
    assert_int_equal(image.records, 64); /* the power below */
    assert_int_equal(image.head, 1000);
    assert_int_equal(roll_ring_image_open(image.bytes, image.used, &data, &size), 0);
    assert_int_equal(roll_ring_view(data, size, &view), 0);
    assert_int_equal(view.header->world_rank, 3);
    size_t n = roll_ring_read(&view, 0, rec, 256, &next, &lost);
    assert_int_equal(n, 64);
    assert_int_equal(lost, 1000 - 64);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(rec[i].count, 1000 - 64 + i);
    }
    free(data);
    free(image.bytes);
    roll_ring_close(&ring);
}

static void image_is_as_small_as_it_must_be(void **state)
{
    (void)state;
    struct roll_ring ring;
    struct roll_ring_image image;
    make_ring(&ring, 1000);
    assert_int_equal(roll_ring_image_make(&ring, 256, ENOUGH, &image), 0);
    assert_int_equal(image.records, 256);
    size_t whole = image.used;
    free(image.bytes);
    assert_int_equal(roll_ring_image_make(&ring, 256, whole - 1, &image), 0);
    assert_true(image.records < 256);
    assert_true(image.used < whole);
    free(image.bytes);
    assert_int_equal(roll_ring_image_make(&ring, 256, 16, &image), ROLL_E_SIZE);
    roll_ring_close(&ring);
}

static void image_that_is_damaged_is_refused(void **state)
{
    (void)state;
    struct roll_ring ring;
    struct roll_ring_image image;
    uint8_t *data;
    size_t size;
    make_ring(&ring, 300);
    assert_int_equal(roll_ring_image_make(&ring, 256, ENOUGH, &image), 0);
    for (size_t n = 0; n < image.used; n += 7) { /* cut */
        assert_true(roll_ring_image_open(image.bytes, n, &data, &size) < 0);
    }
    for (size_t i = 0; i < image.used; i++) { /* one byte is another: refused, or a ring all the same */
        image.bytes[i] ^= 0x55;
        if (roll_ring_image_open(image.bytes, image.used, &data, &size) == 0) {
            assert_int_equal(roll_ring_check(data, size), 0);
            free(data);
        }
        image.bytes[i] ^= 0x55;
    }
    free(image.bytes);
    roll_ring_close(&ring);
}

static void base64_gives_back_what_it_took(void **state)
{
    (void)state;
    uint8_t in[64], *out;
    size_t n;
    for (size_t i = 0; i < sizeof(in); i++) {
        in[i] = (uint8_t)(i * 37 + 250);
    }
    for (size_t i = 0; i <= sizeof(in); i++) {
        char *text = roll_base64_new(in, i);
        assert_int_equal(roll_base64_open(text, &out, &n), 0);
        assert_int_equal(n, i);
        assert_memory_equal(out, in, i);
        free(out);
        free(text);
    }
    char *text = roll_base64_new("rollcall", 8);
    assert_string_equal(text, "cm9sbGNhbGw=");
    free(text);
    static const char *const wrong[] = {
        "a", "ab", "abc", "ab=c", "====", "a===", "ab!d", "abc=abcd", "\xff\xff\xff\xff"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(roll_base64_open(wrong[i], &out, &n), ROLL_E_CORRUPT);
    }
}

static const char *told(const json_t *answer, const char *name)
{
    return json_string_value(json_object_get(json_object_get(answer, "variables"), name));
}

static void environment_tells_no_secret(void **state)
{
    (void)state;
    static const char environment[] =
        "NCCL_DEBUG=INFO\0HOME=/root\0NCCL_TOKEN=a\0CUDA_Secret_X=b\0TORCH_PASSWORD=c\0SLURM_JWT=d\0"
        "NCCL_A=http://u:p@h/x,https://v@i\0NCCL_B=x://no/at@all\0RANK=3\0NOEQUALS\0=x\0NCCL_EMPTY=\0NCCL_\xff=1\0"
        "NCCL_C=http://u:p,w@h u:p?w@i https://j/?token=k me@l m:n\0NCCL_D=u:p/w@o:1\0LD_PRELOAD=/a.so";
    json_t *answer = roll_process_variables(environment, sizeof(environment));
    assert_string_equal(told(answer, "NCCL_DEBUG"), "INFO");
    assert_string_equal(told(answer, "RANK"), "3");
    assert_string_equal(told(answer, "LD_PRELOAD"), "/a.so");
    assert_string_equal(told(answer, "NCCL_EMPTY"), "");
    assert_string_equal(told(answer, "NCCL_A"), "http://*@i");
    assert_string_equal(told(answer, "NCCL_B"), "x://*@all");
    assert_string_equal(told(answer, "NCCL_C"), "http://*@h *@i https://j/?* me@l m:n");
    assert_string_equal(told(answer, "NCCL_D"), "*@o:1");
    assert_null(told(answer, "HOME"));
    static const char *const hidden[] = {"NCCL_TOKEN", "CUDA_Secret_X", "TORCH_PASSWORD", "SLURM_JWT"};
    for (size_t i = 0; i < sizeof(hidden) / sizeof(hidden[0]); i++) {
        assert_string_equal(told(answer, hidden[i]), ROLL_PROCESS_HIDDEN);
    }
    json_decref(answer);
    char many[16384];
    size_t used = 0;
    for (int i = 0; i < 300; i++) {
        used += (size_t)snprintf(many + used, sizeof(many) - used, "NCCL_%d=%d", i, i) + 1;
    }
    answer = roll_process_variables(many, used);
    assert_int_equal(json_object_size(json_object_get(answer, "variables")), 256);
    assert_int_equal(json_integer_value(json_object_get(answer, "more")), 44);
    json_decref(answer);
}

static void check_chosen(const char *verdicts, const char *status, uint32_t most, const char *wanted)
{
    json_t *v = json_loads(verdicts, 0, NULL), *s = json_loads(status, 0, NULL);
    struct roll_rankset set = {0};
    char text[128] = "";
    assert_non_null(v);
    assert_non_null(s);
    assert_int_equal(roll_incident_choose(v, s, most, &set), 0);
    (void)roll_rankset_format(&set, text, sizeof(text));
    assert_string_equal(text, wanted);
    roll_rankset_fini(&set);
    json_decref(v);
    json_decref(s);
}

#define LARGE "{\"summary\":{\"ranks\":16384},\"groups\":[{\"rank\":0},{\"rank\":77}]}"

static void those_are_chosen_whom_the_findings_name(void **state)
{
    (void)state;
    check_chosen("[]", "{\"summary\":{\"ranks\":3},\"ranks\":[{\"rank\":0},{\"rank\":1},{\"rank\":2}]}", 64, "0-2");
    static const char *const waits[] = {"pending", "waits_for"}; /* the latter: of an older root */
    for (size_t i = 0; i < 2; i++) {
        char status[160];
        snprintf(status, sizeof(status),
                 "{\"summary\":{\"ranks\":3},\"ranks\":[{\"rank\":0},{\"rank\":1,\"%s\":2},{\"rank\":2}]}", waits[i]);
        check_chosen("[]", status, 1, "1");
    }
    static const char *const findings =
        "[{\"number\":1,\"certainty\":\"proven\",\"culprits\":[9000],\"waiting\":[1,2,3,4,5,6],"
        "\"evidence\":[{\"ranks\":[9000]},{\"ranks\":[1,2]}]},"
        "{\"number\":2,\"certainty\":\"note\",\"culprits\":[5000]},"
        "{\"number\":3,\"certainty\":\"suspected\",\"culprits\":[6000]},"
        "{\"number\":4,\"certainty\":\"proven\",\"culprits\":[7000],\"supersedes\":3}]";
    check_chosen(findings, LARGE, 1, "7000");
    check_chosen(findings, LARGE, 2, "7000,9000");
    check_chosen(findings, LARGE, 4, "1-2,7000,9000");
    check_chosen(findings, LARGE, 6, "1-4,7000,9000");
    check_chosen("[]", LARGE, 6, "0,77");
    check_chosen("[{\"number\":1,\"certainty\":\"proven\",\"culprits\":[-1,99999999999,\"x\"]}]", LARGE, 6, "0,77");
}

static void name_of_a_job_becomes_a_word(void **state)
{
    (void)state;
    char out[16];
    roll_bundle_word("../../etc/passwd\n", out, sizeof(out));
    assert_string_equal(out, "______etc_passw");
    roll_bundle_word("job-1_x", out, sizeof(out));
    assert_string_equal(out, "job-1_x");
}

static void bundles_of_two_jobs_never_begin_alike(void **state)
{
    (void)state;
    char long_one[120], long_two[120], begin[ROLL_BUNDLE_NAME];
    memset(long_one, 'x', sizeof(long_one));
    long_one[sizeof(long_one) - 1] = '\0';
    memcpy(long_two, long_one, sizeof(long_one));
    long_two[100] = 'y';
    roll_bundle_begins("job-1", 12, begin);
    assert_string_equal(begin, "incident-job-1.12-");
    const char *const jobs[] = {"a_b", "a/b", "a.b",   "a b",    "..",     "__",
                                "",    "job", "job.1", "job.1-", long_one, long_two};
    const size_t n = sizeof(jobs) / sizeof(jobs[0]);
    char all[12][ROLL_BUNDLE_NAME];
    for (size_t i = 0; i < n; i++) {
        roll_bundle_begins(jobs[i], 1, all[i]);
        assert_in_range(strlen(all[i]), 1, ROLL_BUNDLE_NAME - 32); /* the date and a number fit behind it */
        assert_int_equal(strspn(all[i], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"),
                         strlen(all[i]));
        for (size_t k = 0; k < i; k++) {
            assert_int_not_equal(strncmp(all[i], all[k], strlen(all[k])), 0);
            assert_int_not_equal(strncmp(all[i], all[k], strlen(all[i])), 0);
        }
    }
}

/* Begins and ends a bundle with one file in it; 0, or why not. */
static int bundle_of(const char *dir, uint32_t restart, const struct roll_bundle_bounds *bounds)
{
    struct roll_bundle b;
    int err = roll_bundle_begin(&b, dir, "job", restart, bounds, ENOUGH);
    if (err) {
        return err;
    }
    roll_bundle_text(&b, "file", "a file", "text\n", 5);
    return roll_bundle_end(&b);
}

static void bundles_of_a_run_are_three_and_those_of_others_do_not_count(void **state)
{
    (void)state;
    char dir[] = "/tmp/rollcall-bundles-XXXXXX";
    const struct roll_bundle_bounds keep = {.keep = 3}, most = {.keep = 3, .most = 5}, small = {.most_bytes = 29};
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(bundle_of(dir, 0, &keep), 0);
    }
    assert_int_equal(bundle_of(dir, 0, &keep), ROLL_E_LIMIT);  /* the first ones stay */
    assert_int_equal(bundle_of(dir, 1, &keep), 0);             /* another restart */
    assert_int_equal(bundle_of(dir, 10, &most), 0);            /* not one of restart 1 */
    assert_int_equal(bundle_of(dir, 1, &most), ROLL_E_LIMIT);  /* there are five of all */
    assert_int_equal(bundle_of(dir, 1, &small), ROLL_E_LIMIT); /* and 25 bytes of text */
    assert_int_equal(bundle_of(dir, 1, &keep), 0);
    assert_int_equal(bundle_of(dir, 1, &keep), 0);
    assert_int_equal(bundle_of(dir, 1, &keep), ROLL_E_LIMIT);
    assert_int_equal(roll_directory_remove(dir), 0);
}

static void tail_of_the_log_is_its_newest_lines(void **state)
{
    (void)state;
    char out[300], *line = out;
    roll_log_init(true); /* what is not written is kept all the same */
    for (int i = 0; i < 1000; i++) {
        roll_log(ROLL_LOG_INFO, "line %d of many, each another one", i);
    }
    roll_log_tail(out, sizeof(out));
    assert_non_null(strstr(out, "line 999 of many"));
    assert_null(strstr(out, "line 900 of many"));
    assert_true(strncmp(line, "rollcalld: ", 11) == 0);
    assert_int_equal(out[strlen(out) - 1], '\n');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(image_holds_the_newest_records_and_says_what_is_gone),
        cmocka_unit_test(image_is_as_small_as_it_must_be),
        cmocka_unit_test(image_that_is_damaged_is_refused),
        cmocka_unit_test(base64_gives_back_what_it_took),
        cmocka_unit_test(environment_tells_no_secret),
        cmocka_unit_test(those_are_chosen_whom_the_findings_name),
        cmocka_unit_test(name_of_a_job_becomes_a_word),
        cmocka_unit_test(bundles_of_two_jobs_never_begin_alike),
        cmocka_unit_test(bundles_of_a_run_are_three_and_those_of_others_do_not_count),
        cmocka_unit_test(tail_of_the_log_is_its_newest_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
