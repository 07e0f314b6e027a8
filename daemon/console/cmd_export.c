/*
 * cmd_export.c: rollcall export: a recorded trace as files that other tools read.
 */
#include "daemon/console/console.h"
#include "daemon/console/export/export.h"
#include "trace/err.h"

#include <stdio.h>

int cmd_export(const struct roll_command *self, int argc, char **argv);

int cmd_export(const struct roll_command *self, int argc, char **argv)
{
    bool recorder = false;
    const char *folder = "flight_recorder";
    const struct roll_option options[] = {
        {"flight-recorder", 0, ROLL_OPT_FLAG, NULL, "as dumps of PyTorch's Flight Recorder, which torchfrtrace reads",
         &recorder},
        {"output", 'o', ROLL_OPT_TEXT, "DIR", "where the files go, one a rank; default flight_recorder", &folder},
        {0},
    };
    int code;
    int first = roll_options_read(self, options, false, argc, argv, &code);
    if (first < 0) {
        return code;
    }
    if (!recorder) {
        return roll_usage(self, "say as what: --flight-recorder");
    }
    if (first == argc) {
        return roll_usage(self, "name a trace: a directory of --trace, or files");
    }
    size_t ranks;
    bool cut;
    if (roll_export(argv + first, (size_t)(argc - first), folder, ROLL_EXPORT_ENTRIES, &ranks, &cut) != 0) {
        return ROLL_EXIT_UNREACHABLE;
    }
    printf("%zu dump%s in %s\n", ranks, ranks == 1 ? "" : "s", folder);
    return cut ? ROLL_EXIT_INCOMPLETE : ROLL_EXIT_CLEAN;
}
