/*
 * sample.h: a verdict of which the tests of its printers change what they are about. To be included once.
 */
#ifndef ROLL_TESTS_DAEMON_VERDICT_SAMPLE_H
#define ROLL_TESTS_DAEMON_VERDICT_SAMPLE_H

#include "tests/trace/cmocka_all.h"

#include "daemon/verdict/verdict_text.h"

#include <stdlib.h>
#include <string.h>

static const char sample_text[] =
    "{\"schema\":\"rollcall.verdict/1\",\"number\":1,\"code\":\"count-mismatch\","
    "\"title\":\"different element counts in one collective\",\"family\":\"sequence\",\"certainty\":\"proven\","
    "\"culprits\":[3],\"culprits_text\":\"3\",\"comm\":{\"key\":\"0x00c0ffee\",\"label\":\"dp\",\"size\":8},\"seq\":17,"
    "\"field\":\"count\",\"step\":12,\"microbatch\":0,\"layer\":1,\"phase\":\"backward\",\"evidence\":["
    "{\"ranks\":[3],\"ranks_text\":\"3\",\"op\":\"AllReduce\",\"count\":512,\"dtype\":\"float32\",\"redop\":\"sum\","
    "\"root\":null,\"state\":\"entered\",\"callsite\":0},"
    "{\"ranks\":[0,1,2],\"ranks_text\":\"0-2,4-7\",\"op\":\"AllReduce\",\"count\":1024,\"dtype\":\"float32\","
    "\"redop\":\"sum\",\"root\":null,\"state\":\"returned\",\"callsite\":1}],\"callsites\":["
    "{\"ranks\":[3],\"frames\":[{\"function\":\"reduce_gradients\",\"file\":\"/src/train.c\",\"line\":88,"
    "\"module\":\"/x/train\",\"offset\":4096},{\"function\":\"main\",\"file\":\"/src/train.c\",\"line\":140,"
    "\"module\":\"/x/train\",\"offset\":4096}]},"
    "{\"ranks\":[0],\"frames\":[{\"function\":null,\"file\":null,\"line\":null,\"module\":\"/x/libtrain.so\","
    "\"offset\":4096}]}],\"waiting\":[0,1,2,4,5,6,7],\"waiting_text\":\"0-2,4-7\",\"remedy\":{\"name\":\"fill\","
    "\"text\":\"a rank without tokens walks its whole backward plan with exact zeros\","
    "\"command\":\"rollcall remedy on fill\"},\"remedied\":false,\"text\":\"Rank 3 reduces 512 elements where its "
    "seven peers reduce 1024; NCCL does not compare counts, so the peers wait until their own timeout.\","
    "\"job\":\"demo\",\"restart\":0}";

static inline json_t *sample_verdict(void)
{
    json_t *json = json_loads(sample_text, 0, NULL);
    assert_non_null(json);
    return json;
}

/* Prints a verdict into memory; the caller frees. */
static inline char *sample_print(const json_t *json, unsigned style, int want)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    assert_int_equal(roll_verdict_print(out, json, style), want);
    fclose(out);
    return text;
}

#endif
