/* cmocka_all.h: cmocka with the headers that it needs before it. */
#ifndef ROLL_TESTS_TRACE_CMOCKA_ALL_H
#define ROLL_TESTS_TRACE_CMOCKA_ALL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
