/* host.c: a program without NCCL that loads the job as a plugin, as Python loads an extension module.
 * `host local|global|again PLUGIN MODE`; again: loads it, runs it, unloads it, and does all that once more. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static int run(const char *scope, int argc, char **argv)
{
    void *plugin = dlopen(argv[2], RTLD_NOW | (strcmp(scope, "local") == 0 ? RTLD_LOCAL : RTLD_GLOBAL));
    int (*job)(int, char **) = plugin != NULL ? (int (*)(int, char **))dlsym(plugin, "job_main") : NULL;
    if (job == NULL) {
        fprintf(stderr, "host: %s\n", dlerror());
        return 2;
    }
    char *shifted[] = {argv[0], argv[3], argc > 4 ? argv[4] : NULL, NULL};
    int status = job(argc - 2, shifted);
    if (strcmp(scope, "again") == 0) {
        dlclose(plugin);
        /* Keeps the unloaded object's addresses in use, so that the next one is loaded elsewhere. */
        mmap(NULL, 1 << 22, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 4 || argc > 5) {
        return 2;
    }
    const char *scope = argv[1];
    int status = run(scope, argc, argv);
    return status == 0 && strcmp(scope, "again") == 0 ? run(scope, argc, argv) : status;
}
