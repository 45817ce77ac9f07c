/* status, version and log: what a call says when it fails, to its own thread alone. */
#include "check.h"

#include <pthread.h>

static void *other_thread(void *unused) {
  (void)unused;
  CHECK(strcmp(lw_last_error(), "") == 0);
  return NULL;
}

static void an_error_is_the_threads_own_until_the_next(void) {
  lw_layout *layout = NULL;
  FAILS(lw_layout_new(NULL, 1, &layout), LW_INVALID_ARGUMENT, "specs NULL");
  CHECK(layout == NULL);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  const char *json = "{\"specs\":[{\"name\":\"x\",\"shape\":[2],\"dtype\":\"int8\"}]}";
  OK(lw_layout_from_json(json, strlen(json), &layout));
  CHECK(check_says("specs NULL")); /* success does not clear it */
  FAILS(lw_layout_from_json("{", 1, &layout), LW_INVALID_ARGUMENT, "layout: specs name shape dtype");
  lw_layout_free(layout);
}

static void names_and_versions_are_there(void) {
  CHECK(strcmp(lw_status_name(LW_TIMEOUT), "LW_TIMEOUT") == 0);
  CHECK(strcmp(lw_status_name(-5), "LW_UNKNOWN") == 0);
  CHECK(lw_abi_version() == LW_ABI_VERSION);
  CHECK(strcmp(lw_version(), LANEWAY_VERSION) == 0); /* CMake passes Cargo.toml's */
}

static void a_callback_can_say_why(void) {
  lw_set_last_error("no disk", 7);
  CHECK(strcmp(lw_last_error(), "no disk") == 0);
  lw_set_last_error("bad \xff byte", 10);
  CHECK(strcmp(lw_last_error(), "bad \xef\xbf\xbd byte") == 0);
  lw_set_last_error(NULL, 99);
  CHECK(strcmp(lw_last_error(), "") == 0);
}

static void time_goes_on(void) {
  int64_t before = lw_now();
  CHECK(before > 0 && lw_now() >= before);
}

static int dropped;
static void on_drop(void *user) { *(int *)user += 1; }
static void on_message(void *user, int32_t level, const char *target, const char *message) {
  (void)user, (void)level, (void)target, (void)message;
}

static void a_log_callback_is_dropped_once_when_it_is_replaced(void) {
  OK(lw_log_set_level(LW_LOG_DEBUG));
  OK(lw_log_set_callback(on_message, &dropped, on_drop));
  CHECK(dropped == 0);
  OK(lw_log_set_callback(NULL, NULL, NULL));
  CHECK(dropped == 1);
  OK(lw_log_set_level(LW_LOG_WARN));
}

int main(void) {
  an_error_is_the_threads_own_until_the_next();
  names_and_versions_are_there();
  a_callback_can_say_why();
  time_goes_on();
  a_log_callback_is_dropped_once_when_it_is_replaced();
  return 0;
}
