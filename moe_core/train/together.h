/*
 * together.h: whether options of moe_train make sense together.
 */
#ifndef MOE_CORE_TRAIN_TOGETHER_H
#define MOE_CORE_TRAIN_TOGETHER_H

#include "moe_core/train/options.h"

/*
 * Whether the options make sense together; where not, prints one line on standard error that names the options. Any
 * thread.
 */
bool options_fit_together(const struct train_options *options);

#endif
