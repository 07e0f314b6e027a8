/*
 * html.c: see html.h.
 *
 * The page's modules stand in the program as one script (bundle.cmake makes it when rollcall is built), so a report is
 * of the same release as who wrote it. The Content-Security-Policy knows that script and that style by their hashes:
 * whatever a name of a job could smuggle in would not run. A nonce was rejected: it is a secret only until the file has
 * been written.
 */
#include "daemon/console/report/html.h"

#include "trace/err.h"

#include <report_hashes.h> /* made by bundle.cmake */

#include <stdbool.h>
#include <string.h>

#define ASSET(name, file)                                                                                              \
    __asm__(".pushsection .rodata\n"                                                                                   \
            ".hidden roll_report_" #name "\n"                                                                          \
            ".globl roll_report_" #name "\n"                                                                           \
            "roll_report_" #name ":\n"                                                                                 \
            ".incbin \"" ROLL_REPORT_FOLDER "/" file "\"\n"                                                            \
            ".hidden roll_report_end_" #name "\n"                                                                      \
            ".globl roll_report_end_" #name "\n"                                                                       \
            "roll_report_end_" #name ":\n"                                                                             \
            ".byte 0\n"                                                                                                \
            ".popsection\n");                                                                                          \
    extern const char roll_report_##name[], roll_report_end_##name[]

ASSET(script, "report.js");
ASSET(style, "report.css");
ASSET(body, "report_body.html");

static void put(FILE *out, const char *begin, const char *end)
{
    (void)fwrite(begin, 1, (size_t)(end - begin), out);
}

void roll_html_text(FILE *out, const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        switch (*c) {
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        case '\'':
            fputs("&#39;", out);
            break;
        default:
            fputc(*c, out);
        }
    }
}

/* These three stand inside of strings only, where JSON lets every character be written by its number. */
static int put_json(const char *buffer, size_t size, void *out)
{
    for (size_t i = 0; i < size; i++) {
        char c = buffer[i];
        if (c == '<' || c == '>' || c == '&') {
            fprintf(out, "\\u%04x", (unsigned)c);
        } else {
            fputc(c, out);
        }
    }
    return ferror((FILE *)out) ? -1 : 0;
}

int roll_html_json(FILE *out, const json_t *value)
{
    return json_dump_callback(value, put_json, out, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_ENCODE_ANY) == 0
               ? 0
               : ROLL_E_IO;
}

/* The digits of a hash as base64, which a policy wants. */
static void put_hash(FILE *out, const char *hex)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned char byte[33] = {0};
    for (size_t i = 0; i < 32; i++) {
        unsigned value = 0;
        (void)sscanf(hex + 2 * i, "%2x", &value);
        byte[i] = (unsigned char)value;
    }
    fputs("'sha256-", out);
    for (size_t i = 0; i < 33; i += 3) {
        unsigned long three = (unsigned long)byte[i] << 16 | (unsigned long)byte[i + 1] << 8 | byte[i + 2];
        for (int shift = 18; shift >= 0; shift -= 6) {
            bool filled = i == 30 && shift == 0; /* 32 bytes are two more than 30 */
            fputc(filled ? '=' : digits[three >> shift & 63], out);
        }
    }
    fputc('\'', out);
}

void roll_html_begin(FILE *out, const char *title, const char *plain)
{
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src ",
          out);
    put_hash(out, ROLL_REPORT_SCRIPT_SHA256);
    fputs("; style-src ", out);
    put_hash(out, ROLL_REPORT_STYLE_SHA256);
    fputs("; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'\">\n"
          "<meta name=\"referrer\" content=\"no-referrer\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta name=\"color-scheme\" content=\"light dark\">\n<title>",
          out);
    roll_html_text(out, title);
    fputs("</title>\n<style>", out);
    put(out, roll_report_style, roll_report_end_style);
    fputs("</style>\n</head>\n<body>\n", out);
    put(out, roll_report_body, roll_report_end_body);
    fputs("<noscript><pre>", out);
    roll_html_text(out, plain);
    fputs("</pre></noscript>\n<script type=\"application/json\" id=\"recorded\">", out);
}

void roll_html_end(FILE *out)
{
    fputs("</script>\n<script>", out);
    put(out, roll_report_script, roll_report_end_script);
    fputs("</script>\n</body>\n</html>\n", out);
}
