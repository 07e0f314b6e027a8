/*
 * test_rnn.c: where the stand-in for cuDNN lays the weights of recurrent networks: in the room that it asks for, each
 * in a place of its own, matrices of one kind one behind the other, as frameworks compare.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

extern int cudnnCreateTensorDescriptor(void **), cudnnDestroyTensorDescriptor(void *);
extern int cudnnGetTensorNdDescriptor(void *, int, int *, int *, int *, int *);
extern int cudnnCreateRNNDescriptor(void **), cudnnDestroyRNNDescriptor(void *);
extern int cudnnSetRNNDescriptor_v8(void *, int, int, int, int, int, int, int, int, int, int, int, int, void *,
                                    unsigned int);
extern int cudnnGetRNNWeightSpaceSize(void *, void *, size_t *);
extern int cudnnGetRNNWeightParams(void *, void *, int, size_t, const void *, int, void *, void **, void *, void **);

enum { HALF = 2, FLOAT = 0, GRU = 3, LSTM = 2, TANH = 1, INPUTS = 5, HIDDEN = 7, LAYERS = 3, DOUBLE_BIAS = 2 };

/* Marks the place of one tensor, which nobody has marked before; its number of elements. */
static size_t mark(unsigned char *room, size_t bytes, const void *at, void *tensor, size_t element, int rows,
                   int columns)
{
    int type = -1, count = 0, size[3] = {0}, stride[3] = {0};
    assert_int_equal(cudnnGetTensorNdDescriptor(tensor, 3, &type, &count, size, stride), 0);
    assert_true(count == 3 && size[0] == 1 && size[1] == rows && size[2] == columns);
    assert_true(stride[1] == columns && stride[2] == 1);
    size_t start = (size_t)((const unsigned char *)at - room), length = (size_t)rows * (size_t)columns * element;
    assert_true(start % element == 0 && start + length <= bytes);
    for (size_t i = 0; i < length; i++) {
        assert_int_equal(room[start + i], 0);
        room[start + i] = 1;
    }
    return length / element;
}

static void look_at(int cell, int gates, int directions, int projected, int type, size_t element)
{
    void *rnn, *matrix, *bias, *matrix_at, *bias_at, *next = NULL;
    size_t bytes = 0;
    assert_int_equal(cudnnCreateRNNDescriptor(&rnn), 0);
    assert_int_equal(cudnnCreateTensorDescriptor(&matrix), 0);
    assert_int_equal(cudnnCreateTensorDescriptor(&bias), 0);
    assert_int_equal(cudnnSetRNNDescriptor_v8(rnn, 0, cell, DOUBLE_BIAS, directions - 1, 0, type, FLOAT, 0, INPUTS,
                                              HIDDEN, projected ? projected : HIDDEN, LAYERS, NULL, 0),
                     0);
    assert_int_equal(cudnnGetRNNWeightSpaceSize(NULL, rnn, &bytes), 0);
    unsigned char *room = calloc(1, bytes);
    int width = projected ? projected : HIDDEN;
    for (int layer = 0; layer < LAYERS * directions; layer++) {
        int taken = layer < directions ? INPUTS : width * directions;
        for (int id = 0; id < 2 * gates; id++) {
            assert_int_equal(
                cudnnGetRNNWeightParams(NULL, rnn, layer, bytes, room, id, matrix, &matrix_at, bias, &bias_at), 0);
            if (id % gates) { /* one behind the other */
                assert_ptr_equal(matrix_at, next);
            }
            size_t count = mark(room, bytes, matrix_at, matrix, element, HIDDEN, id < gates ? taken : width);
            next = (char *)matrix_at + count * element;
            mark(room, bytes, bias_at, bias, element, HIDDEN, 1);
        }
        int code =
            cudnnGetRNNWeightParams(NULL, rnn, layer, bytes, room, 2 * gates, matrix, &matrix_at, bias, &bias_at);
        assert_int_equal(code != 0, !projected);
        if (projected) {
            mark(room, bytes, matrix_at, matrix, element, projected, HIDDEN);
            assert_null(bias_at);
        }
    }
    assert_null(memchr(room, 0, bytes)); /* and nothing is left over */
    assert_int_not_equal(
        cudnnGetRNNWeightParams(NULL, rnn, LAYERS * directions, bytes, room, 0, matrix, &matrix_at, bias, &bias_at), 0);
    free(room);
    cudnnDestroyTensorDescriptor(matrix);
    cudnnDestroyTensorDescriptor(bias);
    cudnnDestroyRNNDescriptor(rnn);
}

static void test_weights_have_places_of_their_own(void **state)
{
    (void)state;
    for (int directions = 1; directions <= 2; directions++) {
        look_at(LSTM, 4, directions, 0, FLOAT, 4);
        look_at(LSTM, 4, directions, 3, HALF, 2);
        look_at(GRU, 3, directions, 0, FLOAT, 4);
        look_at(TANH, 1, directions, 0, HALF, 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_weights_have_places_of_their_own)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
