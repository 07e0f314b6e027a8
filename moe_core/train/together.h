/*
 * together.h: whether options of moe_train make sense together.
 */
#ifndef MOE_TRAIN_TOGETHER_H
#define MOE_TRAIN_TOGETHER_H

#include "moe_core/train/options.h"

/* Whether they do; where not, one line on standard error says which do not. Any thread. */
bool options_fit_together(const struct train_options *options);

#endif
