/* host.c: a program without NCCL that loads the job as a plugin, as Python loads an extension module.
 * `host local|global PLUGIN MODE`. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc < 4) {
        return 2;
    }
    void *plugin = dlopen(argv[2], RTLD_NOW | (strcmp(argv[1], "global") == 0 ? RTLD_GLOBAL : RTLD_LOCAL));
    int (*job)(int, char **) = plugin != NULL ? (int (*)(int, char **))dlsym(plugin, "job_main") : NULL;
    if (job == NULL) {
        fprintf(stderr, "host: %s\n", dlerror());
        return 2;
    }
    argv[2] = argv[0];
    return job(argc - 2, argv + 2);
}
