/*
 * thunk.h: functions that forward by a jump: every argument register, the stack and the return address stay as the
 * caller left them, so no prototype is needed.
 *
 * A thunk jumps through a table of addresses; while its entry is NULL it goes through ROLL_THUNK_SLOW, which saves
 * what may carry arguments, asks a C function for the address, and jumps on. Processors without code below have no
 * thunks, and ROLL_THUNKS is 0 there.
 */
#ifndef ROLL_INTERPOSER_BIND_THUNK_H
#define ROLL_INTERPOSER_BIND_THUNK_H

#if defined(__x86_64__)
#define ROLL_THUNKS 1

/* Defines the slow way. `find` is a hidden function void *(unsigned index, uintptr_t pc) that never returns NULL; `pc`
 * is the caller's return address. */
#define ROLL_THUNK_SLOW(find)                                                                                          \
    __asm__(".text\n"                                                                                                  \
            ".p2align 4\n"                                                                                             \
            ".type roll_thunk_slow,@function\n"                                                                        \
            "roll_thunk_slow:\n" /* r11d: index; the stack is as the caller of the public function left it */          \
            "  pushq %rbp\n"                                                                                           \
            "  movq %rsp, %rbp\n"                                                                                      \
            "  andq $-16, %rsp\n"                                                                                      \
            "  subq $192, %rsp\n"                                                                                      \
            "  movq %rdi, 0(%rsp)\n"                                                                                   \
            "  movq %rsi, 8(%rsp)\n"                                                                                   \
            "  movq %rdx, 16(%rsp)\n"                                                                                  \
            "  movq %rcx, 24(%rsp)\n"                                                                                  \
            "  movq %r8, 32(%rsp)\n"                                                                                   \
            "  movq %r9, 40(%rsp)\n"                                                                                   \
            "  movq %rax, 48(%rsp)\n"                                                                                  \
            "  movups %xmm0, 64(%rsp)\n"                                                                               \
            "  movups %xmm1, 80(%rsp)\n"                                                                               \
            "  movups %xmm2, 96(%rsp)\n"                                                                               \
            "  movups %xmm3, 112(%rsp)\n"                                                                              \
            "  movups %xmm4, 128(%rsp)\n"                                                                              \
            "  movups %xmm5, 144(%rsp)\n"                                                                              \
            "  movups %xmm6, 160(%rsp)\n"                                                                              \
            "  movups %xmm7, 176(%rsp)\n"                                                                              \
            "  movl %r11d, %edi\n"                                                                                     \
            "  movq 8(%rbp), %rsi\n"                                                                                   \
            "  call " #find "\n"                                                                                       \
            "  movq %rax, %r11\n"                                                                                      \
            "  movq 0(%rsp), %rdi\n"                                                                                   \
            "  movq 8(%rsp), %rsi\n"                                                                                   \
            "  movq 16(%rsp), %rdx\n"                                                                                  \
            "  movq 24(%rsp), %rcx\n"                                                                                  \
            "  movq 32(%rsp), %r8\n"                                                                                   \
            "  movq 40(%rsp), %r9\n"                                                                                   \
            "  movq 48(%rsp), %rax\n"                                                                                  \
            "  movups 64(%rsp), %xmm0\n"                                                                               \
            "  movups 80(%rsp), %xmm1\n"                                                                               \
            "  movups 96(%rsp), %xmm2\n"                                                                               \
            "  movups 112(%rsp), %xmm3\n"                                                                              \
            "  movups 128(%rsp), %xmm4\n"                                                                              \
            "  movups 144(%rsp), %xmm5\n"                                                                              \
            "  movups 160(%rsp), %xmm6\n"                                                                              \
            "  movups 176(%rsp), %xmm7\n"                                                                              \
            "  leave\n"                                                                                                \
            "  jmp *%r11\n"                                                                                            \
            ".size roll_thunk_slow, .-roll_thunk_slow\n");

/* Defines the exported function `name` (a string), which jumps to entry `index` (a constant) of the hidden table. It
 * takes the slow way also while the hidden 32-bit counter `unless` is not 0. */
#define ROLL_THUNK(name, table, index, unless)                                                                         \
    __asm__(".text\n"                                                                                                  \
            ".p2align 4\n"                                                                                             \
            ".globl " name "\n"                                                                                        \
            ".type " name ",@function\n" name ":\n"                                                                    \
            "  endbr64\n"                                                                                              \
            "  movq " #table "+8*(" index ")(%rip), %r11\n"                                                            \
            "  testq %r11, %r11\n"                                                                                     \
            "  je 1f\n"                                                                                                \
            "  cmpl $0, " #unless "(%rip)\n"                                                                           \
            "  jne 1f\n"                                                                                               \
            "  jmp *%r11\n"                                                                                            \
            "1: movl $(" index "), %r11d\n"                                                                            \
            "  jmp roll_thunk_slow\n"                                                                                  \
            ".size " name ", .-" name "\n");

#elif defined(__aarch64__)
#define ROLL_THUNKS 1

#define ROLL_THUNK_SLOW(find)                                                                                          \
    __asm__(".text\n"                                                                                                  \
            ".p2align 4\n"                                                                                             \
            ".type roll_thunk_slow,%function\n"                                                                        \
            "roll_thunk_slow:\n" /* w16: index */                                                                      \
            "  stp x29, x30, [sp, #-224]!\n"                                                                           \
            "  mov x29, sp\n"                                                                                          \
            "  stp x0, x1, [sp, #16]\n"                                                                                \
            "  stp x2, x3, [sp, #32]\n"                                                                                \
            "  stp x4, x5, [sp, #48]\n"                                                                                \
            "  stp x6, x7, [sp, #64]\n"                                                                                \
            "  str x8, [sp, #80]\n"                                                                                    \
            "  stp q0, q1, [sp, #96]\n"                                                                                \
            "  stp q2, q3, [sp, #128]\n"                                                                               \
            "  stp q4, q5, [sp, #160]\n"                                                                               \
            "  stp q6, q7, [sp, #192]\n"                                                                               \
            "  mov w0, w16\n"                                                                                          \
            "  mov x1, x30\n"                                                                                          \
            "  bl " #find "\n"                                                                                         \
            "  mov x16, x0\n"                                                                                          \
            "  ldp x0, x1, [sp, #16]\n"                                                                                \
            "  ldp x2, x3, [sp, #32]\n"                                                                                \
            "  ldp x4, x5, [sp, #48]\n"                                                                                \
            "  ldp x6, x7, [sp, #64]\n"                                                                                \
            "  ldr x8, [sp, #80]\n"                                                                                    \
            "  ldp q0, q1, [sp, #96]\n"                                                                                \
            "  ldp q2, q3, [sp, #128]\n"                                                                               \
            "  ldp q4, q5, [sp, #160]\n"                                                                               \
            "  ldp q6, q7, [sp, #192]\n"                                                                               \
            "  ldp x29, x30, [sp], #224\n"                                                                             \
            "  br x16\n"                                                                                               \
            ".size roll_thunk_slow, .-roll_thunk_slow\n");

#define ROLL_THUNK(name, table, index, unless)                                                                         \
    __asm__(".text\n"                                                                                                  \
            ".p2align 4\n"                                                                                             \
            ".globl " name "\n"                                                                                        \
            ".type " name ",%function\n" name ":\n"                                                                    \
            "  hint #34\n" /* bti c */                                                                                 \
            "  adrp x16, " #table "+8*(" index ")\n"                                                                   \
            "  ldr x16, [x16, :lo12:" #table "+8*(" index ")]\n"                                                       \
            "  cbz x16, 1f\n"                                                                                          \
            "  adrp x17, " #unless "\n"                                                                                \
            "  ldr w17, [x17, :lo12:" #unless "]\n"                                                                    \
            "  cbnz w17, 1f\n"                                                                                         \
            "  br x16\n"                                                                                               \
            "1: mov w16, #(" index ")\n"                                                                               \
            "  b roll_thunk_slow\n"                                                                                    \
            ".size " name ", .-" name "\n");
#else
#define ROLL_THUNKS 0
#endif

#endif
