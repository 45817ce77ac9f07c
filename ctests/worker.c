/* worker: tasks are open until they are committed or failed, failures reach the student with their text, and every way in which waiting can end. The student
 * waits on a thread of this process. */
#include "exchange.h"

#include <poll.h>
#include <pthread.h>

static lw_student *student;

static void *take_one(void *status) {
  lw_sample sample;
  size_t count;
  *(lw_status *)status = lw_student_next(student, seconds(20), &sample, 1, &count);
  if (*(lw_status *)status == LW_TASK_FAILED) { /* the message is this thread's */
    CHECK(check_says("lane 0 step attempts no such layer"));
  } else if (*(lw_status *)status == LW_OK) {
    check_words(&sample);
    OK(lw_student_release(student, &sample, 1, NULL));
  }
  return NULL;
}

static lw_task take(const lw_worker *worker) {
  lw_task tasks[4];
  size_t count = 0;
  OK(lw_worker_take(worker, seconds(20), tasks, 4, &count));
  CHECK(count == 1);
  return tasks[0];
}

static void a_task_is_open_until_it_is_committed(const lw_worker *worker) {
  pthread_t thread;
  lw_status status = -1;
  CHECK(pthread_create(&thread, NULL, take_one, &status) == 0);
  lw_task task = take(worker);
  CHECK(strcmp(task.model_id, "teacher") == 0 && strcmp(task.model_config, "{\"layer\":3}") == 0 && task.model_config_len == 11);
  CHECK((uintptr_t)task.data % 64 == 0 && task.capacity == lw_layout_nbytes(task.layout));
  lw_tensor tensor;
  OK(lw_worker_tensor(worker, &task, 1, &tensor));
  CHECK((char *)tensor.data == (char *)task.data + WORDS * 8 && strcmp(tensor.name, "check") == 0);
  FAILS(lw_worker_tensor(worker, &task, 2, &tensor), LW_INVALID_ARGUMENT, "tensor 2");
  fill_words(&task);
  size_t wrong[] = {0, 8, task.capacity + 1};
  for (int i = 0; i < 3; i++) FAILS(lw_worker_commit(worker, &task, &wrong[i], 1, NULL, NULL), LW_INVALID_ARGUMENT, "bytes sample 4104");
  FAILS(lw_worker_commit(worker, &task, NULL, 1, &task, NULL), LW_UNSUPPORTED, "stream NULL");
  uint32_t wanted = 77;
  OK(lw_worker_commit(worker, &task, NULL, 1, NULL, &wanted));
  CHECK(wanted == 1);
  FAILS(lw_worker_commit(worker, &task, NULL, 1, NULL, NULL), LW_INVALID_ARGUMENT, "not open");
  FAILS(lw_worker_fail(worker, &task, "late", 4), LW_INVALID_ARGUMENT, "not open");
  FAILS(lw_worker_tensor(worker, &task, 0, &tensor), LW_INVALID_ARGUMENT, "not open");
  CHECK(pthread_join(thread, NULL) == 0 && status == LW_OK);
}

static void a_failure_is_tried_again_and_then_told(const lw_worker *worker) {
  pthread_t thread;
  lw_status status = -1;
  CHECK(pthread_create(&thread, NULL, take_one, &status) == 0);
  uint64_t step = 0;
  for (uint32_t attempt = 0; attempt < 3; attempt++) {
    lw_task task = take(worker);
    CHECK(task.attempt == attempt && (attempt == 0 || task.step == step));
    step = task.step;
    OK(lw_worker_fail(worker, &task, "no such layer", 13));
  }
  CHECK(pthread_join(thread, NULL) == 0 && status == LW_TASK_FAILED);
}

static int32_t refuse(void *user, const lw_task *tasks, size_t *lengths, size_t count) {
  (void)tasks, (void)count;
  switch ((*(int *)user)++) {
    case 0: lw_set_last_error("no such layer", 13); return 1;
    case 1: lengths[0] = 7; return 0;
    case 2: lw_set_last_error("no such layer", 13); return -1;
    default: abort();
  }
}

static void *run(void *worker) {
  int calls = 0;
  OK(lw_worker_run(worker, refuse, &calls));
  CHECK(calls == 3);
  return NULL;
}

static void the_loop_fails_what_its_function_refuses(lw_worker *worker) {
  pthread_t loop, waiter;
  lw_status status = -1;
  CHECK(pthread_create(&waiter, NULL, take_one, &status) == 0);
  CHECK(pthread_create(&loop, NULL, run, worker) == 0);
  CHECK(pthread_join(waiter, NULL) == 0 && status == LW_TASK_FAILED);
  lw_worker_stop(worker);
  CHECK(pthread_join(loop, NULL) == 0);
  FAILS(lw_worker_take(worker, LW_NEVER, &(lw_task){0}, 1, &(size_t){0}), LW_CLOSED, "");
}

static void waiting_ends_as_said(const lw_worker *worker) {
  lw_task task;
  size_t count;
  int32_t fd;
  OK(lw_worker_fd(worker, &fd));
  struct pollfd watched = {.fd = fd, .events = POLLIN};
  CHECK(poll(&watched, 1, 0) == 0);
  FAILS(lw_worker_take(worker, 0, &task, 1, &count), LW_TIMEOUT, "");
  FAILS(lw_worker_take(worker, 0, &task, 0, &count), LW_INVALID_ARGUMENT, "max 0");
  FAILS(lw_worker_take(worker, 0, NULL, 1, &count), LW_INVALID_ARGUMENT, "tasks NULL");
  lw_worker_cancel(worker);
  FAILS(lw_worker_take(worker, LW_NEVER, &task, 1, &count), LW_INTERRUPTED, "");
}

static void the_model_is_known(const lw_worker *worker) {
  char text[256];
  size_t length = 0;
  CHECK(lw_worker_generation(worker) == 1);
  OK(lw_worker_model(worker, text, sizeof text, &length));
  CHECK(strstr(text, "\"generation\":1") && strstr(text, "\"id\":\"teacher\"") && strstr(text, "\\\"layer\\\":3"));
  OK(lw_worker_stats(worker, text, 0, &length));
  CHECK(length > 2);
}

static void remember(void *user, int32_t level, const char *target, const char *message) {
  (void)target;
  if (level >= LW_LOG_WARN && strstr(message, "'check'") && strstr(message, "int64") && strstr(message, "float64")) __atomic_store_n((int *)user, 1, __ATOMIC_SEQ_CST);
}

static void a_layout_that_differs_is_named(void) {
  const int64_t shape[] = {WORDS};
  const lw_tensor_spec specs[] = {{"words", shape, 1, LW_INT64}, {"check", NULL, 0, LW_FLOAT64}};
  lw_layout *layout = NULL;
  int named = 0;
  OK(lw_log_set_callback(remember, &named, NULL));
  OK(lw_layout_new(specs, 2, &layout));
  lw_worker *worker = open_worker(layout, 1);
  for (int i = 0; i < 200 && !__atomic_load_n(&named, __ATOMIC_SEQ_CST); i++) usleep(50000);
  CHECK(named);
  lw_worker_free(worker), lw_layout_free(layout);
  OK(lw_log_set_callback(NULL, NULL, NULL));
}

int main(void) {
  use_private_dir();
  lw_layout *layout = words_layout();
  lw_broker *broker = serve();
  lw_worker *worker = open_worker(layout, 4);
  student = open_student(layout, 0);
  waiting_ends_as_said(worker);
  FAILS(lw_worker_model(worker, NULL, 0, &(size_t){0}), LW_NOT_FOUND, "no model");
  OK(lw_student_set_model(student, "teacher", 7, "{\"layer\":3}", 11, seconds(10), NULL));
  a_task_is_open_until_it_is_committed(worker);
  the_model_is_known(worker);
  a_failure_is_tried_again_and_then_told(worker);
  the_loop_fails_what_its_function_refuses(worker);
  lw_worker_free(worker);
  a_layout_that_differs_is_named();
  lw_student_free(student), lw_broker_free(broker), lw_layout_free(layout);
  return 0;
}
