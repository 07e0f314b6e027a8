/*
 * main.c: roll_sim: programs from seeds, through the engine, against their truth. docs/SIMULATION.md; `roll_sim --help`
 * lists the options.
 */
#include "tests/simulation/run.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char help[] =
    "usage: roll_sim [--seeds A-B] [OPTION...]   random programs with a known truth, judged: a table by mistake\n"
    "       roll_sim --print SEED                the program of a seed, who waits where, and the verdicts in each "
    "order\n"
    "       roll_sim --shrink SEED               the same, as small as it gets while it fails in the same way\n"
    "       roll_sim --rows FILE                 programs of a file (regressions.txt): closed rows have to be told "
    "right\n"
    "       roll_sim --sample N --into FOLDER    N programs that roll_sim_job can run for real\n"
    "\n"
    "which programs:\n"
    "  --seeds A-B      these seeds; 1-1000 when not given\n"
    "  --long N         N seeds behind those that the tests run\n"
    "  --healthy        correct programs only\n"
    "  --sick           programs with a mistake only\n"
    "  --only MUTATION  programs with this mistake only (tests/simulation/mutation.def)\n"
    "  --orders N       each of them in N orders of arrival; 3 when not given\n"
    "\n"
    "how the engine hears of them:\n"
    "  --digest N       through N levels of digests (1-3): the engine sees records where the hashes say so\n"
    "  --history N      so many records of each rank are fed then for the sake of what came before; 512\n"
    "  --faults         digests are lost, and agents, relays and the root are started anew\n"
    "  --scoped         records of those ranks only that the hints concern, as of a job of many ranks\n"
    "  --narrow         --scoped, and where calls differ their calls on those communicators first\n"
    "  --room BYTES     the engine has so little room for what the ranks define that it sets some aside\n"
    "\n"
    "what is said of them:\n"
    "  --failures N     at most N failures as they come; 20 when not given\n"
    "  --report N       the N most frequent kinds of failure, each with its smallest program\n"
    "  --limits FILE    exit code 1 when a mistake fails in more runs than the file allows\n"
    "\n"
    "  --help           this text\n"
    "\n"
    "Exit codes: 0 as it should be; 1 beyond --limits, or a row that is not told right; 2 usage, or a correct program\n"
    "that hangs in the simulator itself.\n";

/* One line: getopt has said what is wrong with an option, we what is wrong with its value. */
static int refuse(const char *what, const char *value)
{
    if (what) {
        fprintf(stderr, "roll_sim: '%s' is no %s\n", value, what);
    }
    fprintf(stderr, "roll_sim: `roll_sim --help` lists the options\n");
    return 2;
}

/* A whole number and nothing behind it. */
static bool number(const char *text, uint64_t *out)
{
    char *end = NULL;
    *out = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0';
}

/* A-B, both whole numbers, A not behind B. */
static bool range(const char *text, uint64_t *first, uint64_t *last)
{
    char a[24] = "";
    size_t n = strcspn(text, "-");
    if (text[n] != '-' || n >= sizeof(a)) {
        return false;
    }
    memcpy(a, text, n);
    return number(a, first) && number(text + n + 1, last) && *first <= *last;
}

int main(int argc, char **argv)
{
    struct options o = {.orders = 3, .failures = 20, .only = MUTATION_NONE, .first = 1, .last = 1000};
    static const struct option names[] = {
        {"seeds", 1, NULL, 's'},  {"orders", 1, NULL, 'o'},   {"healthy", 0, NULL, 'h'}, {"sick", 0, NULL, 'i'},
        {"only", 1, NULL, 'm'},   {"failures", 1, NULL, 'f'}, {"print", 1, NULL, 'p'},   {"limits", 1, NULL, 'l'},
        {"shrink", 1, NULL, 'k'}, {"rows", 1, NULL, 'r'},     {"report", 1, NULL, 't'},  {"sample", 1, NULL, 'a'},
        {"digest", 1, NULL, 'd'}, {"history", 1, NULL, 'y'},  {"faults", 0, NULL, 'F'},  {"scoped", 0, NULL, 'S'},
        {"long", 1, NULL, 'g'},   {"into", 1, NULL, 'n'},     {"help", 0, NULL, 'H'},    {"room", 1, NULL, 'R'},
        {"narrow", 0, NULL, 'N'}, {NULL, 0, NULL, 0}};
    uint64_t n = 0;
    int c;
    while ((c = getopt_long(argc, argv, "", names, NULL)) != -1) {
        if (strchr("oftagkpdyR", c) && (!number(optarg, &n) || (n > UINT32_MAX && strchr("ofta", c)))) {
            return refuse("number", optarg);
        }
        switch (c) {
        case 's':
            if (!range(optarg, &o.first, &o.last)) {
                return refuse("range of seeds, like 1-20000", optarg);
            }
            break;
        case 'o':
            o.orders = (uint32_t)n;
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
                return refuse("mistake (tests/simulation/mutation.def lists them)", optarg);
            }
            break;
        case 'f':
            o.failures = (uint32_t)n;
            break;
        case 'l':
            o.limits = optarg;
            break;
        case 'r':
            return rows_run(optarg, false);
        case 'd':
            if (n < 1 || n > 3) {
                return refuse("number of levels, 1 to 3", optarg);
            }
            run_levels = (uint32_t)n;
            break;
        case 'F':
            run_faults = true;
            break;
        case 'S':
            run_scoped = true;
            break;
        case 'N':
            run_scoped = run_narrow = true;
            break;
        case 'R':
            run_room = n;
            break;
        case 'y':
            run_history = (uint32_t)n;
            break;
        case 'g': /* behind the seeds that the tests run */
            o.first = 20001;
            o.last = 20000 + n;
            break;
        case 'a':
            o.samples = (uint32_t)n;
            break;
        case 'n':
            o.sample = optarg;
            break;
        case 't':
            o.report = (uint32_t)n;
            break;
        case 'k':
            o.shrink = true;
            o.first = o.last = n;
            break;
        case 'p':
            o.print = true;
            o.first = o.last = n;
            break;
        case 'H':
            fputs(help, stdout);
            return 0;
        default:
            return refuse(NULL, NULL);
        }
    }
    if (optind < argc) {
        return refuse("option", argv[optind]);
    }
    if ((o.samples > 0) != (o.sample != NULL)) {
        fprintf(stderr, "roll_sim: --sample N and --into FOLDER belong together\n");
        return refuse(NULL, NULL);
    }
    if (o.sample) {
        return sample_write(o.sample, o.samples, &o);
    }
    if (o.shrink) {
        return rows_shrink(o.first, &o);
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
