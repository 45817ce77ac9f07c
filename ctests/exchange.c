/* A broker, a worker and a student, three processes that share nothing but the broker's folder: 1,000 samples, each once, in order, every word right, across a
 * model switch. */
#include "exchange.h"

static lw_worker *running;
static void on_term(int signal) { (void)signal, lw_worker_cancel(running); }

static int32_t fill(void *user, const lw_task *tasks, size_t *lengths, size_t count) {
  size_t *made = user;
  for (size_t i = 0; i < count; i++) {
    CHECK(lengths[i] == lw_layout_nbytes(tasks[i].layout) && tasks[i].attempt == 0);
    CHECK(tasks[i].generation == tasks[0].generation && tasks[i].model_id == tasks[0].model_id);
    CHECK(strlen(tasks[i].model_id) == tasks[i].model_id_len && tasks[i].model_config == NULL);
    CHECK(strcmp(tasks[i].model_id, tasks[i].generation == 1 ? "first" : "second") == 0);
    fill_words(&tasks[i]);
  }
  *made += count;
  return 0;
}

static int be_worker(void) {
  lw_layout *layout = words_layout();
  running = open_worker(layout, 4);
  lw_layout_free(layout); /* the worker has its own */
  CHECK(signal(SIGTERM, on_term) != SIG_ERR);
  size_t made = 0;
  FAILS(lw_worker_run(running, fill, &made), LW_INTERRUPTED, "");
  lw_worker_free(running);
  return made >= 1000 ? 0 : 2;
}

static void be_student(void) {
  lw_layout *layout = words_layout();
  lw_student *student = open_student(layout, 4);
  lw_layout_free(layout);
  set_model(student, "first");
  lw_sample samples[8];
  uint64_t step = 0;
  while (step < 1000) {
    if (step == 500) set_model(student, "second"), CHECK(lw_student_generation(student) == 2);
    size_t count = 0, room = step < 500 && 500 - step < 8 ? 500 - step : 8;
    OK(lw_student_next(student, seconds(20), samples, room, &count));
    CHECK(count >= 1 && count <= room);
    for (size_t i = 0; i < count; i++, step++) {
      CHECK(samples[i].lane == 0 && samples[i].step == step && samples[i].generation == (step < 500 ? 1u : 2u));
      check_words(&samples[i]);
    }
    OK(lw_student_release(student, samples, count, NULL));
  }
  CHECK(lw_student_cursor(student) == step);
  lw_student_free(student);
}

int main(int argc, char **argv) {
  if (argc > 1) return be_worker();
  use_private_dir();
  pid_t broker = spawn(LANEWAY_PROGRAM, "broker");
  pid_t worker = spawn(argv[0], "worker");
  be_student();
  CHECK(end(worker, SIGTERM) == 0);
  CHECK(end(broker, SIGTERM) == 0);
  return 0;
}
