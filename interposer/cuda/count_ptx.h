/*
 * count_ptx.h: the kernel that counts replays: adds one to a word that host and device share. The kernel is text, which
 * the driver translates for whatever device there is. A test assembles it where the vendor's assembler is installed.
 */
#ifndef ROLL_INTERPOSER_CUDA_COUNT_PTX_H
#define ROLL_INTERPOSER_CUDA_COUNT_PTX_H

#define ROLL_COUNT_KERNEL "roll_count"
#define ROLL_COUNT_PTX                                                                                                 \
    ".version 6.4\n"                                                                                                   \
    ".target sm_60\n"                                                                                                  \
    ".address_size 64\n"                                                                                               \
    ".visible .entry roll_count(.param .u64 word)\n"                                                                   \
    "{\n"                                                                                                              \
    "    .reg .b64 %at;\n"                                                                                             \
    "    ld.param.u64 %at, [word];\n"                                                                                  \
    "    cvta.to.global.u64 %at, %at;\n"                                                                               \
    "    red.sys.global.add.u64 [%at], 1;\n"                                                                           \
    "    ret;\n"                                                                                                       \
    "}\n"

#endif
