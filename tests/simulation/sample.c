/*
 * sample.c: a few programs as files, with what the oracle and the simulated engine say about each, for run_real.py to
 * run for real.
 */
#include "tests/simulation/run.h"

#include <string.h>

#define SAMPLE_ORDERS 24u

/* Can job.c make this program, and in a second or two? */
static bool is_real(const struct program *p, const struct mutation *k)
{
    if (p->ranks > 5 || p->starved != 0 || k->kind == MUTATION_JAM || k->kind == MUTATION_RACE ||
        k->kind == MUTATION_AFTER_PAUSE || run_story.still_ns - START_NS > 2 * S_) {
        return false;
    }
    for (uint32_t i = 0; i < p->acts; i++) {
        const struct act *a = &p->act[i];
        bool refused = a->error != 0 && a->kind != ACT_EXIT;
        bool past_event = a->kind == ACT_EVENT && a->count != 0;
        bool created = a->redop == ROLL_RED_PREMUL;        /* needs an operator of its own on each communicator */
        bool later = a->kind == ACT_DOOM && a->count != 0; /* when the job is elsewhere, here or there */
        if (later || refused || past_event || created || a->kind == ACT_COPY) {
            return false;
        }
    }
    return true;
}

static bool ends(void)
{
    for (uint32_t r = 0; r < run_sick.ranks; r++) {
        if (run_story.rank[r].end_ns == NEVER) {
            return false;
        }
    }
    return true;
}

struct said {
    unsigned code;
    mask_t culprits;
};

static void write_findings(FILE *out, uint64_t seed, const struct mutation *k)
{
    static struct said said[256];
    uint32_t n = 0;
    bool nothing = false;
    for (uint32_t order = 0; order < SAMPLE_ORDERS; order++) {
        struct findings f;
        struct feed_options how = {.patience_s = 14};
        if (feed(&run_sick, &run_story, seed * 1000 + order, &how, &f) != 0) {
            return;
        }
        (void)k;
        nothing = nothing || f.founds == 0;
        for (uint32_t i = 0; i < f.founds; i++) {
            struct said one = {f.found[i].code, f.found[i].culprits};
            bool known = f.found[i].superseded;
            for (uint32_t j = 0; j < n; j++) {
                known = known || (said[j].code == one.code && said[j].culprits == one.culprits);
            }
            if (!known && n < 256) {
                said[n++] = one;
                fprintf(out, "found %s %s\n", roll_verdict_name(one.code), mask_text(one.culprits));
            }
        }
        findings_fini(&f);
    }
    if (nothing) {
        fprintf(out, "found nothing -\n");
    }
}

/* What the rules take for right, whatever the simulated engine says: the pace of real processes shows other records
 * first. */
static void write_rules(FILE *out, const struct mutation *k)
{
    const mask_t sets[] = {0, k->who, run_story.waiting};
    for (unsigned code = 1; code < 1000 && k->kind != MUTATION_NONE; code++) {
        for (int i = 0; i < 3 && roll_verdict_name(code)[0] != '?'; i++) {
            struct findings one = {.founds = 1};
            struct latency latency;
            one.found[0] = (struct found){.code = (enum roll_verdict_code)code, .culprits = sets[i]};
            for (int certainty = ROLL_SUSPECTED; certainty <= ROLL_PROVEN; certainty++) {
                one.found[0].certainty = (enum roll_certainty)certainty;
                enum outcome outcome = judge(&run_sick, k, &run_story, &one, &latency);
                if (outcome == OUTCOME_RIGHT || outcome == OUTCOME_SUSPECTED) {
                    fprintf(out, "right %s %s %s\n", roll_certainty_name((unsigned)certainty), roll_verdict_name(code),
                            mask_text(sets[i]));
                }
            }
        }
    }
}

static bool write_sample(const char *folder, uint64_t seed, const struct mutation *k)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s-%llu.txt", folder, mutation_name(k->kind), (unsigned long long)seed);
    FILE *out = fopen(path, "w");
    if (!out) {
        perror(path);
        return false;
    }
    fprintf(out, "mistake %s by %s\nsize %u\nends %d\n", mutation_name(k->kind), mask_text(k->who), run_sick.ranks,
            ends());
    write_findings(out, seed, k);
    write_rules(out, k);
    program_print(&run_sick, out);
    return fclose(out) == 0;
}

int sample_write(const char *folder, uint32_t wanted, const struct options *o)
{
    uint32_t kinds[MUTATION_KINDS + 1] = {0}, made = 0;
    for (uint64_t seed = o->first; made < wanted && seed < o->first + 200000; seed++) {
        struct mutation k;
        if (!run_make(seed, o, &k) || execute(&run_base, &run_story, 0, 0, seed) != 0 ||
            execute_mutated(&run_sick, &run_story, &k, seed) != 0 || !is_real(&run_sick, &k)) {
            continue;
        }
        uint32_t most = k.kind == MUTATION_NONE ? 1 + wanted / 4 : 1 + wanted / MUTATION_KINDS;
        if (kinds[k.kind] < most) {
            kinds[k.kind]++;
            made++;
            if (!write_sample(folder, seed, &k)) {
                return 2;
            }
        }
    }
    printf("%u programs written to %s\n", made, folder);
    return made == wanted ? 0 : 2;
}
