/* program_fake_python.c: a process with the memory of fake_python.c in it. */
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

void fake_python_begin(uint64_t native);

int main(void)
{
    fake_python_begin((uint64_t)syscall(SYS_gettid));
    puts("ready");
    fflush(stdout);
    return pause();
}
