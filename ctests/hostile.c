/* Arguments that no program should pass: each function says what is wrong and survives. */
#include "check.h"

static void null_is_named_or_ignored(void) {
  lw_layout *layout = NULL;
  lw_medium *medium = NULL;
  lw_student *student = NULL;
  lw_worker *worker = NULL;
  lw_tensor tensor;
  lw_sample sample;
  lw_task task;
  DLManagedTensorVersioned *dlpack;
  size_t n;
  uint64_t generation;
  int32_t fd;
  memset(&sample, 0, sizeof sample), memset(&task, 0, sizeof task);

  FAILS(lw_layout_new(NULL, 1, NULL), LW_INVALID_ARGUMENT, "out NULL");
  FAILS(lw_layout_from_json(NULL, 5, &layout), LW_INVALID_ARGUMENT, "text NULL");
  FAILS(lw_layout_to_json(NULL, NULL, 0, &n), LW_INVALID_ARGUMENT, "layout NULL");
  FAILS(lw_layout_tensor(NULL, 0, &tensor, NULL), LW_INVALID_ARGUMENT, "layout NULL");
  FAILS(lw_layout_find(NULL, "x", &n), LW_INVALID_ARGUMENT, "layout NULL");
  FAILS(lw_layout_encode(NULL, NULL, 0, NULL, 0), LW_INVALID_ARGUMENT, "layout NULL");
  FAILS(lw_layout_decode(NULL, NULL, 0, NULL, 0), LW_INVALID_ARGUMENT, "layout NULL");
  CHECK(lw_layout_nbytes(NULL) == 0 && lw_layout_count(NULL) == 0);

  FAILS(lw_medium_shm(NULL), LW_INVALID_ARGUMENT, "out NULL");
  FAILS(lw_medium_file(NULL, &medium), LW_INVALID_ARGUMENT, "path NULL");
  FAILS(lw_medium_file("", &medium), LW_INVALID_ARGUMENT, "path empty");
  FAILS(lw_medium_custom(NULL, &medium), LW_INVALID_ARGUMENT, "lw_medium_table NULL");

  FAILS(lw_broker_open(NULL, NULL), LW_INVALID_ARGUMENT, "out NULL");
  FAILS(lw_broker_run(NULL), LW_INVALID_ARGUMENT, "broker NULL");
  FAILS(lw_broker_start(NULL), LW_INVALID_ARGUMENT, "broker NULL");
  FAILS(lw_broker_stats(NULL, NULL, 0, &n), LW_INVALID_ARGUMENT, "broker NULL");
  lw_broker_stop(NULL);

  FAILS(lw_student_open(NULL, 0, &student), LW_INVALID_ARGUMENT, "lw_student_options NULL");
  FAILS(lw_student_set_model(NULL, "m", 1, NULL, 0, 0, &generation), LW_INVALID_ARGUMENT, "student NULL");
  FAILS(lw_student_next(NULL, 0, &sample, 1, &n), LW_INVALID_ARGUMENT, "student NULL");
  FAILS(lw_student_retain(NULL, &sample), LW_INVALID_ARGUMENT, "student NULL");
  FAILS(lw_student_release(NULL, &sample, 1, NULL), LW_INVALID_ARGUMENT, "student NULL");
  FAILS(lw_student_tensor(NULL, &sample, 0, &tensor), LW_INVALID_ARGUMENT, "student NULL");
  FAILS(lw_student_dlpack(NULL, &sample, 0, &dlpack), LW_INVALID_ARGUMENT, "student NULL");
  FAILS(lw_student_stats(NULL, NULL, 0, &n), LW_INVALID_ARGUMENT, "student NULL");
  FAILS(lw_student_fd(NULL, &fd), LW_INVALID_ARGUMENT, "student NULL");
  CHECK(lw_student_layout(NULL) == NULL && lw_student_generation(NULL) == 0);
  CHECK(lw_student_lane(NULL) == 0 && lw_student_cursor(NULL) == 0);
  lw_student_cancel(NULL), lw_student_close(NULL);

  FAILS(lw_worker_open(NULL, 0, &worker), LW_INVALID_ARGUMENT, "lw_worker_options NULL");
  FAILS(lw_worker_take(NULL, 0, &task, 1, &n), LW_INVALID_ARGUMENT, "worker NULL");
  FAILS(lw_worker_tensor(NULL, &task, 0, &tensor), LW_INVALID_ARGUMENT, "worker NULL");
  FAILS(lw_worker_commit(NULL, &task, NULL, 1, NULL, NULL), LW_INVALID_ARGUMENT, "worker NULL");
  FAILS(lw_worker_fail(NULL, &task, "x", 1), LW_INVALID_ARGUMENT, "worker NULL");
  FAILS(lw_worker_run(NULL, NULL, NULL), LW_INVALID_ARGUMENT, "worker NULL");
  FAILS(lw_worker_model(NULL, NULL, 0, &n), LW_INVALID_ARGUMENT, "worker NULL");
  FAILS(lw_worker_stats(NULL, NULL, 0, &n), LW_INVALID_ARGUMENT, "worker NULL");
  FAILS(lw_worker_fd(NULL, &fd), LW_INVALID_ARGUMENT, "worker NULL");
  CHECK(lw_worker_generation(NULL) == 0);
  lw_worker_stop(NULL), lw_worker_cancel(NULL);

  lw_layout_free(NULL), lw_medium_free(NULL), lw_broker_free(NULL), lw_student_free(NULL), lw_worker_free(NULL);
  lw_broker_options_init(NULL), lw_student_options_init(NULL), lw_worker_options_init(NULL);
  lw_medium_table_init(NULL), lw_attach_table_init(NULL);
}

static void a_struct_of_the_wrong_size_is_refused(void) {
  lw_student *student = NULL;
  lw_student_options options;
  lw_student_options_init(&options);
  CHECK(options.struct_size == sizeof options && options.slot_count == 8 && options.max_attempts == 3);
  options.struct_size = 0; /* _init was not called */
  FAILS(lw_student_open(&options, 0, &student), LW_ABI_MISMATCH, "lw_student_options.struct_size 0 120 _init");
  options.struct_size = 120 - 8; /* less than the first version had */
  FAILS(lw_student_open(&options, 0, &student), LW_ABI_MISMATCH, "112 120");
  options.struct_size = (size_t)-1;
  FAILS(lw_student_open(&options, 0, &student), LW_ABI_MISMATCH, "struct_size");

  struct { lw_student_options known; uint64_t later; } newer; /* a program compiled with a newer header */
  lw_student_options_init(&newer.known);
  newer.known.struct_size = sizeof newer, newer.later = 1;
  FAILS(lw_student_open(&newer.known, 0, &student), LW_ABI_MISMATCH, "newer beyond set");
  newer.later = 0; /* a field that it does not use does no harm: the error is about what is really missing */
  FAILS(lw_student_open(&newer.known, 0, &student), LW_INVALID_ARGUMENT, "options.layout NULL");

  lw_worker *worker = NULL;
  lw_worker_options work;
  lw_worker_options_init(&work);
  FAILS(lw_worker_open(&work, 0, &worker), LW_INVALID_ARGUMENT, "options.layout options.slot_size");
  work.struct_size = 8;
  FAILS(lw_worker_open(&work, 0, &worker), LW_ABI_MISMATCH, "lw_worker_options");
  lw_broker *broker = NULL;
  lw_broker_options broke;
  lw_broker_options_init(&broke);
  broke.struct_size = 47;
  FAILS(lw_broker_open(&broke, &broker), LW_ABI_MISMATCH, "lw_broker_options 47 48");
}

static void a_wrong_option_is_named(void) {
  const lw_tensor_spec spec = {"x", NULL, 0, LW_INT64};
  lw_layout *layout = NULL;
  lw_student *student = NULL;
  lw_student_options good, bad;
  OK(lw_layout_new(&spec, 1, &layout));
  lw_student_options_init(&good);
  good.layout = layout;
#define OPTION(change, words) bad = good, change, FAILS(lw_student_open(&bad, lw_now(), &student), LW_INVALID_ARGUMENT, words)
  OPTION(bad.role = 2, "role 2 LW_ROLE_CLIENT");
  OPTION(bad.arrival_order = 7, "arrival_order 7 0 1");
  OPTION(bad.embedded_broker = -1, "embedded_broker -1");
  OPTION(bad.group = "\xff", "group UTF-8");
  OPTION(bad.endpoints.frontend = "\xff", "endpoints.frontend UTF-8");
  OPTION(bad.slot_count = 0, "slot_count 0");
  OPTION(bad.max_workers = 0, "max_workers 0");
  OPTION(bad.max_batch = 0, "max_batch 0");
  OPTION(bad.max_attempts = 0, "max_attempts 0");
  OPTION((bad.data_workers = 2, bad.data_worker = 2), "data_worker 2");
  lw_layout_free(layout);
}

int main(void) {
  null_is_named_or_ignored();
  a_struct_of_the_wrong_size_is_refused();
  a_wrong_option_is_named();
  return 0;
}
