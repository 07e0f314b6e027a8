/*
 * start.c: loads the user's library and calls it. Exit status: its answer; 77 when it does not load.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char *argv[])
{
    int (*use_it)(void);
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    void *found = library ? dlsym(library, "use_it") : NULL;
    if (!found) {
        fprintf(stderr, "%s\n", dlerror());
        return 77;
    }
    memcpy(&use_it, &found, sizeof(use_it));
    return use_it();
}
