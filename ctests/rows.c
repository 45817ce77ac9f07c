/* Rows by ticket, alone and for the tasks of a worker that teaches a loader's rows: broker, worker and loader in one process. */
#include "dlpack.h"
#include "exchange.h"
#include "lanes.h"

#include <pthread.h>
#include <stdatomic.h>

#define TAUGHT \
  "[generate]\nmodel_id = \"m\"\nlayout = [{ name = \"twice\", shape = [32], dtype = \"int64\" }, { name = \"seed\", shape = [], dtype = \"int64\" }]\n" \
  "batch_size = 4\n"

static lw_rows *open_rows(const char *text) {
  lw_recipe *recipe = parse(text);
  lw_rows *rows = NULL;
  OK(lw_rows_open(recipe, NULL, &rows));
  lw_recipe_free(recipe);
  return rows;
}

static void any_order_of_tickets_gives_the_loaders_rows(void) {
  lw_loader *loader = open_rank(ENDLESS_RECIPE, 0, 1, 1);
  uint64_t expected[10][GLOBAL_BATCH];
  for (int step = 0; step < 10; step++) {
    lw_batch *batch = next_batch(loader);
    size_t n = 0;
    OK(lw_batch_row_hashes(batch, expected[step], GLOBAL_BATCH, &n));
    CHECK(n == GLOBAL_BATCH);
    lw_batch_release(batch);
  }
  lw_loader_free(loader);
  lw_rows *rows = open_rows(ENDLESS_RECIPE);
  const lw_ticket tickets[] = {{3, 9}, {0, 0}, {3, 2}, {7, 5}, {3, 9}};
  lw_batch *batch = NULL;
  OK(lw_rows_get(rows, tickets, 5, seconds(30), &batch));
  uint64_t hashes[5];
  size_t n = 0;
  lw_row found[5];
  OK(lw_batch_row_hashes(batch, hashes, 5, &n));
  OK(lw_batch_rows(batch, found, 5, &n));
  for (int i = 0; i < 5; i++) {
    CHECK(hashes[i] == expected[tickets[i].step][tickets[i].lane]);
    CHECK(found[i].lane == tickets[i].lane && found[i].number == tickets[i].step && found[i].position == tickets[i].lane);
  }
  CHECK(describe(batch).step == 9 && lw_batch_layout(batch) == NULL);
  lw_batch_release(batch);
  CHECK(lw_dataset_documents(lw_rows_dataset(rows, 0)) == NEWS_DOCUMENTS && lw_rows_dataset(rows, 2) == NULL);

  const lw_ticket none = {8, 0}, later = {0, 500};
  FAILS(lw_rows_get(rows, &none, 1, seconds(30), &batch), LW_INVALID_ARGUMENT, "lanes 0 to 7");
  FAILS(lw_rows_get(rows, NULL, 0, seconds(30), &batch), LW_INVALID_ARGUMENT, "no ticket");
  FAILS(lw_rows_get(NULL, &none, 1, 0, &batch), LW_INVALID_ARGUMENT, "rows NULL");
  FAILS(lw_rows_get(rows, &later, 1, lw_now(), &batch), LW_TIMEOUT, "call again");
  lw_rows_cancel(rows);
  FAILS(lw_rows_get(rows, &later, 1, seconds(30), &batch), LW_INTERRUPTED, "");
  OK(lw_rows_get(rows, &later, 1, seconds(30), &batch));
  lw_batch_release(batch);
  lw_rows_free(rows), lw_rows_free(NULL), lw_rows_cancel(NULL);
}

static void options_of_a_rank_are_refused(void) {
  lw_recipe *recipe = parse(ENDLESS_RECIPE);
  lw_loader_options options;
  lw_loader_options_init(&options);
  options.rank = 1, options.ranks = 2;
  lw_rows *rows = NULL;
  FAILS(lw_rows_open(recipe, &options, &rows), LW_INVALID_ARGUMENT, "rank leave default");
  lw_recipe_free(recipe);
}

static atomic_int stopping;

/* A teacher: twice each token, and the ticket's seed. Gives up what it is told to. */
static void *teach(void *argument) {
  const char *text = (const char *)argument;
  lw_rows *rows = open_rows(text);
  lw_layout *layout = NULL;
  const char *json =
      "{\"specs\": [{\"name\": \"twice\", \"shape\": [32], \"dtype\": \"int64\"}, {\"name\": \"seed\", \"shape\": [], \"dtype\": \"int64\"}]}";
  OK(lw_layout_from_json(json, strlen(json), &layout));
  lw_worker *worker = open_worker(layout, 4);
  while (!atomic_load(&stopping)) {
    lw_task tasks[4];
    size_t count = 0;
    const lw_status status = lw_worker_take(worker, seconds(0.02), tasks, 4, &count);
    if (status == LW_TIMEOUT) continue;
    OK(status);
    lw_batch *batch = NULL;
    if (lw_rows_of_tasks(rows, worker, tasks, count, seconds(30), &batch) != LW_OK) {
      char why[512];
      snprintf(why, sizeof why, "%s", lw_last_error());
      for (size_t i = 0; i < count; i++) OK(lw_worker_fail(worker, &tasks[i], why, strlen(why)));
      continue;
    }
    const int64_t *ids = (const int64_t *)tensor(batch, "input_ids").data;
    for (size_t i = 0; i < count; i++) {
      int64_t *out = (int64_t *)tasks[i].data;
      for (int t = 0; t < ROW; t++) out[t] = 2 * ids[i * ROW + (size_t)t];
      out[ROW] = (int64_t)tasks[i].seed;
    }
    OK(lw_worker_commit(worker, tasks, NULL, count, NULL, NULL));
    lw_batch_release(batch);
  }
  lw_worker_free(worker), lw_layout_free(layout), lw_rows_free(rows);
  return NULL;
}

static lw_loader *open_taught(const char *text, uint64_t microbatch, int rows_only) {
  lw_recipe *recipe = parse(text);
  lw_generate_options generate;
  lw_generate_options_init(&generate);
  generate.group = "ctest", generate.rows_only = rows_only;
  lw_loader_options options;
  lw_loader_options_init(&options);
  options.threads = 1, options.microbatch_size = microbatch, options.generate = &generate;
  lw_loader *loader = NULL;
  OK(lw_loader_open(recipe, &options, &loader));
  lw_recipe_free(recipe);
  return loader;
}

static void batches_have_what_teachers_made_of_their_rows(void) {
  lw_broker *broker = serve();
  pthread_t teacher;
  atomic_store(&stopping, 0);
  CHECK(pthread_create(&teacher, NULL, teach, (void *)(uintptr_t)(ENDLESS_RECIPE TAUGHT)) == 0);
  for (uint64_t microbatch = 1; microbatch <= 4; microbatch += 3) {
    lw_loader *loader = open_taught(ENDLESS_RECIPE TAUGHT, microbatch, 0);
    lw_batch *kept = NULL;
    for (int i = 0; i < 20; i++) {
      lw_batch *batch = next_batch(loader);
      lw_tensor twice = tensor(batch, "twice"), seed = tensor(batch, "seed");
      const int64_t *ids = (const int64_t *)tensor(batch, "input_ids").data;
      CHECK(twice.ndim == 2 && twice.shape[0] == (int64_t)microbatch && twice.shape[1] == ROW && twice.dtype == LW_INT64);
      CHECK(seed.ndim == 1 && seed.nbytes == microbatch * 8 && (uintptr_t)twice.data % 64 == 0);
      for (size_t t = 0; t < microbatch * ROW; t++) CHECK(((const int64_t *)twice.data)[t] == 2 * ids[t]);
      CHECK(lw_layout_count(lw_batch_layout(batch)) == 2);
      if (!kept) kept = batch;
      else lw_batch_release(batch);
    }
    /* What was set along the way is checked, and what is too early says so. */
    FAILS(lw_loader_set_model(loader, "n", 1, NULL, 0, 0), LW_INVALID_ARGUMENT, "first step is");
    FAILS(lw_loader_set_model(loader, "n", 1, "[1]", 3, 100), LW_INVALID_ARGUMENT, "JSON object");
    OK(lw_loader_set_model(loader, "n", 1, "{\"a\": 1}", 8, 100));
    FAILS(lw_batch_tensor(kept, "thrice", &(lw_tensor){0}), LW_NOT_FOUND, "input_ids twice seed");
    DLManagedTensorVersioned *exported = NULL;
    OK(lw_batch_dlpack(kept, "twice", &exported));
    lw_loader_free(loader);
    lw_batch_release(kept);
    CHECK(exported->dl_tensor.ndim == 2 && exported->dl_tensor.strides[0] == ROW);
    exported->deleter(exported);
  }
  lw_loader *alone = open_taught(ENDLESS_RECIPE TAUGHT, 0, 1);
  lw_batch *batch = next_batch(alone);
  CHECK(lw_batch_layout(batch) == NULL);
  FAILS(lw_loader_set_model(alone, "n", 1, NULL, 0, 100), LW_UNSUPPORTED, "rows alone");
  lw_batch_release(batch), lw_loader_free(alone);
  atomic_store(&stopping, 1);
  CHECK(pthread_join(teacher, NULL) == 0);
  lw_broker_free(broker);
}

#define RAGGED \
  "[generate]\nmodel_id = \"m\"\nlayout = [{ name = \"answer\", shape = [\"said<=5\", 2], dtype = \"int32\" }]\npad_to = \"max\"\n"

/* Answers row `step` of each lane with that many pairs, modulo 6, of the number. */
static void *answer(void *argument) {
  lw_worker *worker = open_worker((const lw_layout *)argument, 4);
  while (!atomic_load(&stopping)) {
    lw_task tasks[4];
    size_t count = 0;
    const lw_status status = lw_worker_take(worker, seconds(0.02), tasks, 4, &count);
    if (status == LW_TIMEOUT) continue;
    OK(status);
    for (size_t i = 0; i < count; i++) {
      lw_tensor view;
      OK(lw_worker_set_length(worker, &tasks[i], "said", tasks[i].step % 6));
      OK(lw_worker_tensor(worker, &tasks[i], 0, &view));
      CHECK(view.shape[0] == (int64_t)(tasks[i].step % 6) && view.shape[1] == 2);
      for (size_t n = 0; n < view.nbytes / 4; n++) ((int32_t *)view.data)[n] = (int32_t)tasks[i].step;
    }
    OK(lw_worker_commit(worker, tasks, NULL, count, NULL, NULL));
  }
  lw_worker_free(worker);
  return NULL;
}

static void ragged_tensors_come_with_lengths_and_masks(void) {
  lw_broker *broker = serve();
  const char *json = "{\"specs\": [{\"name\": \"answer\", \"shape\": [\"said<=5\", 2], \"dtype\": \"int32\"}]}";
  lw_layout *layout = NULL;
  OK(lw_layout_from_json(json, strlen(json), &layout));
  pthread_t worker;
  atomic_store(&stopping, 0);
  CHECK(pthread_create(&worker, NULL, answer, layout) == 0);
  lw_loader *loader = open_taught(ENDLESS_RECIPE RAGGED, 4, 0);
  for (int i = 0; i < 14; i++) {
    lw_batch *batch = next_batch(loader);
    const lw_tensor said = tensor(batch, "answer"), lengths = tensor(batch, "said_lengths"), mask = tensor(batch, "said_mask");
    CHECK(said.ndim == 3 && said.shape[0] == 4 && said.shape[1] == 5 && said.shape[2] == 2 && said.nbytes == 160);
    CHECK(lengths.ndim == 1 && lengths.shape[0] == 4 && lengths.dtype == LW_INT64 && strcmp(lengths.name, "said_lengths") == 0);
    CHECK(mask.ndim == 2 && mask.shape[1] == 5 && mask.dtype == LW_BOOL && mask.nbytes == 20);
    lw_row rows[4];
    size_t n = 0;
    OK(lw_batch_rows(batch, rows, 4, &n));
    for (size_t r = 0; r < 4; r++) {
      const int64_t length = (int64_t)(rows[r].number % 6);
      CHECK(((const int64_t *)lengths.data)[r] == length);
      for (int64_t at = 0; at < 5; at++) {
        const int is = at < length;
        CHECK(((const uint8_t *)mask.data)[r * 5 + (size_t)at] == is);
        CHECK(((const int32_t *)said.data)[(r * 5 + (size_t)at) * 2] == (is ? (int32_t)rows[r].number : 0));
      }
    }
    CHECK(lw_layout_count(lw_batch_layout(batch)) == 1);
    FAILS(lw_batch_tensor(batch, "said", &(lw_tensor){0}), LW_NOT_FOUND, "input_ids answer said_lengths said_mask");
    lw_batch_release(batch);
  }
  lw_loader_free(loader);
  atomic_store(&stopping, 1);
  CHECK(pthread_join(worker, NULL) == 0);
  lw_layout_free(layout), lw_broker_free(broker);
}

static void a_teacher_with_another_recipe_is_told_what_differs(void) {
  lw_broker *broker = serve();
  pthread_t teacher;
  atomic_store(&stopping, 0);
  CHECK(pthread_create(&teacher, NULL, teach, (void *)(uintptr_t)("functions = []\nseed = 8\n" DATASETS("", "") TOKENS ROWS TAUGHT)) == 0);
  lw_loader *loader = open_taught(ENDLESS_RECIPE TAUGHT, 0, 0);
  lw_batch *batch = NULL;
  FAILS(lw_loader_next(loader, seconds(30), &batch), LW_TASK_FAILED, "row 0 of lane documents attempts seed is 8 and was 7");
  lw_loader_free(loader);
  atomic_store(&stopping, 1);
  CHECK(pthread_join(teacher, NULL) == 0);
  lw_broker_free(broker);
}

/* Doubles what tickets carry; gives each up once. */
static void *double_inputs(void *argument) {
  lw_worker *worker = open_worker((const lw_layout *)argument, 4);
  while (!atomic_load(&stopping)) {
    lw_task tasks[4];
    size_t count = 0;
    const lw_status status = lw_worker_take(worker, seconds(0.02), tasks, 4, &count);
    if (status == LW_TIMEOUT) continue;
    OK(status);
    for (size_t i = 0; i < count; i++) {
      lw_tensor input;
      CHECK(lw_layout_count(lw_worker_input_layout(worker, &tasks[i])) == 1);
      OK(lw_worker_input(worker, &tasks[i], 0, &input));
      CHECK(strcmp(input.name, "words") == 0 && input.nbytes == 24 && input.shape[0] == 3);
      FAILS(lw_worker_input(worker, &tasks[i], 1, &input), LW_INVALID_ARGUMENT, "tensor 1");
      if (tasks[i].attempt == 0) {
        OK(lw_worker_fail(worker, &tasks[i], "again", 5));
        continue;
      }
      for (int w = 0; w < 3; w++) ((int64_t *)tasks[i].data)[w] = 2 * ((const int64_t *)input.data)[w];
      OK(lw_worker_commit(worker, &tasks[i], NULL, 1, NULL, NULL));
      FAILS(lw_worker_input(worker, &tasks[i], 0, &input), LW_INVALID_ARGUMENT, "not open");
      CHECK(lw_worker_input_layout(worker, &tasks[i]) == NULL);
    }
  }
  lw_worker_free(worker);
  return NULL;
}

static void tickets_carry_what_their_student_gives(void) {
  lw_broker *broker = serve();
  static const int64_t shape[] = {3};
  const lw_tensor_spec spec = {"words", shape, 1, LW_INT64};
  lw_layout *layout = NULL;
  OK(lw_layout_new(&spec, 1, &layout));
  lw_student_options options;
  lw_student_options_init(&options);
  options.layout = layout, options.input = layout, options.prefetch = 7;
  lw_student *student = NULL;
  OK(lw_student_open(&options, seconds(10), &student));
  pthread_t worker;
  atomic_store(&stopping, 0);
  CHECK(pthread_create(&worker, NULL, double_inputs, layout) == 0);
  set_model(student, "m");
  int64_t words[60];
  for (int i = 0; i < 60; i++) words[i] = i * i;
  FAILS(lw_student_give(student, words, 23, 1), LW_INVALID_ARGUMENT, "23 bytes 24");
  OK(lw_student_give(student, words, 24, 12));
  OK(lw_student_give(student, words + 36, 24, 8));
  for (uint64_t step = 0; step < 20; step++) {
    if (step == 10) set_model(student, "n"); /* what is made anew keeps its input */
    lw_sample sample;
    size_t count = 0;
    OK(lw_student_next(student, seconds(30), &sample, 1, &count));
    for (int w = 0; w < 3; w++) CHECK(sample.step == step && ((const int64_t *)sample.data)[w] == 2 * words[3 * step + (uint64_t)w]);
    OK(lw_student_release(student, &sample, 1, NULL));
  }
  lw_sample none;
  size_t count = 0;
  FAILS(lw_student_next(student, seconds(0.05), &none, 1, &count), LW_TIMEOUT, "");
  atomic_store(&stopping, 1);
  CHECK(pthread_join(worker, NULL) == 0);
  lw_student_free(student), lw_layout_free(layout), lw_broker_free(broker);
}

int main(void) {
  use_private_dir();
  use_data();
  any_order_of_tickets_gives_the_loaders_rows();
  options_of_a_rank_are_refused();
  batches_have_what_teachers_made_of_their_rows();
  ragged_tensors_come_with_lengths_and_masks();
  a_teacher_with_another_recipe_is_told_what_differs();
  tickets_carry_what_their_student_gives();
  return 0;
}
