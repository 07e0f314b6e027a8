/*
 * check_compare.h: compares the model's tensors one by one and says which is the first that differs.
 */
#ifndef MOE_CORE_TRAIN_CHECK_COMPARE_H
#define MOE_CORE_TRAIN_CHECK_COMPARE_H

#include "moe_core/train/ref_model.h"
#include "moe_core/train/tensors.h"

/* What a comparison found. */
struct difference {
    double worst;          /* largest relative difference of any tensor so far; infinite where one is no number */
    int32_t tensors;       /* that differ by more than the tolerance */
    struct tensor first;   /* the first of them, in the order of backward; unset where there is none */
    int64_t element;       /* of the whole tensor: its largest difference, or its first element that is no number */
    double got, want;      /* that element */
    double first_relative; /* the difference of the first tensor */
};

/*
 * Compares whole gradients with the reference's, in the order of backward (head first), because a wrong gradient spoils
 * those that come after it: the first that differs is where to look. A difference is relative to the tensor's largest
 * element. Any thread.
 */
void compare_gradients(const struct tensor *tensors, int32_t count, const struct ref_params *got,
                       const struct ref_params *want, double tolerance, struct difference *out);

#endif
