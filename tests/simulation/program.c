/*
 * program.c: see program.h. The text form is one act a line, so that a shrunk program can be read and kept:
 *
 *   coll 0-3 t0 s1 u7 AllReduce c0 n64 float32 sum
 *   send 0 t0 s1 u9 c0 n32 float32 p1
 */
#include "tests/simulation/program.h"

#include <stdlib.h>
#include <string.h>

static const char *const kind_word[ACT_KINDS] = {
#define ACT_ROW(name, word) [ACT_##name] = (word),
#include "tests/simulation/act.def"
#undef ACT_ROW
};

static const char *const dtype_word[ROLL_DTYPE_LIMIT] = {"int8",    "uint8",    "int32",   "uint32",
                                                         "int64",   "uint64",   "float16", "float32",
                                                         "float64", "bfloat16", "fp8e4m3", "fp8e5m2"};
static const char *const redop_word[ROLL_RED_LIMIT] = {"sum", "prod", "max", "min", "avg", "premul"};

uint32_t rng_next(struct rng *rng)
{
    uint64_t z = rng->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

uint32_t rng_below(struct rng *rng, uint32_t n)
{
    return n == 0 ? 0 : (uint32_t)((uint64_t)rng_next(rng) * n >> 32);
}

bool rng_chance(struct rng *rng, uint32_t percent)
{
    return rng_below(rng, 100) < percent;
}

uint32_t mask_count(mask_t set)
{
    return (uint32_t)__builtin_popcount(set);
}

uint32_t mask_first(mask_t set)
{
    return set ? (uint32_t)__builtin_ctz(set) : RANKS_MAX;
}

uint32_t mask_at(mask_t set, uint32_t i)
{
    for (; set && i > 0; i--) {
        set = (mask_t)(set & (set - 1));
    }
    return mask_first(set);
}

const char *mask_text(mask_t set)
{
    static char text[8][64];
    static unsigned turn;
    char *out = text[turn++ % 8];
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t r = 0; r < RANKS_MAX; r++) {
        if ((set & BIT(r)) == 0) {
            continue;
        }
        uint32_t last = r;
        while (last + 1 < RANKS_MAX && (set & BIT(last + 1)) != 0) {
            last++;
        }
        used += (size_t)snprintf(out + used, sizeof(text[0]) - used, last == r ? "%s%u" : "%s%u-%u", used ? "," : "", r,
                                 last);
        r = last;
    }
    if (used == 0) {
        snprintf(out, sizeof(text[0]), "-");
    }
    return out;
}

int mask_parse(const char *text, mask_t *set)
{
    *set = 0;
    if (strcmp(text, "-") == 0) {
        return 0;
    }
    while (*text) {
        char *end;
        unsigned long first = strtoul(text, &end, 10), last = first;
        if (end == text) {
            return -1;
        }
        if (*end == '-') {
            text = end + 1;
            last = strtoul(text, &end, 10);
        }
        if (last >= RANKS_MAX || last < first) {
            return -1;
        }
        for (unsigned long r = first; r <= last; r++) {
            *set = (mask_t)(*set | BIT(r));
        }
        text = *end == ',' ? end + 1 : end;
        if (*end && *end != ',') {
            return -1;
        }
    }
    return 0;
}

uint32_t comm_rank(const struct program *p, int comm, uint32_t rank)
{
    return mask_count((mask_t)(p->comm[comm].members & (BIT(rank) - 1)));
}

bool program_add(struct program *p, const struct act *act)
{
    if (p->acts == ACTS_MAX) {
        return false;
    }
    p->act[p->acts++] = *act;
    return true;
}

bool program_insert(struct program *p, uint32_t at, const struct act *act)
{
    if (p->acts == ACTS_MAX) {
        return false;
    }
    memmove(&p->act[at + 1], &p->act[at], (p->acts - at) * sizeof(*act));
    p->act[at] = *act;
    p->acts++;
    return true;
}

void program_tidy(struct program *p)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->acts; i++) {
        if (p->act[i].ranks != 0) {
            p->act[kept++] = p->act[i];
        }
    }
    p->acts = kept;
}

bool program_unit_refused(const struct program *p, uint16_t unit)
{
    for (uint32_t i = 0; i < p->acts; i++) {
        if (p->act[i].unit == unit && p->act[i].error != 0) {
            return true;
        }
    }
    return false;
}

bool act_is_collective(const struct act *a)
{
    return a->kind == ACT_COLL && a->error == 0 && a->count != 0 && mask_count(a->ranks) > 1;
}

bool act_is_call(const struct act *a)
{
    return a->kind == ACT_COLL || a->kind == ACT_SEND || a->kind == ACT_RECV;
}

uint32_t dtype_width(unsigned dtype)
{
    static const uint8_t width[ROLL_DTYPE_LIMIT] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return dtype < ROLL_DTYPE_LIMIT ? width[dtype] : 1;
}

void program_print(const struct program *p, FILE *out)
{
    fprintf(out, "ranks %u\npace %u%s%s\n", p->ranks, p->pace_ns, p->completion ? " completion" : "",
            p->connects ? " connects" : "");
    if (p->starved != 0) {
        fprintf(out, "starved %u\n", p->starved);
    }
    for (uint32_t c = 0; c < p->comms; c++) {
        const struct comm_info *k = &p->comm[c];
        fprintf(out, "comm c%u %s %s parent %d colour %d child %u%s\n", c, k->label, mask_text(k->members), k->parent,
                k->color, k->child, k->nonblocking ? " nonblocking" : "");
    }
    for (uint32_t i = 0; i < p->acts; i++) {
        const struct act *a = &p->act[i];
        fprintf(out, "%s %s t%u s%u u%u", kind_word[a->kind], mask_text(a->ranks), a->thread, a->stream, a->unit);
        if (a->kind == ACT_COLL) {
            fprintf(out, " %s", roll_op_name(a->op));
        }
        if (a->comm >= 0) {
            fprintf(out, " c%d", a->comm);
        }
        if (a->kind == ACT_SPLIT) {
            fprintf(out, " k%d", a->child);
        }
        if (act_is_call(a) || a->count != 0) {
            fprintf(out, " n%llu", (unsigned long long)a->count);
        }
        if (act_is_call(a)) {
            fprintf(out, " %s", dtype_word[a->dtype % ROLL_DTYPE_LIMIT]);
            if (a->redop < ROLL_RED_LIMIT) {
                fprintf(out, " %s", redop_word[a->redop]);
            }
        }
        if (a->peer >= 0) {
            fprintf(out, " p%d", a->peer);
        }
        if (a->error != 0) {
            fprintf(out, " e%u", a->error);
        }
        if (a->slow != 0) {
            fprintf(out, " w%u", a->slow);
        }
        if (a->site != 0) {
            fprintf(out, " @%u", a->site);
        }
        fprintf(out, "\n");
    }
    fprintf(out, "end\n");
}

static bool parse_comm(struct program *p, const char *line)
{
    char members[64], more[16] = "";
    unsigned index, child;
    int parent, color;
    struct comm_info k = {0};
    if (sscanf(line, "comm c%u %11s %63s parent %d colour %d child %u %15s", &index, k.label, members, &parent, &color,
               &child, more) < 6 ||
        index != p->comms || index >= COMMS_MAX || mask_parse(members, &k.members) != 0) {
        return false;
    }
    k.parent = (int8_t)parent;
    k.color = (int8_t)color;
    k.child = (uint8_t)child;
    k.nonblocking = strcmp(more, "nonblocking") == 0;
    p->comm[p->comms++] = k;
    return true;
}

static bool parse_word(struct act *a, const char *word)
{
    long long number = word[0] ? strtoll(word + 1, NULL, 10) : 0;
    for (unsigned i = 0; i < ROLL_DTYPE_LIMIT; i++) {
        if (strcmp(word, dtype_word[i]) == 0) {
            a->dtype = (uint8_t)i;
            return true;
        }
    }
    for (unsigned i = 0; i < ROLL_RED_LIMIT; i++) {
        if (strcmp(word, redop_word[i]) == 0) {
            a->redop = (uint8_t)i;
            return true;
        }
    }
    for (unsigned op = 1; op < ROLL_OP_LIMIT; op++) {
        if (a->kind == ACT_COLL && roll_op_class(op) == ROLL_CLASS_COLL && strcmp(roll_op_name(op), word) == 0) {
            a->op = (uint8_t)op;
            return true;
        }
    }
    switch (word[0]) {
    case 't':
        a->thread = (uint8_t)number;
        return number >= 0 && number < THREADS_MAX;
    case 's':
        a->stream = (uint8_t)number;
        return number >= 0 && number < STREAMS_MAX;
    case 'u':
        a->unit = (uint16_t)number;
        return true;
    case 'c':
        a->comm = (int8_t)number;
        return number >= 0 && number < COMMS_MAX;
    case 'k':
        a->child = (int8_t)number;
        return number >= -1 && number < COMMS_MAX;
    case 'n':
        a->count = (uint64_t)number;
        return true;
    case 'p':
        a->peer = (int8_t)number;
        return number >= 0 && number < 64;
    case 'w':
        a->slow = (uint8_t)number;
        return true;
    case '@':
        a->site = (uint16_t)number;
        return true;
    case 'e':
        a->error = (uint8_t)number;
        return true;
    default:
        return false;
    }
}

bool program_parse_line(struct program *p, const char *line)
{
    char copy[256], *save = NULL;
    if (sscanf(line, "ranks %u", &p->ranks) == 1) {
        return p->ranks > 0 && p->ranks <= RANKS_MAX;
    }
    if (sscanf(line, "pace %u", &p->pace_ns) == 1) {
        p->completion = strstr(line, " completion") != NULL;
        p->connects = strstr(line, " connects") != NULL;
        return p->pace_ns > 0;
    }
    if (sscanf(line, "starved %u", &p->starved) == 1) {
        return p->starved < 1000;
    }
    if (strncmp(line, "comm ", 5) == 0) {
        return parse_comm(p, line);
    }
    snprintf(copy, sizeof(copy), "%s", line);
    char *word = strtok_r(copy, " \n", &save), *ranks = strtok_r(NULL, " \n", &save);
    struct act a = {.comm = -1, .child = -1, .peer = -1, .dtype = ROLL_DTYPE_NONE, .redop = ROLL_RED_NONE};
    a.kind = ACT_KINDS;
    for (unsigned k = 0; word && k < ACT_KINDS; k++) {
        a.kind = strcmp(word, kind_word[k]) == 0 ? (uint8_t)k : a.kind;
    }
    if (a.kind == ACT_KINDS || !ranks || mask_parse(ranks, &a.ranks) != 0) {
        return false;
    }
    while ((word = strtok_r(NULL, " \n", &save)) != NULL) {
        if (!parse_word(&a, word)) {
            return false;
        }
    }
    p->units = a.unit >= p->units ? a.unit + 1u : p->units;
    return program_add(p, &a);
}

bool program_parse(struct program *p, FILE *in)
{
    char line[256];
    p->comms = p->acts = p->units = p->starved = 0;
    while (fgets(line, sizeof(line), in)) {
        if (strcmp(line, "end\n") == 0) {
            return true;
        }
        if (!program_parse_line(p, line)) {
            fprintf(stderr, "roll_sim: malformed line: %s", line);
            return false;
        }
    }
    fprintf(stderr, "roll_sim: a program without 'end'\n");
    return false;
}
