/*
 * cmd_dump.c: rollcall dump FILE: the bytes of a ring, a trace file or a control page beside their meaning.
 *
 * The file is read into memory once rather than mapped: a ring that a live rank writes would change under the walk.
 */
#include "daemon/base/file.h"
#include "daemon/console/console.h"
#include "daemon/console/dump/dump.h"
#include "daemon/console/file.h"

#include "trace/err.h"

#include <stdlib.h>
#include <sys/stat.h>

#define FILE_MAX ((size_t)8 << 30) /* rings are bounded by their format, traces by what one daemon writes */

int cmd_dump(const struct roll_command *self, int argc, char **argv);

int cmd_dump(const struct roll_command *self, int argc, char **argv)
{
    struct roll_dump dump = {.out = stdout};
    uint32_t limit = 0;
    const struct roll_option options[] = {
        {"json", 0, ROLL_OPT_FLAG, NULL, "one JSON object a line", &dump.json},
        {"limit", 'n', ROLL_OPT_COUNT, "N", "the last N records of a ring, the first N frames of a trace", &limit},
        {0},
    };
    int code;
    int first = roll_options_read(self, options, false, argc, argv, &code);
    if (first < 0) {
        return code;
    }
    if (argc - first != 1) {
        return roll_usage(self, argc == first ? "name the file to show" : "one file at a time");
    }
    struct stat st;
    if (stat(argv[first], &st) == 0 && S_ISDIR(st.st_mode)) {
        roll_say("%s is a directory: name one file of it; `rollcall analyze` reads all of them", argv[first]);
        return ROLL_EXIT_UNREACHABLE;
    }
    dump.limit = limit;
    char *data;
    size_t bytes;
    int err = roll_read_whole(argv[first], FILE_MAX, &data, &bytes);
    if (err == 0) {
        err = roll_dump_any(&dump, data, bytes);
    }
    bool ours = err == ROLL_E_SHORT && bytes > 0 && roll_file_is_ours(data, bytes);
    free(data);
    if (err == ROLL_E_INCOMPLETE) {
        fflush(stdout);
        roll_say("%s: cut short; everything before the cut is shown", argv[first]);
        return ROLL_EXIT_INCOMPLETE;
    }
    if (err == ROLL_E_CHECKSUM || err == ROLL_E_SIZE || err == ROLL_E_CORRUPT || ours) {
        fflush(stdout);
        roll_say("%s: damaged: %s; everything before that is shown", argv[first], roll_strerror(err));
        return ROLL_EXIT_UNREACHABLE;
    }
    if (err != 0) {
        fflush(stdout);
        roll_file_complain(argv[first], err, ROLL_WANTED_DUMPED);
        return ROLL_EXIT_UNREACHABLE;
    }
    return ROLL_EXIT_CLEAN;
}
