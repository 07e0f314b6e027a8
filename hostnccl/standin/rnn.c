/*
 * rnn.c: what cuDNN must answer so that a recurrent network (LSTM, GRU) runs: how much room its weights take and where
 * in that room each matrix and each bias lies. A framework makes its parameters views of that room, and compares the
 * places with each other, so they are worked out as the library would: per layer and direction, all matrices of the
 * inputs, all of the hidden state, the projection, then the biases in the same order. The computation itself is left
 * out, as all others are. Values of enumerations are those of cuDNN's documentation.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

enum { CUDNN_SUCCESS = 0, CUDNN_BAD_PARAM = 2000, CUDNN_ALLOC_FAILED = 1003, DIMENSIONS_MAX = 8 };
enum { CELL_RELU, CELL_TANH, CELL_LSTM, CELL_GRU };

struct tensor {
    int type, count;
    int size[DIMENSIONS_MAX], stride[DIMENSIONS_MAX];
};

struct rnn {
    int cell, directions, type, inputs, hidden, projected, layers;
};

API int cudnnCreateTensorDescriptor(struct tensor **out);
API int cudnnDestroyTensorDescriptor(struct tensor *tensor);
API int cudnnSetTensorNdDescriptor(struct tensor *tensor, int type, int count, const int *size, const int *stride);
API int cudnnGetTensorNdDescriptor(const struct tensor *tensor, int wanted, int *type, int *count, int *size,
                                   int *stride);
API int cudnnCreateRNNDescriptor(struct rnn **out);
API int cudnnDestroyRNNDescriptor(struct rnn *rnn);
API int cudnnSetRNNDescriptor_v8(struct rnn *rnn, int algorithm, int cell, int bias, int direction, int input_mode,
                                 int type, int math, int math_type, int32_t inputs, int32_t hidden, int32_t projected,
                                 int32_t layers, void *dropout, uint32_t flags);
API int cudnnGetRNNWeightSpaceSize(void *handle, const struct rnn *rnn, size_t *bytes);
API int cudnnGetRNNWeightParams(void *handle, const struct rnn *rnn, int32_t layer, size_t bytes, const void *space,
                                int32_t id, struct tensor *matrix, void **matrix_at, struct tensor *bias,
                                void **bias_at);

API int cudnnCreateTensorDescriptor(struct tensor **out)
{
    *out = calloc(1, sizeof(**out));
    return *out ? CUDNN_SUCCESS : CUDNN_ALLOC_FAILED;
}

API int cudnnDestroyTensorDescriptor(struct tensor *tensor)
{
    free(tensor);
    return CUDNN_SUCCESS;
}

API int cudnnSetTensorNdDescriptor(struct tensor *tensor, int type, int count, const int *size, const int *stride)
{
    if (!tensor || count < 0 || count > DIMENSIONS_MAX) {
        return CUDNN_BAD_PARAM;
    }
    *tensor = (struct tensor){.type = type, .count = count};
    for (int i = 0; i < count; i++) {
        tensor->size[i] = size[i];
        tensor->stride[i] = stride[i];
    }
    return CUDNN_SUCCESS;
}

API int cudnnGetTensorNdDescriptor(const struct tensor *tensor, int wanted, int *type, int *count, int *size,
                                   int *stride)
{
    if (!tensor) {
        return CUDNN_BAD_PARAM;
    }
    if (type) {
        *type = tensor->type;
    }
    if (count) {
        *count = tensor->count;
    }
    for (int i = 0; i < wanted && i < tensor->count; i++) {
        if (size) {
            size[i] = tensor->size[i];
        }
        if (stride) {
            stride[i] = tensor->stride[i];
        }
    }
    return CUDNN_SUCCESS;
}

/* A tensor of 1 x rows x columns. */
static void set_matrix(struct tensor *tensor, int type, int rows, int columns)
{
    if (tensor) {
        *tensor = (struct tensor){
            .type = type, .count = 3, .size = {1, rows, columns}, .stride = {rows * columns, columns, 1}};
    }
}

API int cudnnCreateRNNDescriptor(struct rnn **out)
{
    *out = calloc(1, sizeof(**out));
    return *out ? CUDNN_SUCCESS : CUDNN_ALLOC_FAILED;
}

API int cudnnDestroyRNNDescriptor(struct rnn *rnn)
{
    free(rnn);
    return CUDNN_SUCCESS;
}

API int cudnnSetRNNDescriptor_v8(struct rnn *rnn, int algorithm, int cell, int bias, int direction, int input_mode,
                                 int type, int math, int math_type, int32_t inputs, int32_t hidden, int32_t projected,
                                 int32_t layers, void *dropout, uint32_t flags)
{
    (void)algorithm, (void)bias, (void)input_mode, (void)math, (void)math_type, (void)dropout, (void)flags;
    if (!rnn || cell < CELL_RELU || cell > CELL_GRU || inputs < 0 || hidden <= 0 || layers <= 0) {
        return CUDNN_BAD_PARAM;
    }
    *rnn = (struct rnn){.cell = cell,
                        .directions = direction ? 2 : 1,
                        .type = type,
                        .inputs = inputs,
                        .hidden = hidden,
                        .projected = projected > 0 && projected < hidden ? projected : 0,
                        .layers = layers};
    return CUDNN_SUCCESS;
}

static size_t element_bytes(int type)
{
    enum { DOUBLE = 1, HALF = 2, BFLOAT16 = 9 };
    return type == DOUBLE ? 8 : type == HALF || type == BFLOAT16 ? 2 : 4;
}

/* Matrices of a layer that belong to its input; as many belong to the hidden state. */
static int gates(const struct rnn *rnn)
{
    return rnn->cell == CELL_LSTM ? 4 : rnn->cell == CELL_GRU ? 3 : 1;
}

/* Width of the matrices of the hidden state: of what a layer hands on. */
static size_t handed_on(const struct rnn *rnn)
{
    return (size_t)(rnn->projected ? rnn->projected : rnn->hidden);
}

/* Width of the matrices of a layer's input. */
static size_t taken(const struct rnn *rnn, int pseudo_layer)
{
    return pseudo_layer < rnn->directions ? (size_t)rnn->inputs : handed_on(rnn) * (size_t)rnn->directions;
}

/* Elements of a layer in one direction: matrices, projection, and two biases for each gate. */
static size_t layer_elements(const struct rnn *rnn, int pseudo_layer)
{
    size_t rows = (size_t)gates(rnn) * (size_t)rnn->hidden;
    return rows * (taken(rnn, pseudo_layer) + handed_on(rnn)) + (size_t)rnn->projected * (size_t)rnn->hidden + 2 * rows;
}

API int cudnnGetRNNWeightSpaceSize(void *handle, const struct rnn *rnn, size_t *bytes)
{
    (void)handle;
    if (!rnn || !bytes) {
        return CUDNN_BAD_PARAM;
    }
    *bytes = 0;
    for (int i = 0; i < rnn->layers * rnn->directions; i++) {
        *bytes += layer_elements(rnn, i) * element_bytes(rnn->type);
    }
    return CUDNN_SUCCESS;
}

API int cudnnGetRNNWeightParams(void *handle, const struct rnn *rnn, int32_t layer, size_t bytes, const void *space,
                                int32_t id, struct tensor *matrix, void **matrix_at, struct tensor *bias,
                                void **bias_at)
{
    (void)handle, (void)bytes;
    if (!rnn || layer < 0 || layer >= rnn->layers * rnn->directions || id < 0 ||
        id > 2 * gates(rnn) - (rnn->projected ? 0 : 1)) {
        return CUDNN_BAD_PARAM;
    }
    int n = gates(rnn);
    size_t hidden = (size_t)rnn->hidden, in = taken(rnn, layer), out = handed_on(rnn), at = 0;
    for (int i = 0; i < layer; i++) {
        at += layer_elements(rnn, i);
    }
    size_t matrices = (size_t)n * hidden * (in + out), projection = (size_t)rnn->projected * hidden;
    size_t place = at + (id < n       ? (size_t)id * hidden * in
                         : id < 2 * n ? (size_t)n * hidden * in + (size_t)(id - n) * hidden * out
                                      : matrices);
    char *base = (char *)(uintptr_t)space;
    if (id < 2 * n) {
        set_matrix(matrix, rnn->type, rnn->hidden, (int)(id < n ? in : out));
        set_matrix(bias, rnn->type, rnn->hidden, 1);
    } else { /* the projection, which has no bias */
        set_matrix(matrix, rnn->type, rnn->projected, rnn->hidden);
        if (bias) {
            memset(bias, 0, sizeof(*bias));
        }
    }
    if (matrix_at) {
        *matrix_at = base ? base + place * element_bytes(rnn->type) : NULL;
    }
    if (bias_at) {
        size_t bias_place = at + matrices + projection + (size_t)id * hidden;
        *bias_at = base && id < 2 * n ? base + bias_place * element_bytes(rnn->type) : NULL;
    }
    return CUDNN_SUCCESS;
}
