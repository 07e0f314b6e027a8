/*
 * top_screen.c: paints with ncurses; top_view.c decides what is shown.
 *
 * The whole screen is painted anew on every turn; ncurses sends only what differs. Windows and panels were rejected:
 * one list and three fixed lines need neither. SIGTERM and SIGHUP only set a flag, so that the terminal is restored on
 * every way out.
 */
#include "daemon/console/top/top_screen.h"

#include "daemon/base/text.h"
#include "daemon/console/top/top_view.h"
#include "trace/err.h"

#include <locale.h>
#include <ncurses.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 1024
#define HEAD_LINES 4 /* two of heading, one of what is found, one of tabs */

enum pair { PAIR_PLAIN, PAIR_HEAD, PAIR_BAD, PAIR_DOUBT, PAIR_KEY };

struct screen {
    json_t *status, *verdicts; /* owned; the ones that are shown */
    char why[256];             /* why there is nothing newer; "" = all is well */
    uint64_t heard_ns;         /* when the status came */
    enum roll_top_tab tab;
    size_t scroll[ROLL_TOP_TABS];
    bool frozen, fold, help;
};

static volatile sig_atomic_t over;

static void on_signal(int sig)
{
    (void)sig;
    over = 1;
}

static void put_line(int row, const char *text, attr_t attributes)
{
    char line[LINE_BYTES];
    if (row < 0 || row >= LINES) {
        return;
    }
    snprintf(line, sizeof(line), "%s", text);
    roll_text_fit(line, sizeof(line), (size_t)COLS);
    attrset((int)attributes);
    mvaddstr(row, 0, line);
    clrtoeol();
    if ((attributes & A_REVERSE) != 0) {
        mvchgat(row, 0, -1, attributes, (short)PAIR_NUMBER(attributes), NULL);
    }
    attrset(A_NORMAL);
}

/* The colour of a row: a certain fault stands out, a doubtful one a little. */
static attr_t row_attributes(enum roll_top_tab tab, const char *line)
{
    if (tab == ROLL_TOP_VERDICTS) {
        return strstr(line, "proven") != NULL || strstr(line, "predicted") != NULL ? COLOR_PAIR(PAIR_BAD)
               : strstr(line, "suspected") != NULL                                 ? COLOR_PAIR(PAIR_DOUBT)
                                                                                   : A_NORMAL;
    }
    if (tab == ROLL_TOP_RANKS) {
        return strstr(line, " dead ") != NULL      ? COLOR_PAIR(PAIR_BAD)
               : strstr(line, " stopped ") != NULL ? COLOR_PAIR(PAIR_DOUBT)
                                                   : A_NORMAL;
    }
    return A_NORMAL;
}

static void paint_table(struct screen *s)
{
    struct roll_columns table = {0};
    char line[LINE_BYTES];
    int err = s->tab == ROLL_TOP_RANKS   ? roll_top_ranks(s->status, roll_now_real_ns(), s->fold, &table)
              : s->tab == ROLL_TOP_COMMS ? roll_top_comms(s->status, s->fold, &table)
                                         : roll_top_verdicts(s->verdicts, &table);
    size_t rows = err == 0 ? roll_columns_rows(&table) : 1,
           room = LINES > HEAD_LINES + 3 ? (size_t)(LINES - HEAD_LINES - 3) : 1;
    size_t last = rows > room + 1 ? rows - 1 - room : 0;
    size_t *scroll = &s->scroll[s->tab];
    *scroll = *scroll > last ? last : *scroll;
    roll_columns_line(&table, 0, (size_t)COLS, line, sizeof(line));
    put_line(HEAD_LINES, line, A_BOLD);
    for (size_t i = 0; i < room; i++) {
        size_t row = 1 + *scroll + i;
        roll_columns_line(&table, row, (size_t)COLS, line, sizeof(line));
        put_line(HEAD_LINES + 1 + (int)i, line, row_attributes(s->tab, line));
    }
    if (rows <= 1) {
        put_line(HEAD_LINES + 1, s->tab == ROLL_TOP_VERDICTS ? "nothing found so far" : "nothing to show yet", A_DIM);
    }
    roll_columns_fini(&table);
}

static void paint_help(void)
{
    static const char *const text[] = {
        "keys",
        "  Tab, Left, Right   the next table: ranks, communicators, verdicts",
        "  Up, Down, PgUp, PgDn, Home, End   scroll",
        "  f   freeze: keep what is shown; again: go on",
        "  g   group the ranks that stand at the same place",
        "  q   quit          ?   this text",
        "",
        "ranks: STATE: how it stands, and the call that it is inside.",
        "  WAITS FOR: the ranks whose call it lacks.  AGE: since the last call.",
        "communicators: BY ALL: how many collectives every member has issued.",
        "  FURTHEST: how many the furthest member has.  BEHIND: who has not issued the next one.",
        "verdicts: TIME (UTC): when it was given.  RANKS: the culprits.  CERTAINTY: replaced,",
        "  confirmed, withdrawn: a later verdict did that, and the finding stands no more.",
        "columns without room, and those without content, are left out.",
    };
    for (size_t i = 0; i < sizeof(text) / sizeof(text[0]); i++) {
        put_line(HEAD_LINES + 1 + (int)i, text[i], i == 0 ? A_BOLD : A_NORMAL);
    }
}

static void paint_tabs(const struct screen *s)
{
    move(HEAD_LINES - 1, 0);
    clrtoeol();
    for (unsigned i = 0; i < ROLL_TOP_TABS; i++) {
        const json_t *summary = json_object_get(s->status, "summary");
        size_t n = i == ROLL_TOP_VERDICTS
                       ? json_array_size(s->verdicts)
                       : (size_t)json_integer_value(json_object_get(summary, i == ROLL_TOP_RANKS ? "ranks" : "comms"));
        attrset(i == s->tab ? A_REVERSE : A_NORMAL);
        printw(" %s %zu ", roll_top_tab_name((enum roll_top_tab)i), n);
        attrset(A_NORMAL);
        addch(' ');
    }
}

static void paint(struct screen *s)
{
    char first[256], second[256], line[512], span[32], stale[256], found[LINE_BYTES];
    erase();
    roll_top_heading(s->status, first, second, sizeof(first));
    put_line(0, first, COLOR_PAIR(PAIR_HEAD) | A_BOLD);
    put_line(1, second, A_NORMAL);
    roll_top_found(s->status, s->verdicts, found, sizeof(found));
    put_line(2, found, COLOR_PAIR(strncmp(found, "FOUND", 5) == 0 ? PAIR_BAD : PAIR_DOUBT));
    paint_tabs(s);
    if (s->help) {
        paint_help();
    } else {
        paint_table(s);
    }
    uint64_t now = roll_now_real_ns();
    uint64_t silent = s->heard_ns != 0 && now > s->heard_ns ? now - s->heard_ns : 0;
    if (s->why[0] != '\0') {
        /* The age comes first: a reason with a path in it is cut at the edge of a narrow window. */
        snprintf(line, sizeof(line), "last heard %s ago: %s", roll_span_text(silent, span, sizeof(span)), s->why);
        put_line(LINES - 2, s->heard_ns == 0 ? s->why : line, COLOR_PAIR(PAIR_BAD));
    } else if (s->frozen) {
        snprintf(line, sizeof(line), "frozen %s ago", roll_span_text(silent, span, sizeof(span)));
        put_line(LINES - 2, line, COLOR_PAIR(PAIR_DOUBT));
    } else {
        if (roll_top_stale(s->status, now, stale, sizeof(stale))[0] == '\0') {
            roll_top_unseen(s->status, stale, sizeof(stale));
        }
        put_line(LINES - 2, stale, COLOR_PAIR(PAIR_DOUBT));
    }
    put_line(LINES - 1, "q quit  ? help  Tab next table  arrows scroll  f freeze  g group",
             A_REVERSE | COLOR_PAIR(PAIR_KEY));
    refresh();
}

static void refetch(struct screen *s, roll_top_fetch *fetch, void *context)
{
    json_t *status = NULL, *verdicts = NULL;
    s->why[0] = '\0';
    fetch(context, &status, &verdicts, s->why, sizeof(s->why));
    if (status != NULL) {
        json_decref(s->status);
        s->status = status;
        s->heard_ns = roll_now_real_ns();
    }
    if (verdicts != NULL) {
        json_decref(s->verdicts);
        s->verdicts = verdicts;
    }
}

/* Returns false when the key ends the program. */
static bool on_key(struct screen *s, int key)
{
    size_t page = LINES > HEAD_LINES + 4 ? (size_t)(LINES - HEAD_LINES - 4) : 1, *scroll = &s->scroll[s->tab];
    switch (key) {
    case 'q':
    case 'Q':
        return false;
    case '?':
    case 'h':
    case KEY_F(1):
        s->help = !s->help;
        break;
    case '\t':
    case KEY_RIGHT:
        s->tab = (enum roll_top_tab)((s->tab + 1) % ROLL_TOP_TABS);
        break;
    case KEY_BTAB:
    case KEY_LEFT:
        s->tab = (enum roll_top_tab)((s->tab + ROLL_TOP_TABS - 1) % ROLL_TOP_TABS);
        break;
    case KEY_DOWN:
    case 'j':
        ++*scroll;
        break;
    case KEY_UP:
    case 'k':
        *scroll -= *scroll > 0;
        break;
    case KEY_NPAGE:
        *scroll += page;
        break;
    case KEY_PPAGE:
        *scroll -= *scroll < page ? *scroll : page;
        break;
    case KEY_HOME:
        *scroll = 0;
        break;
    case KEY_END:
        *scroll = SIZE_MAX / 2; /* painting limits it to the last page */
        break;
    case 'f':
        s->frozen = !s->frozen;
        break;
    case 'g':
        s->fold = !s->fold;
        break;
    default:
        break;
    }
    return true;
}

static void begin_colours(void)
{
    const char *no = getenv("NO_COLOR");
    if ((no != NULL && no[0] != '\0') || !has_colors()) {
        return;
    }
    start_color();
    use_default_colors();
    init_pair(PAIR_HEAD, COLOR_CYAN, -1);
    init_pair(PAIR_BAD, COLOR_RED, -1);
    init_pair(PAIR_DOUBT, COLOR_YELLOW, -1);
    init_pair(PAIR_KEY, -1, -1);
}

static uint64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

int roll_top_screen(roll_top_fetch *fetch, void *context, double interval_s)
{
    struct screen s = {0};
    struct sigaction act = {.sa_handler = on_signal};
    setlocale(LC_ALL, "");
    SCREEN *terminal = newterm(NULL, stdout, stdin);
    if (terminal == NULL) {
        return ROLL_E_UNSUPPORTED;
    }
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGHUP, &act, NULL);
    sigaction(SIGINT, &act, NULL);
    begin_colours();
    cbreak();
    noecho();
    curs_set(0);
    keypad(stdscr, TRUE);
    refetch(&s, fetch, context);
    for (uint64_t due = now_ms() + (uint64_t)(interval_s * 1000); !over;) {
        paint(&s);
        uint64_t now = now_ms();
        timeout(now < due ? (int)(due - now) : 0);
        int key = getch();
        if (key != ERR) {
            if (!on_key(&s, key)) {
                break;
            }
            continue;
        }
        if (now_ms() >= due) {
            if (!s.frozen) {
                refetch(&s, fetch, context);
            }
            due = now_ms() + (uint64_t)(interval_s * 1000);
        }
    }
    endwin();
    delscreen(terminal);
    json_decref(s.status);
    json_decref(s.verdicts);
    return 0;
}
