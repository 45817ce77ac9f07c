/* broker: one owns its endpoints, tells its numbers, and leaves nothing behind. */
#include "exchange.h"

#include <dirent.h>
#include <pthread.h>

static void *run(void *broker) { return lw_broker_run(broker) == LW_OK ? NULL : broker; }

static char *stats_of(const lw_broker *broker) {
  char *text = NULL;
  size_t length = 0, room;
  OK(lw_broker_stats(broker, NULL, 0, &length));
  do text = realloc(text, room = length + 64);
  while (lw_broker_stats(broker, text, room, &length) != LW_OK);
  CHECK(strlen(text) == length && text[0] == '{');
  return text;
}

static void run_ends_when_stopped(void) {
  lw_broker *broker = NULL;
  OK(lw_broker_open(NULL, &broker));
  pthread_t thread;
  void *failed;
  CHECK(pthread_create(&thread, NULL, run, broker) == 0);
  free(stats_of(broker));
  lw_broker_stop(broker);
  CHECK(pthread_join(thread, &failed) == 0 && failed == NULL);
  lw_broker_free(broker);
}

static void a_second_one_is_refused_and_told_by_whom(void) {
  lw_broker *first = serve(), *second = NULL;
  char pid[32];
  snprintf(pid, sizeof pid, "%d", (int)getpid());
  FAILS(lw_broker_open(NULL, &second), LW_IN_USE, pid);
  CHECK(second == NULL);
  lw_broker_free(first);
  second = serve(); /* the place is free again */
  lw_broker_free(second);
}

static void other_endpoints_can_be_chosen(void) {
  char frontend[128], backend[128], control[128], control_pub[128];
  lw_broker_options options;
  lw_broker_options_init(&options);
#define PLACE(name) snprintf(name, sizeof name, "ipc://%s/other-" #name, private_dir), options.endpoints.name = name
  PLACE(frontend), PLACE(backend), PLACE(control), PLACE(control_pub);
  lw_broker *here = serve(), *there = NULL;
  OK(lw_broker_open(&options, &there));
  lw_broker_free(there), lw_broker_free(here);
  options.endpoints.frontend = "carrier-pigeon://roof";
  FAILS(lw_broker_open(&options, &there), LW_INVALID_ARGUMENT, "carrier-pigeon");
}

static void nothing_is_left(void) {
  DIR *dir = opendir(private_dir);
  CHECK(dir != NULL);
  for (struct dirent *entry; (entry = readdir(dir));)
    if (entry->d_name[0] != '.') fprintf(stderr, "left behind: %s\n", entry->d_name), exit(1);
  closedir(dir);
}

int main(void) {
  use_private_dir();
  run_ends_when_stopped();
  a_second_one_is_refused_and_told_by_whom();
  other_endpoints_can_be_chosen();
  nothing_is_left();
  return 0;
}
