/*
 * report.c: what a process did with its devices, for the report of a rehearsal: HOSTCUDA_REPORT names a folder, and
 * every process that uses a device writes `hostcuda.PID` there:
 *
 *   rank 3                                                  the variable RANK, where it is set
 *   memory 0 peak 00000000000001048576 of 00000000085899345920   bytes of device 0: most in use at one time, and size
 *   kernel skipped 00000000000000000012 NAME                how often the kernel was launched and what became of it:
 *                                                           skipped, run (its twin on the host) or refused
 *
 * Numbers have a fixed width and are overwritten in place, so the file is right at every moment: a rank that is killed
 * has said all. Writing at exit was rejected for that reason, and shared memory because a text needs no reader of ours.
 */
#include "hostnccl/cuda/hostcuda.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DIGITS = 20, LINE_BYTES = 8192 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int file = -1;
static off_t end; /* guarded by lock */

bool hostcuda_report_is_wanted(void)
{
    return file >= 0;
}

void hostcuda_report_start(void)
{
    char path[4096];
    const char *folder = getenv("HOSTCUDA_REPORT"), *rank = getenv("RANK");
    if (!folder || !*folder) {
        return;
    }
    int length = snprintf(path, sizeof(path), "%s/hostcuda.%ld", folder, (long)getpid());
    if (length > 0 && (size_t)length < sizeof(path)) {
        file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    }
    if (file < 0) {
        fprintf(stderr, "hostcuda: HOSTCUDA_REPORT=%s: no report can be written there\n", folder);
    } else if (rank && *rank) {
        hostcuda_report_line(0, "rank %.20s\n", rank);
    }
}

off_t hostcuda_report_line(int number_at, const char *format, ...)
{
    char line[LINE_BYTES];
    va_list arguments;
    if (file < 0) {
        return -1;
    }
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    if (length < 0) {
        return -1;
    }
    if ((size_t)length >= sizeof(line)) { /* a name that long is cut */
        length = sizeof(line) - 1;
        line[length - 1] = '\n';
    }
    pthread_mutex_lock(&lock);
    off_t at = end;
    bool is_written = pwrite(file, line, (size_t)length, at) == length;
    end += is_written ? length : 0;
    pthread_mutex_unlock(&lock);
    return is_written ? at + number_at : -1;
}

void hostcuda_report_number(off_t at, unsigned long long number)
{
    char digits[DIGITS + 1];
    if (file >= 0 && at >= 0) {
        snprintf(digits, sizeof(digits), "%0*llu", DIGITS, number);
        if (pwrite(file, digits, DIGITS, at) != DIGITS) {
            return; /* a full disk costs the report, not the job */
        }
    }
}
