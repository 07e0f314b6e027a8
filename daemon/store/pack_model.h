/*
 * pack_model.h: the model that packer and unpacker share, and the coding of one frame with it. Private to pack*.c.
 */
#ifndef ROLL_DAEMON_STORE_PACK_MODEL_H
#define ROLL_DAEMON_STORE_PACK_MODEL_H

#include "daemon/store/pack_coder.h"
#include "trace/frame.h"

struct roll_pack_model;

struct roll_pack_model *roll_pack_model_new(void); /* NULL when out of memory */
void roll_pack_model_destroy(struct roll_pack_model **model);
void roll_pack_model_reset(struct roll_pack_model *model);

/* Writes one frame into the columns. `raw` is the encoded frame, for frames that have no columns of their own. Errors
 * are the coder's. */
void roll_pack_write(struct roll_pack_model *model, struct roll_pack_coder *c, const struct roll_frame *frame,
                     const void *raw, size_t bytes);
/*
 * Reads one frame and encodes it at `out`. Returns its bytes; LIMIT when out_bytes are not enough; CORRUPT, NOMEM.
 */
int64_t roll_pack_read(struct roll_pack_model *model, struct roll_pack_coder *c, uint8_t *out, size_t out_bytes);

#endif
