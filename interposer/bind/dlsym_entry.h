/*
 * dlsym_entry.h: the entry of our dlsym, in assembly, for the processors that have one. Included by dlsym.c alone.
 *
 * The entry jumps on at once when the name begins with a letter that none of our names begins with. Else it asks
 * roll_dlsym_answer, and jumps on when that has no answer, with all registers and the return address as the caller left
 * them.
 */
#ifndef ROLL_INTERPOSER_BIND_DLSYM_ENTRY_H
#define ROLL_INTERPOSER_BIND_DLSYM_ENTRY_H

#include <stdint.h>

/* The answer to a lookup; known 0: ask the real dlsym. The struct has two words, so that both come back in registers.
 */
struct roll_answer {
    void *value;
    uintptr_t known;
};

/* Answers dlsym(handle, name) for `caller`, an address in the object that asks. Keeps errno. */
struct roll_answer roll_dlsym_answer(void *handle, const char *name, const void *caller)
    __attribute__((visibility("hidden"), used));

#if defined(__x86_64__)
#define ROLL_HOOK_DLSYM 1
__asm__(".text\n"
        ".p2align 4\n"
        ".globl dlsym\n"
        ".type dlsym,@function\n"
        "dlsym:\n"
        "  .cfi_startproc\n"
        "  endbr64\n"
        "  movq roll_dlsym_real(%rip), %r11\n"
        "  testq %r11, %r11\n"
        "  je 2f\n"
        "  testq %rsi, %rsi\n"
        "  je 1f\n"
        "  movzbl (%rsi), %eax\n"
        "  cmpb $'n', %al\n"
        "  je 2f\n"
        "  cmpb $'c', %al\n"
        "  je 2f\n"
        "  cmpb $'_', %al\n"
        "  je 2f\n"
        "1: jmp *%r11\n"
        "2: pushq %rdi\n"
        "  .cfi_adjust_cfa_offset 8\n"
        "  pushq %rsi\n"
        "  .cfi_adjust_cfa_offset 8\n"
        "  subq $8, %rsp\n"
        "  .cfi_adjust_cfa_offset 8\n"
        "  movq 24(%rsp), %rdx\n"
        "  call roll_dlsym_answer\n"
        "  addq $8, %rsp\n"
        "  .cfi_adjust_cfa_offset -8\n"
        "  popq %rsi\n"
        "  .cfi_adjust_cfa_offset -8\n"
        "  popq %rdi\n"
        "  .cfi_adjust_cfa_offset -8\n"
        "  testq %rdx, %rdx\n"
        "  jne 3f\n"
        "  movq roll_dlsym_real(%rip), %r11\n"
        "  testq %r11, %r11\n"
        "  je 3f\n"
        "  jmp *%r11\n"
        "3: ret\n"
        "  .cfi_endproc\n"
        ".size dlsym, .-dlsym\n");
#elif defined(__aarch64__)
#define ROLL_HOOK_DLSYM 1
__asm__(".text\n"
        ".p2align 4\n"
        ".globl dlsym\n"
        ".type dlsym,%function\n"
        "dlsym:\n"
        "  .cfi_startproc\n"
        "  hint #34\n" /* bti c */
        "  adrp x16, roll_dlsym_real\n"
        "  ldr x16, [x16, :lo12:roll_dlsym_real]\n"
        "  cbz x16, 2f\n"
        "  cbz x1, 1f\n"
        "  ldrb w17, [x1]\n"
        "  cmp w17, #'n'\n"
        "  b.eq 2f\n"
        "  cmp w17, #'c'\n"
        "  b.eq 2f\n"
        "  cmp w17, #'_'\n"
        "  b.eq 2f\n"
        "1: br x16\n"
        "2: stp x29, x30, [sp, #-32]!\n"
        "  .cfi_def_cfa_offset 32\n"
        "  .cfi_offset 29, -32\n"
        "  .cfi_offset 30, -24\n"
        "  mov x29, sp\n"
        "  stp x0, x1, [sp, #16]\n"
        "  mov x2, x30\n"
        "  bl roll_dlsym_answer\n"
        "  mov x17, x1\n"
        "  cbnz x17, 3f\n"
        "  ldp x0, x1, [sp, #16]\n"
        "3: ldp x29, x30, [sp], #32\n"
        "  .cfi_restore 30\n"
        "  .cfi_restore 29\n"
        "  .cfi_def_cfa_offset 0\n"
        "  cbnz x17, 4f\n"
        "  adrp x16, roll_dlsym_real\n"
        "  ldr x16, [x16, :lo12:roll_dlsym_real]\n"
        "  cbz x16, 5f\n"
        "  br x16\n"
        "5: mov x0, xzr\n"
        "4: ret\n"
        "  .cfi_endproc\n"
        ".size dlsym, .-dlsym\n");
#else
/* Other processors have no hook: lookups by handle are not seen there. */
#define ROLL_HOOK_DLSYM 0
#endif

#endif
