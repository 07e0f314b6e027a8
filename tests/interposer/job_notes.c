/*
 * job_notes.c: modes in which a job says something of itself: to moe_core's observers, by names of communicators, and
 * by ranges and marks of NVTX.
 */
#include "moe_core/include/moe/observe.h"
#include "tests/interposer/job.h"
#include "tests/interposer/nvtx.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

int job_mode_moe(void)
{
    typedef void (*observe_t)(const struct moe_event *);
    typedef uint32_t (*remedies_t)(void *, uint32_t, uint32_t);
    observe_t observe = (observe_t)dlsym(RTLD_DEFAULT, "moe_observe");
    remedies_t remedies = (remedies_t)dlsym(RTLD_DEFAULT, "moe_remedies");
    CHECK(observe != NULL && remedies != NULL);
    ncclComm_t comm = job_comm(0, 2);
    struct moe_event event = {.size = sizeof(event),
                              .kind = MOE_EV_COUNTS,
                              .phase = 1,
                              .step = 70,
                              .microbatch = 2,
                              .layer = 3,
                              .peer = 4,
                              .aux = 70000,
                              .count = 5,
                              .count2 = UINT64_C(1) << 40,
                              .comm = comm};
    observe(&event);
    CHECK(ncclAllReduce(job_buffer, job_buffer, 1, 7, 0, comm, NULL) == ncclSuccess);
    event.kind = MOE_EV_OBLIGE;
    event.aux = 6;
    event.phase = 2;
    observe(&event);
    event.kind = 200; /* unknown: not recorded, but counted */
    observe(&event);
    /* Another thread, which has had no event of its own, gets that of the process. */
    struct job_caller caller = {comm, 2, 1};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, job_call_in_thread, &caller) == 0);
    pthread_join(thread, NULL);
    printf("%u %u %u %u\n", remedies(comm, 3, 0), remedies(comm, 4, 0), remedies(NULL, 4, 1), remedies(comm, 4, 1));
    return 0;
}

/* What rollcall.torch does: steps, and names of what collectives carry. */
int job_mode_names(void)
{
    typedef void (*step_t)(uint32_t);
    typedef void (*name_t)(uint32_t, uint64_t, uint32_t, const char *, const char *, const char *, const char *,
                           uint32_t);
    typedef void (*observe_t)(const struct moe_event *);
    step_t step = (step_t)dlsym(RTLD_DEFAULT, "rollcall_step");
    name_t name = (name_t)dlsym(RTLD_DEFAULT, "rollcall_name");
    observe_t observe = (observe_t)dlsym(RTLD_DEFAULT, "moe_observe");
    CHECK(step != NULL && name != NULL && observe != NULL);
    char longer[1000];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    ncclComm_t comm = job_comm(0, 2);
    step(7);
    CHECK(ncclAllReduce(job_buffer, job_buffer, 1, 7, 0, comm, NULL) == ncclSuccess);
    struct job_caller caller = {comm, 2, 1};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, job_call_in_thread, &caller) == 0);
    pthread_join(thread, NULL);
    name(2, 25, 2, "0", "bucket 3", NULL, NULL, 0);
    name(1, 0, 2, "0", "dp", "/x/train.py", longer, 91);
    name(9, 0, 2, "0", "of no kind", NULL, NULL, 0);
    struct moe_event event = {
        .size = sizeof(event), .kind = MOE_EV_COUNTS, .step = 70, .layer = UINT16_MAX, .peer = -1, .comm = comm};
    observe(&event);
    step(8); /* moe_core counts here */
    CHECK(ncclAllReduce(job_buffer, job_buffer, 1, 7, 0, comm, NULL) == ncclSuccess);
    return 0;
}

/* A reduction, whose count tells the test which step it must carry: 1000 + step; 999: none. */
static bool reduces(ncclComm_t comm, size_t count)
{
    return ncclAllReduce(job_buffer, job_buffer, count, 7, 0, comm, NULL) == ncclSuccess;
}

static nvtxEventAttributes_t event_of(const char *text)
{
    nvtxEventAttributes_t event = {.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE};
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = text;
    return event;
}

/* The ways in which NVTX names a step, and names that are none. */
int job_mode_marks(void)
{
    typedef void (*step_by_t)(uint32_t, uint32_t);
    step_by_t step_by = (step_by_t)dlsym(RTLD_DEFAULT, "rollcall_step_by");
    ncclComm_t comm = job_comm(0, 2);
    CHECK(step_by != NULL && reduces(comm, 999));
    static const char *const none[] = {"step",          "stepping 4", "step 0.5",     "optimizer step 9", "",
                                       "micro-step 12", "step four",  "step 12beta3", "step 12345678901", "train"};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        nvtxMarkA(none[i]);
    }
    CHECK(reduces(comm, 999));
    nvtxMarkA("ProfilerStep#70"); /* a profiler's count is the worst: what comes next beats it */
    CHECK(reduces(comm, 1070));
    CHECK(nvtxRangePushA("train_step") == -2 && reduces(comm, 1000));
    CHECK(nvtxRangePop() == -2 && reduces(comm, 1000)); /* until the next one begins */
    CHECK(nvtxRangePushA("Train Step") == -2 && reduces(comm, 1001));
    nvtxMarkA("iteration"); /* another name that counts, beside it: not taken */
    CHECK(reduces(comm, 1001));
    step_by(40, 3); /* an optimizer's steps beat names that are counted */
    CHECK(nvtxRangePushA("train_step") == -2 && reduces(comm, 1040));
    CHECK(nvtxRangePushA("Step #17/1000") == -2 && reduces(comm, 1017));
    CHECK(nvtxRangePushW(L"step=18") == -2 && reduces(comm, 1018));
    nvtxEventAttributes_t event = event_of("step_19_forward");
    CHECK(nvtxRangePushEx(&event) == -2 && reduces(comm, 1019));
    CHECK(nvtxRangeStartA("step 20") == 0 && reduces(comm, 1020));
    event = event_of("step 21");
    nvtxMarkEx(&event);
    CHECK(reduces(comm, 1021));
    void *domain = nvtxDomainCreateA("train");
    event = event_of("step: 22");
    CHECK(domain == NULL && nvtxDomainRangePushEx(domain, &event) == -2 && reduces(comm, 1022));
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = nvtxDomainRegisterStringA(domain, "step 23");
    CHECK(nvtxDomainRangePushEx(domain, &event) == -2 && reduces(comm, 1023));
    event.message.registered = nvtxDomainRegisterStringA(domain, "forward");
    CHECK(event.message.registered == NULL && nvtxDomainRangePushEx(domain, &event) == -2 && reduces(comm, 1023));
    event = event_of("step 99");
    event.size = 8; /* of a release that never was */
    nvtxMarkEx(&event);
    CHECK(reduces(comm, 1023));
    nvtxMarkA("iteration 900"); /* not the job's steps: "step" came first, */
    CHECK(reduces(comm, 1023));
    for (int i = 0; i < 63; i++) {
        nvtxMarkA("iteration 901");
    }
    CHECK(reduces(comm, 1023));
    nvtxMarkA("iteration 902"); /* until it comes no more */
    CHECK(reduces(comm, 1902));
    step_by(24, 5); /* the job's own word beats all */
    nvtxMarkA("step 25");
    CHECK(reduces(comm, 1024));
    return 0;
}

/* The same names, of which the user says which one is a step. */
int job_mode_own_mark(void)
{
    nvtxMarkA("batch"); /* before recording begins */
    nvtxMarkA("step 3");
    ncclComm_t comm = job_comm(0, 2);
    CHECK(reduces(comm, 1000));
    nvtxMarkA("batch");
    CHECK(reduces(comm, 1001));
    nvtxMarkA("Batch 17");
    CHECK(reduces(comm, 1017));
    return 0;
}
