/*
 * test_memory_capture.c: captured work and memory: what is made before the capture, and what is refused in it.
 */
#include "tests/moe_core/memory_trial.h"

#include "moe_core/include/moe/remedy.h"

#include <dlfcn.h>

/* capture */

static int64_t in_capture;

static void *capture_alloc(void *arg, size_t bytes, cudaStream_t stream)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(stream, &status);
    in_capture += status != cudaStreamCaptureStatusNone;
    return counting_alloc(arg, bytes, stream);
}

/*
 * With a row budget nothing is asked for while a graph is captured, not even in the first forward, and the graph's
 * memory is not given to others.
 */
static void capture_a_budget(enum moe_dtype type)
{
    struct counting c = {.refuse = -1};
    const struct moe_allocator allocator = {capture_alloc, counting_release, &c};
    const size_t bytes_of_rows = (size_t)T * H * moe_dtype_bytes(type);
    moe_device_t *device = NULL;
    struct model m = {0};
    moe_layer_t *layer[3] = {NULL, NULL, NULL}; /* to be captured; with the same budget, not captured; of the pool */
    struct moe_layer_config budget = config_of(NULL, 0, MOE_DISPATCH_HYBRIDEP), pool = budget;
    budget.row_budget = T * K;
    budget.uneven = MOE_UNEVEN_NONE;
    budget.type = pool.type = type;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    const struct moe_step step = {.step = 0};
    in_capture = 0;
    assert_int_equal(moe_device_new_host(&device), 0);
    assert_int_equal(moe_device_set_allocator(device, &allocator), 0);
    make_model(device, &m, 0, E);
    if (type == MOE_BF16) {
        to_bf16(m.x);
        to_bf16(m.dy);
    }
    const struct moe_layer_weights train = weights_of(&m, true);
    assert_int_equal(moe_layer_new(device, &budget, &layer[0]), 0);
    assert_int_equal(moe_layer_new(device, &budget, &layer[1]), 0);
    assert_int_equal(moe_layer_new(device, &pool, &layer[2]), 0);
    assert_int_equal(run_step(device, layer[1], &m, T), 0);
    float *y = malloc(bytes_of_rows), *dx = malloc(bytes_of_rows);
    memcpy(y, m.y, bytes_of_rows);
    memcpy(dx, m.dx, bytes_of_rows);
    cudaStream_t stream = moe_device_stream(device);
    int64_t asked = c.asked;
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    int rc = moe_layer_forward(layer[0], &train, &step, m.x, T, m.y);
    rc = rc ? rc : moe_layer_backward(layer[0], m.dy, m.dx);
    size_t bytes = 0;
    assert_int_equal(moe_device_trim(device, &bytes), MOE_E_STATE);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(rc, 0);
    assert_int_equal(c.asked, asked);
    assert_int_equal(in_capture, 0);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int i = 0; i < 3; i++) { /* between two replays another layer uses the pool, and the pool is emptied */
        assert_int_equal(run_step(device, layer[2], &m, T), 0);
        assert_int_equal(moe_device_trim(device, &bytes), 0);
        memset(m.y, 0xff, bytes_of_rows);
        memset(m.dx, 0xff, bytes_of_rows);
        assert_int_equal(cudaGraphLaunch(exec, stream), cudaSuccess);
        assert_int_equal(moe_device_sync(device), 0);
        assert_memory_equal(y, m.y, bytes_of_rows);
        assert_memory_equal(dx, m.dx, bytes_of_rows);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    for (int i = 0; i < 3; i++) {
        moe_layer_destroy(&layer[i]);
    }
    free_model(device, &m);
    moe_device_destroy(&device);
    free(y);
    free(dx);
    assert_int_equal(c.bytes, 0);
}

static void test_a_row_budget_is_captured_without_a_request(void **state)
{
    (void)state;
    capture_a_budget(MOE_F32);
    capture_a_budget(MOE_BF16);
}

/* Experts of the pool are not captured, whether or not it would have to grow: the graph's memory would be others'. */
static void test_the_pool_is_not_for_captured_work(void **state)
{
    (void)state;
    struct counting c = {.refuse = -1};
    const struct moe_allocator allocator = {capture_alloc, counting_release, &c};
    moe_device_t *device = NULL;
    struct model m = {0};
    moe_experts_t *experts = NULL;
    const struct moe_experts_config config = {.max_rows = T, .hidden = H, .ffn = F, .experts = E, .pooled = true};
    cudaGraph_t graph = NULL;
    in_capture = 0;
    assert_int_equal(moe_device_new_host(&device), 0);
    assert_int_equal(moe_device_set_allocator(device, &allocator), 0);
    make_model(device, &m, 0, E);
    int64_t *counts = support_array(device, E, sizeof(*counts));
    assert_int_equal(moe_experts_new(device, &config, &experts), 0);
    const struct moe_experts_weights w = {.w1 = m.w1, .w2 = m.w2, .d_w1 = m.d_w1, .d_w2 = m.d_w2};
    cudaStream_t stream = moe_device_stream(device);
    for (int i = 0; i < 2; i++) { /* the second time the pool has what is asked for */
        assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        assert_int_equal(moe_experts_forward(experts, &w, m.x, NULL, counts, T, m.y), MOE_E_STATE);
        assert_non_null(strstr(moe_last_error(), "captured"));
        assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        assert_int_equal(in_capture, 0);
        cudaGraphDestroy(graph);
        assert_int_equal(moe_experts_forward(experts, &w, m.x, NULL, counts, T, m.y), 0);
        assert_int_equal(moe_experts_backward(experts, &w, m.dy, m.dx, NULL), 0);
        assert_int_equal(moe_device_sync(device), 0);
    }
    moe_experts_destroy(&experts);
    moe_device_free(device, &counts);
    free_model(device, &m);
    moe_device_destroy(&device);
    assert_int_equal(c.bytes, 0);
}

/* What the tool interface answers: the library calls this program's definition. */
static uint32_t granted;

uint32_t moe_remedies(void *comm, uint32_t layer, uint32_t hazard)
{
    (void)comm;
    (void)layer;
    (void)hazard;
    return granted;
}

struct budget {
    struct counting c;
    moe_device_t *device;
    struct model m;
    moe_layer_t *layer;
};

static void make_budget(struct budget *b, int32_t in_flight)
{
    const struct moe_allocator allocator = {capture_alloc, counting_release, &b->c};
    struct moe_layer_config config = config_of(NULL, 0, MOE_DISPATCH_HYBRIDEP);
    *b = (struct budget){.c = {.refuse = -1}};
    config.row_budget = T * K;
    config.uneven = MOE_UNEVEN_NONE;
    config.in_flight = in_flight;
    in_capture = 0;
    assert_int_equal(moe_device_new_host(&b->device), 0);
    assert_int_equal(moe_device_set_allocator(b->device, &allocator), 0);
    make_model(b->device, &b->m, 0, E);
    assert_int_equal(moe_layer_new(b->device, &config, &b->layer), 0);
}

static void free_budget(struct budget *b)
{
    moe_layer_destroy(&b->layer);
    free_model(b->device, &b->m);
    moe_device_destroy(&b->device);
    assert_int_equal(b->c.bytes, 0);
}

static int forward(struct budget *b, uint16_t microbatch)
{
    const struct moe_layer_weights train = weights_of(&b->m, true);
    const struct moe_step step = {.microbatch = microbatch};
    return moe_layer_forward(b->layer, &train, &step, b->m.x, T, b->m.y);
}

static int backward(struct budget *b, uint16_t microbatch)
{
    const struct moe_step step = {.microbatch = microbatch};
    return moe_layer_backward_of(b->layer, &step, b->m.dy, b->m.dx);
}

static void begin(struct budget *b)
{
    assert_int_equal(cudaStreamBeginCapture(moe_device_stream(b->device), cudaStreamCaptureModeThreadLocal),
                     cudaSuccess);
}

/* The capture is whole, whatever was refused in it, and nothing was asked for. */
static cudaGraphExec_t end(struct budget *b)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    assert_int_equal(cudaStreamEndCapture(moe_device_stream(b->device), &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    assert_int_equal(in_capture, 0);
    cudaGraphDestroy(graph);
    return exec;
}

static void replay(struct budget *b, cudaGraphExec_t exec)
{
    const size_t rows = (size_t)T * H * sizeof(float);
    float *y = malloc(rows), *dx = malloc(rows);
    assert_int_equal(forward(b, 0), 0);
    assert_int_equal(backward(b, 0), 0);
    assert_int_equal(moe_device_sync(b->device), 0);
    memcpy(y, b->m.y, rows);
    memcpy(dx, b->m.dx, rows);
    memset(b->m.y, 0xff, rows);
    memset(b->m.dx, 0xff, rows);
    assert_int_equal(cudaGraphLaunch(exec, moe_device_stream(b->device)), cudaSuccess);
    assert_int_equal(moe_device_sync(b->device), 0);
    assert_memory_equal(y, b->m.y, rows);
    assert_memory_equal(dx, b->m.dx, rows);
    free(y);
    free(dx);
    cudaGraphExecDestroy(exec);
}

/* One more microbatch in flight would be made in the capture: refused; one that is there is captured. */
static void test_a_microbatch_in_flight_is_made_before_the_capture(void **state)
{
    (void)state;
    struct budget b;
    make_budget(&b, 2);
    begin(&b);
    assert_int_equal(forward(&b, 0), 0);
    assert_int_equal(forward(&b, 1), MOE_E_STATE);
    assert_non_null(strstr(moe_last_error(), "one more microbatch in flight, while the stream is captured"));
    assert_int_equal(backward(&b, 0), 0);
    replay(&b, end(&b));
    assert_int_equal(forward(&b, 0), 0);
    assert_int_equal(forward(&b, 1), 0);
    assert_int_equal(backward(&b, 0), 0);
    assert_int_equal(backward(&b, 1), 0);
    begin(&b);
    assert_int_equal(forward(&b, 0), 0);
    assert_int_equal(forward(&b, 1), 0);
    assert_int_equal(backward(&b, 1), 0);
    assert_int_equal(backward(&b, 0), 0);
    replay(&b, end(&b));
    free_budget(&b);
}

/* The same of dummy rows, whose remedy may be switched on at any time: refused before anything is issued. */
static void test_dummy_rows_are_made_before_the_capture(void **state)
{
    (void)state;
    struct budget b;
    make_budget(&b, 0);
    assert_int_equal(forward(&b, 0), 0);
    assert_int_equal(backward(&b, 0), 0);
    granted = MOE_REMEDY_DUMMY;
    begin(&b);
    assert_int_equal(forward(&b, 0), MOE_E_STATE);
    assert_non_null(strstr(moe_last_error(), "dummy rows for the first time while the stream is captured"));
    cudaGraphExec_t empty = end(&b);
    memset(b.m.y, 0x5a, sizeof(float));
    assert_int_equal(cudaGraphLaunch(empty, moe_device_stream(b.device)), cudaSuccess);
    assert_int_equal(moe_device_sync(b.device), 0);
    assert_memory_equal(b.m.y, "ZZZZ", sizeof(float)); /* nothing of the forward is in the graph */
    cudaGraphExecDestroy(empty);
    assert_int_equal(forward(&b, 0), 0);
    assert_int_equal(backward(&b, 0), 0);
    begin(&b);
    assert_int_equal(forward(&b, 0), 0);
    assert_int_equal(backward(&b, 0), 0);
    replay(&b, end(&b));
    granted = 0;
    free_budget(&b);
}

/* Fixed memory is refused as the pool's is, with the capture left whole; so is a new layer. */
static void test_nothing_is_made_in_a_capture(void **state)
{
    (void)state;
    struct budget b;
    make_budget(&b, 0);
    struct moe_layer_config config = config_of(NULL, 0, MOE_DISPATCH_ALLTOALL);
    moe_layer_t *layer = NULL;
    void *memory = NULL;
    begin(&b);
    assert_int_equal(moe_device_alloc(b.device, 100, &memory), MOE_E_STATE);
    assert_null(memory);
    assert_int_equal(moe_layer_new(b.device, &config, &layer), MOE_E_STATE);
    assert_null(layer);
    assert_int_equal(forward(&b, 0), 0);
    assert_int_equal(backward(&b, 0), 0);
    replay(&b, end(&b));
    assert_int_equal(moe_device_alloc(b.device, 100, &memory), 0);
    moe_device_free(b.device, &memory);
    free_budget(&b);
}

/* events: in which forward each was last recorded, and how old the youngest is that anybody waited for */

static struct {
    cudaEvent_t event;
    int forward;
} recorded[64];
static int forward_now, waits, youngest;

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    static cudaError_t (*real)(cudaEvent_t, cudaStream_t);
    size_t i = 0;
    while (recorded[i].event != NULL && recorded[i].event != event && i + 1 < sizeof(recorded) / sizeof(*recorded)) {
        i++;
    }
    recorded[i].event = event;
    recorded[i].forward = forward_now;
    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "cudaEventRecord");
    }
    return real(event, stream);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    static cudaError_t (*real)(cudaEvent_t);
    for (size_t i = 0; i < sizeof(recorded) / sizeof(*recorded); i++) {
        int age = forward_now - recorded[i].forward;
        if (recorded[i].event == event) {
            waits++;
            youngest = age < youngest ? age : youngest;
        }
    }
    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "cudaEventSynchronize");
    }
    return real(event);
}

/*
 * What all ranks said in a forward is waited for in the next but one: on a GPU the host is then a whole forward ahead
 * of the stream without a wait. (Here each copy waits, as the vendor's does from host memory to host memory.)
 */
static void test_a_forward_with_a_row_budget_does_not_wait_for_the_one_before(void **state)
{
    (void)state;
    struct budget b;
    make_budget(&b, 0);
    waits = 0;
    youngest = 100;
    for (forward_now = 0; forward_now < 5; forward_now++) {
        assert_int_equal(forward(&b, (uint16_t)forward_now), 0);
        assert_int_equal(backward(&b, (uint16_t)forward_now), 0);
    }
    assert_in_range(waits, 3, 100); /* of the last three forwards, and of tables on their way to the device */
    assert_int_equal(youngest, 2);
    assert_int_equal(moe_device_sync(b.device), 0);
    free_budget(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_row_budget_is_captured_without_a_request),
        cmocka_unit_test(test_the_pool_is_not_for_captured_work),
        cmocka_unit_test(test_a_microbatch_in_flight_is_made_before_the_capture),
        cmocka_unit_test(test_dummy_rows_are_made_before_the_capture),
        cmocka_unit_test(test_nothing_is_made_in_a_capture),
        cmocka_unit_test(test_a_forward_with_a_row_budget_does_not_wait_for_the_one_before),
    };
    setenv("HOSTCUDA_DEVICES", "16", 1); /* before the first call of the runtime */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
