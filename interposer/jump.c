/*
 * jump.c: forwards functions whose prototypes it does not know: a jump that leaves every argument register as it is.
 *
 * The address comes from the same table as everywhere; the first call of each goes through roll_jump_slow, which saves
 * what may carry arguments, asks roll_api_resolve, and jumps on. Copying NVIDIA's newer structs into our table instead
 * was rejected: they change from release to release. On other processors nothing is defined here: the application then
 * binds to NCCL's own symbols, which is what forwarding amounts to.
 */
#include "interposer/api.h"

#if defined(__x86_64__)

/* Called from the assembly below, so the linker must keep it. */
roll_function_t roll_jump_find(unsigned id) __attribute__((visibility("hidden"), used));

/* What a function does that the loaded NCCL lacks: nothing, and says so to a caller that looks. */
static ncclResult_t absent(void)
{
    return ncclInvalidUsage;
}

roll_function_t roll_jump_find(unsigned id)
{
    roll_function_t real = roll_api_resolve(0, id);
    return real != NULL ? real : (roll_function_t)absent;
}

__asm__(".text\n"
        ".p2align 4\n"
        ".type roll_jump_slow,@function\n"
        "roll_jump_slow:\n" /* r11d: id; the stack is as the caller of the public function left it */
        "  pushq %rbp\n"
        "  movq %rsp, %rbp\n"
        "  andq $-16, %rsp\n"
        "  subq $192, %rsp\n"
        "  movq %rdi, 0(%rsp)\n"
        "  movq %rsi, 8(%rsp)\n"
        "  movq %rdx, 16(%rsp)\n"
        "  movq %rcx, 24(%rsp)\n"
        "  movq %r8, 32(%rsp)\n"
        "  movq %r9, 40(%rsp)\n"
        "  movq %rax, 48(%rsp)\n"
        "  movups %xmm0, 64(%rsp)\n"
        "  movups %xmm1, 80(%rsp)\n"
        "  movups %xmm2, 96(%rsp)\n"
        "  movups %xmm3, 112(%rsp)\n"
        "  movups %xmm4, 128(%rsp)\n"
        "  movups %xmm5, 144(%rsp)\n"
        "  movups %xmm6, 160(%rsp)\n"
        "  movups %xmm7, 176(%rsp)\n"
        "  movl %r11d, %edi\n"
        "  call roll_jump_find\n"
        "  movq %rax, %r11\n"
        "  movq 0(%rsp), %rdi\n"
        "  movq 8(%rsp), %rsi\n"
        "  movq 16(%rsp), %rdx\n"
        "  movq 24(%rsp), %rcx\n"
        "  movq 32(%rsp), %r8\n"
        "  movq 40(%rsp), %r9\n"
        "  movq 48(%rsp), %rax\n"
        "  movups 64(%rsp), %xmm0\n"
        "  movups 80(%rsp), %xmm1\n"
        "  movups 96(%rsp), %xmm2\n"
        "  movups 112(%rsp), %xmm3\n"
        "  movups 128(%rsp), %xmm4\n"
        "  movups 144(%rsp), %xmm5\n"
        "  movups 160(%rsp), %xmm6\n"
        "  movups 176(%rsp), %xmm7\n"
        "  leave\n"
        "  jmp *%r11\n"
        ".size roll_jump_slow, .-roll_jump_slow\n");

#define ROLL_API_CALL(id, name, ...)
#define ROLL_API_LIFE(id, name, ...)
#define ROLL_API_PASS(id, ret, name, ...)
#define ROLL_API_JUMP(id, name)                                                                                        \
    __asm__(".text\n"                                                                                                  \
            ".p2align 4\n"                                                                                             \
            ".globl " #name "\n"                                                                                       \
            ".type " #name ",@function\n" #name ":\n"                                                                  \
            ".globl roll_own_" #name "\n.hidden roll_own_" #name "\n.set roll_own_" #name ", " #name "\n"              \
            "  movq roll_api_real+8*" #id "(%rip), %r11\n"                                                             \
            "  testq %r11, %r11\n"                                                                                     \
            "  je 1f\n"                                                                                                \
            "  jmp *%r11\n"                                                                                            \
            "1: movl $" #id ", %r11d\n"                                                                                \
            "  jmp roll_jump_slow\n"                                                                                   \
            ".size " #name ", .-" #name "\n");
#include "interposer/api.def"

#endif
