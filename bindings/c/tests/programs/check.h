/* SPDX-License-Identifier: Apache-2.0 */
/* What the test programs share: a condition that does not hold ends the program with its line. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "esker.h"

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition,        \
                    esker_error_message());                                                       \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

/* A call that succeeds. */
#define OK(call) CHECK((call) >= 0)

/* A call that fails with a kind and an errno. */
#define FAILS(call, kind, number)                                                                 \
    do {                                                                                          \
        CHECK((call) == -(number));                                                               \
        CHECK(esker_error_kind() == (kind));                                                      \
        CHECK(esker_error_message()[0] != '\0');                                                  \
    } while (0)

#endif
