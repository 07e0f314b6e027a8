/*
 * protobuf_late.c: libprotobuf-c, loaded by `rollcall export --perfetto`. As zmq_late.c, which says why; only the
 * program `rollcall` has this file.
 */
#include "daemon/console/late.h"

#include <protobuf-c/protobuf-c.h>

/* What daemon/console/export calls, and the code that protoc-c generates. */
#define ROWS(ROW)                                                                                                      \
    ROW(size_t, 0, protobuf_c_message_get_packed_size, (const ProtobufCMessage *message), (message))                   \
    ROW(size_t, 0, protobuf_c_message_pack, (const ProtobufCMessage *message, uint8_t *out), (message, out))           \
    ROW(size_t, 0, protobuf_c_message_pack_to_buffer, (const ProtobufCMessage *message, ProtobufCBuffer *out),         \
        (message, out))                                                                                                \
    ROW(ProtobufCMessage *, NULL, protobuf_c_message_unpack,                                                           \
        (const ProtobufCMessageDescriptor *of, ProtobufCAllocator *with, size_t bytes, const uint8_t *data),           \
        (of, with, bytes, data))
#define VOIDS(ROW)                                                                                                     \
    ROW(void, , protobuf_c_message_free_unpacked, (ProtobufCMessage * message, ProtobufCAllocator * with),             \
        (message, with))

ROLL_LATE(ROWS, VOIDS, "libprotobuf-c.so.1", "no trace for Perfetto can be written")
