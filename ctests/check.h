/* What every test program here uses. A failure ends the program with the place and the library's message. C and C++. */
#ifndef LANEWAY_CHECK_H
#define LANEWAY_CHECK_H

#include <laneway.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) check_true(__FILE__, __LINE__, #condition, (condition))
#define OK(call) CHECK((call) == LW_OK)
/* The call fails with that status, and the message has all these words (separated by spaces). */
#define FAILS(call, status, words) check_fails(__FILE__, __LINE__, #call, (call), (status), (words))

static inline void check_true(const char *file, int line, const char *text, int condition) {
  if (condition) return;
  fprintf(stderr, "%s:%d: failed: %s; last error: %s\n", file, line, text, lw_last_error());
  exit(1);
}

static inline int check_says(const char *words) {
  char copy[512], *rest = copy;
  snprintf(copy, sizeof copy, "%s", words);
  for (char *word; (word = strtok_r(rest, " ", &rest));)
    if (!strstr(lw_last_error(), word)) return 0;
  return 1;
}

static inline void check_fails(const char *file, int line, const char *text, lw_status status, lw_status expected, const char *words) {
  if (status == expected && check_says(words)) return;
  fprintf(stderr, "%s:%d: %s gave %s: '%s'; expected %s with: %s\n", file, line, text, lw_status_name(status), lw_last_error(),
          lw_status_name(expected), words);
  exit(1);
}

/* That many seconds from now, as a deadline. */
static inline int64_t seconds(double s) { return lw_now() + (int64_t)(s * 1e9); }

#endif
