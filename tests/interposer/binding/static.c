/* static.c: a program without a loader: no preload is ever in it. */
#include <stdio.h>

int main(void)
{
    return puts("static") < 0;
}
