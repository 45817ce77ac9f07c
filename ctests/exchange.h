/* A private folder for one test's broker, other processes, and samples whose every word can be checked. */
#ifndef LANEWAY_EXCHANGE_H
#define LANEWAY_EXCHANGE_H

#include "check.h"

#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static char private_dir[64];
static pid_t dir_owner;

static inline void remove_private_dir(void) {
  if (getpid() != dir_owner) return;
  char command[96];
  snprintf(command, sizeof command, "rm -rf '%s'", private_dir);
  CHECK(system(command) == 0);
}

/* A new folder, made the default of this process and its children, and removed at the end. */
static inline void use_private_dir(void) {
  snprintf(private_dir, sizeof private_dir, "/tmp/laneway-ctest-XXXXXX");
  CHECK(mkdtemp(private_dir) != NULL);
  CHECK(setenv("LANEWAY_DIR", private_dir, 1) == 0);
  dir_owner = getpid();
  CHECK(atexit(remove_private_dir) == 0);
}

static inline pid_t spawn(const char *program, const char *argument) {
  char *arguments[] = {(char *)program, (char *)argument, NULL};
  pid_t child = 0;
  CHECK(posix_spawn(&child, program, NULL, NULL, arguments, environ) == 0);
  return child;
}

/* Ends a child with a signal and gives its exit code. */
static inline int end(pid_t child, int signal) {
  int status = 0;
  CHECK(kill(child, signal) == 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
  return WEXITSTATUS(status);
}

/* A broker on a thread of this process. */
static inline lw_broker *serve(void) {
  lw_broker *broker = NULL;
  OK(lw_broker_open(NULL, &broker));
  OK(lw_broker_start(broker));
  return broker;
}

enum { WORDS = 512 };

/* One tensor "words" of int64, and a scalar "check". */
static inline lw_layout *words_layout(void) {
  static const int64_t shape[] = {WORDS};
  const lw_tensor_spec specs[] = {{"words", shape, 1, LW_INT64}, {"check", NULL, 0, LW_INT64}};
  lw_layout *layout = NULL;
  OK(lw_layout_new(specs, 2, &layout));
  return layout;
}

/* Every word of a sample follows from its ticket and generation. */
static inline int64_t word_of(uint64_t seed, uint64_t generation, size_t i) {
  return (int64_t)((seed ^ generation * 0x9E3779B97F4A7C15u) + i * 0xD1B54A32D192ED03u);
}

static inline void fill_words(const lw_task *task) {
  int64_t *words = (int64_t *)task->data, sum = 0;
  for (size_t i = 0; i < WORDS; i++) words[i] = word_of(task->seed, task->generation, i), sum ^= words[i];
  words[WORDS] = sum;
}

static inline void check_words(const lw_sample *sample) {
  const int64_t *words = (const int64_t *)sample->data;
  int64_t sum = 0;
  CHECK((uintptr_t)words % 64 == 0 && sample->nbytes == (WORDS + 1) * sizeof *words);
  for (size_t i = 0; i < WORDS; i++) CHECK(words[i] == word_of(sample->seed, sample->generation, i)), sum ^= words[i];
  CHECK(words[WORDS] == sum);
}

static inline lw_student *open_student(const lw_layout *layout, uint32_t prefetch) {
  lw_student_options options;
  lw_student_options_init(&options);
  options.layout = layout, options.prefetch = prefetch;
  lw_student *student = NULL;
  OK(lw_student_open(&options, seconds(10), &student));
  return student;
}

static inline lw_worker *open_worker(const lw_layout *layout, uint32_t batch_size) {
  lw_worker_options options;
  lw_worker_options_init(&options);
  options.layout = layout, options.batch_size = batch_size;
  lw_worker *worker = NULL;
  OK(lw_worker_open(&options, seconds(10), &worker));
  return worker;
}

static inline void set_model(const lw_student *student, const char *id) {
  OK(lw_student_set_model(student, id, strlen(id), NULL, 0, seconds(10), NULL));
}

#endif
