/*
 * main.c: roll_sim: programs from seeds, through the engine, against their truth.
 *
 *   roll_sim --seeds A-B [--orders N] [--healthy | --sick] [--only MUTATION] [--failures N] [--limits FILE]
 *              a table of outcomes by mistake; --limits fails when a row has more that is not right than the file allows
 *   roll_sim --long N          N seeds behind those that the tests run, healthy and sick by turns
 *   roll_sim --print SEED      the program of a seed, its mistake, and what the engine says in each order
 *   roll_sim --shrink SEED     the same, after making it as small as it gets while it fails in the same way
 *   roll_sim --seeds A-B --report N   also the N most frequent kinds of failure, each with its smallest program
 *   roll_sim --rows FILE       programs of a file (regressions.txt): those that are closed have to be told right, always
 *   roll_sim --sample N --into FOLDER   N programs that roll_sim_job can run for real, with what is said about them here
 */
#include "tests/simulation/run.h"

#include <getopt.h>
#include <stdlib.h>
#include <time.h>

static int usage(void)
{
    fprintf(stderr, "usage: roll_sim --seeds A-B [--orders N] [--healthy|--sick] [--only MUTATION] [--failures N] "
                    "[--limits FILE] [--report N]\n"
                    "       roll_sim --print SEED | --shrink SEED [--healthy|--sick|--only MUTATION]\n"
                    "       roll_sim --long N | --rows FILE\n"
                    "       roll_sim --sample N --into FOLDER [--seeds A-B]\n");
    return 2;
}

int main(int argc, char **argv)
{
    struct options o = {.orders = 3, .failures = 20, .only = MUTATION_NONE, .first = 1, .last = 1000};
    static const struct option names[] = {{"seeds", 1, NULL, 's'}, {"orders", 1, NULL, 'o'}, {"healthy", 0, NULL, 'h'},
                                          {"sick", 0, NULL, 'i'},  {"only", 1, NULL, 'm'},   {"failures", 1, NULL, 'f'},
                                          {"print", 1, NULL, 'p'}, {"limits", 1, NULL, 'l'}, {"shrink", 1, NULL, 'k'},
                                          {"rows", 1, NULL, 'r'},  {"report", 1, NULL, 't'}, {"sample", 1, NULL, 'a'},
                                          {"long", 1, NULL, 'g'},  {"into", 1, NULL, 'n'},   {NULL, 0, NULL, 0}};
    unsigned long long a = 1, b = 1000;
    int c;
    while ((c = getopt_long(argc, argv, "", names, NULL)) != -1) {
        switch (c) {
        case 's':
            if (sscanf(optarg, "%llu-%llu", &a, &b) != 2) {
                return usage();
            }
            break;
        case 'o':
            o.orders = (uint32_t)atoi(optarg);
            break;
        case 'h':
            o.healthy = true;
            break;
        case 'i':
            o.sick = true;
            break;
        case 'm':
            o.only = mutation_by_name(optarg);
            if (o.only == MUTATION_NONE) {
                return usage();
            }
            break;
        case 'f':
            o.failures = (uint32_t)atoi(optarg);
            break;
        case 'l':
            o.limits = optarg;
            break;
        case 'r':
            return rows_run(optarg, false);
        case 'g': /* behind the seeds that the tests run */
            a = 20001;
            b = 20000 + strtoull(optarg, NULL, 10);
            break;
        case 'a':
            o.samples = (uint32_t)atoi(optarg);
            break;
        case 'n':
            o.sample = optarg;
            break;
        case 't':
            o.report = (uint32_t)atoi(optarg);
            break;
        case 'k':
            o.shrink = true;
            a = b = strtoull(optarg, NULL, 10);
            break;
        case 'p':
            o.print = true;
            a = b = strtoull(optarg, NULL, 10);
            break;
        default:
            return usage();
        }
    }
    o.first = a;
    o.last = b;
    if (o.sample) {
        return sample_write(o.sample, o.samples, &o);
    }
    if (o.shrink) {
        return rows_shrink(a, &o);
    }
    clock_t begin = clock();
    uint32_t failures = o.failures;
    for (uint64_t seed = o.first; seed <= o.last; seed++) {
        run_seed(seed, &o, &failures);
    }
    if (!o.print) {
        table_show((double)(clock() - begin) / CLOCKS_PER_SEC);
    }
    report_show(&o);
    int rc = o.limits ? table_check(o.limits) : 0;
    return table_hung() > 0 ? 2 : rc;
}
