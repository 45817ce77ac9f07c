/* ragged samples and what is asked of values: true shapes arrive, in views, DLPack and decoded bytes; what is wrong fails its task with the tensor, the index and
 * the value. Student and worker take turns on the threads of this process. */
#include "dlpack.h"
#include "exchange.h"

#include <math.h>
#include <pthread.h>

enum { SEQ = 7, K = 4 };

static const char text[] = "{\"specs\": [{\"name\": \"ids\", \"shape\": [\"seq<=7\", 4], \"dtype\": \"int32\", \"min\": 0, \"max\": 99},"
                           " {\"name\": \"logits\", \"shape\": [\"seq<=7\", 4], \"dtype\": \"float32\", \"finite\": true},"
                           " {\"name\": \"tag\", \"shape\": [], \"dtype\": \"int64\"}]}";

static lw_layout *ragged_layout(void) {
  lw_layout *layout = NULL;
  OK(lw_layout_from_json(text, strlen(text), &layout));
  return layout;
}

static lw_student *student;
static lw_sample taken;

static void *take_one(void *status) {
  size_t count;
  *(lw_status *)status = lw_student_next(student, seconds(20), &taken, 1, &count);
  if (*(lw_status *)status == LW_TASK_FAILED) CHECK(check_says("refused 'logits' [2, 3] inf finite"));
  return NULL;
}

/* Starts waiting for a sample, and gives its task. */
static lw_task begin(const lw_worker *worker, pthread_t *thread, lw_status *status) {
  lw_task task;
  size_t count = 0;
  CHECK(pthread_create(thread, NULL, take_one, status) == 0);
  OK(lw_worker_take(worker, seconds(20), &task, 1, &count));
  return task;
}

static void fill(const lw_worker *worker, const lw_task *task, uint64_t length) {
  lw_tensor ids, logits, tag;
  OK(lw_worker_set_length(worker, task, "seq", length));
  OK(lw_worker_tensor(worker, task, 0, &ids));
  OK(lw_worker_tensor(worker, task, 1, &logits));
  OK(lw_worker_tensor(worker, task, 2, &tag));
  CHECK(ids.ndim == 2 && ids.shape[0] == (int64_t)length && ids.shape[1] == K && ids.nbytes == length * K * 4 && logits.nbytes == ids.nbytes);
  CHECK(tag.ndim == 0 && tag.nbytes == 8);
  for (size_t i = 0; i < length * K; i++) ((int32_t *)ids.data)[i] = (int32_t)i, ((float *)logits.data)[i] = (float)i / 2;
  *(int64_t *)tag.data = (int64_t)length;
}

static void check_sample(const lw_tensor views[3], uint64_t length) {
  for (int t = 0; t < 2; t++) CHECK(views[t].ndim == 2 && views[t].shape[0] == (int64_t)length && views[t].shape[1] == K && views[t].nbytes == length * K * 4);
  for (size_t i = 0; i < SEQ * K; i++) { /* what is left of the place is zero */
    const int there = i < length * K;
    CHECK(((int32_t *)views[0].data)[i] == (there ? (int32_t)i : 0) && ((float *)views[1].data)[i] == (there ? (float)i / 2 : 0));
  }
  CHECK(*(int64_t *)views[2].data == (int64_t)length);
}

static void true_shapes_arrive(const lw_worker *worker, const lw_layout *layout) {
  const uint64_t lengths[] = {7, 0, 1, 3}; /* the longest first: it leaves bytes behind */
  for (int i = 0; i < 4; i++) {
    pthread_t thread;
    lw_status status = -1;
    lw_task task = begin(worker, &thread, &status);
    fill(worker, &task, lengths[i]);
    OK(lw_worker_commit(worker, &task, NULL, 1, NULL, NULL));
    CHECK(pthread_join(thread, NULL) == 0 && status == LW_OK);
    lw_tensor views[3], decoded[3];
    for (size_t t = 0; t < 3; t++) OK(lw_student_tensor(student, &taken, t, &views[t]));
    check_sample(views, lengths[i]);
    CHECK(taken.nbytes == lw_layout_nbytes(layout));
    OK(lw_layout_decode(layout, taken.data, taken.nbytes, decoded, 3));
    check_sample(decoded, lengths[i]);
    DLManagedTensorVersioned *tensor = NULL;
    OK(lw_student_dlpack(student, &taken, 1, &tensor));
    OK(lw_student_release(student, &taken, 1, NULL));
    CHECK(tensor->dl_tensor.ndim == 2 && tensor->dl_tensor.shape[0] == (int64_t)lengths[i] && tensor->dl_tensor.strides[0] == K);
    if (lengths[i]) CHECK(((float *)tensor->dl_tensor.data)[lengths[i] * K - 1] == (float)(lengths[i] * K - 1) / 2);
    tensor->deleter(tensor);
  }
}

static void lengths_are_checked_where_they_are_set(const lw_worker *worker) {
  pthread_t thread;
  lw_status status = -1;
  lw_tensor view;
  lw_task task = begin(worker, &thread, &status);
  FAILS(lw_worker_tensor(worker, &task, 0, &view), LW_INVALID_ARGUMENT, "'ids' 'seq' not set");
  OK(lw_worker_tensor(worker, &task, 2, &view));
  FAILS(lw_worker_set_length(worker, &task, "seq", 8), LW_INVALID_ARGUMENT, "'seq' 8 maximum 7");
  FAILS(lw_worker_set_length(worker, &task, "sequence", 1), LW_INVALID_ARGUMENT, "'sequence' seq");
  FAILS(lw_worker_set_length(worker, &task, NULL, 1), LW_INVALID_ARGUMENT, "dimension NULL");
  uint32_t wanted = 9;
  FAILS(lw_worker_commit(worker, &task, NULL, 1, NULL, &wanted), LW_TASK_FAILED, "'ids' 'seq' not set"); /* a failed try: made again */
  FAILS(lw_worker_set_length(worker, &task, "seq", 1), LW_INVALID_ARGUMENT, "not open");
  size_t count;
  OK(lw_worker_take(worker, seconds(20), &task, 1, &count));
  CHECK(task.attempt == 1);
  fill(worker, &task, 2);
  OK(lw_worker_commit(worker, &task, NULL, 1, NULL, NULL));
  CHECK(pthread_join(thread, NULL) == 0 && status == LW_OK);
  OK(lw_student_release(student, &taken, 1, NULL));
}

static void a_bad_value_fails_its_task_and_is_told(const lw_worker *worker) {
  pthread_t thread;
  lw_status status = -1;
  lw_task task = begin(worker, &thread, &status);
  for (uint32_t attempt = 0;; attempt++) {
    lw_tensor ids, logits;
    CHECK(task.attempt == attempt);
    fill(worker, &task, 3);
    OK(lw_worker_tensor(worker, &task, 0, &ids));
    OK(lw_worker_tensor(worker, &task, 1, &logits));
    if (attempt == 0) ((int32_t *)ids.data)[5] = 100;
    if (attempt == 1) ((float *)logits.data)[0] = NAN;
    if (attempt == 2) ((float *)logits.data)[11] = INFINITY;
    const char *words[] = {"'ids' [1, 1] 100 99", "'logits' [0, 0] NaN finite", "'logits' [2, 3] inf finite"};
    FAILS(lw_worker_commit(worker, &task, NULL, 1, NULL, NULL), LW_TASK_FAILED, words[attempt]);
    if (attempt == 2) break;
    size_t count;
    OK(lw_worker_take(worker, seconds(20), &task, 1, &count));
  }
  CHECK(pthread_join(thread, NULL) == 0 && status == LW_TASK_FAILED);
  char stats[1024];
  size_t length;
  OK(lw_worker_stats(worker, stats, sizeof stats, &length));
  CHECK(strstr(stats, "\"refused\":4") != NULL && strstr(stats, "\"failed\":4") != NULL);
}

static void encoded_bytes_carry_their_lengths(const lw_layout *layout) {
  int32_t ids[2 * K] = {1, 2, 3, 4, 5, 6, 7, 8};
  float logits[2 * K] = {0};
  int64_t tag = 2, bytes[64];
  const int64_t two[] = {2, K}, three[] = {3, K}, eight[] = {8, K};
  lw_tensor tensors[] = {{ids, two, "ids", sizeof ids, 2, LW_INT32, LW_DEVICE_CPU, 0},
                         {logits, two, "logits", sizeof logits, 2, LW_FLOAT32, LW_DEVICE_CPU, 0},
                         {&tag, NULL, "tag", 8, 0, LW_INT64, LW_DEVICE_CPU, 0}};
  CHECK(lw_layout_nbytes(layout) <= sizeof bytes && lw_layout_nbytes(layout) == 352);
  OK(lw_layout_encode(layout, tensors, 3, bytes, sizeof bytes));
  lw_tensor views[3];
  OK(lw_layout_decode(layout, bytes, 352, views, 3));
  CHECK(views[0].shape[0] == 2 && views[0].nbytes == 32 && ((int32_t *)views[0].data)[7] == 8 && ((int32_t *)views[0].data)[8] == 0);
  CHECK(views[0].shape == &bytes[40]); /* behind the tensors: documented */
  tensors[1].shape = three;
  FAILS(lw_layout_encode(layout, tensors, 3, bytes, sizeof bytes), LW_INVALID_ARGUMENT, "'logits' nbytes 48");
  tensors[1].nbytes = 48;
  FAILS(lw_layout_encode(layout, tensors, 3, bytes, sizeof bytes), LW_LAYOUT_MISMATCH, "'seq' 2 'ids' 3 'logits' one length");
  tensors[0].shape = eight;
  FAILS(lw_layout_encode(layout, tensors, 3, bytes, sizeof bytes), LW_LAYOUT_MISMATCH, "'ids' [8, 4] [seq<=7, 4]");
  bytes[40] = 8;
  FAILS(lw_layout_decode(layout, bytes, 352, views, 3), LW_CORRUPT, "'ids' size 0 is 8");
  FAILS(lw_layout_decode(layout, (char *)bytes + 4, 352, views, 3), LW_CORRUPT, "'ids'");
}

static void remember(void *user, int32_t level, const char *target, const char *message) {
  (void)target;
  if (level >= LW_LOG_WARN && strstr(message, "'ids'") && strstr(message, "max 99") && strstr(message, "49 for the worker")) __atomic_store_n((int *)user, 1, __ATOMIC_SEQ_CST);
}

static void another_vocabulary_is_refused_by_name(void) {
  char other[sizeof text];
  memcpy(other, text, sizeof text);
  memcpy(strstr(other, "99"), "49", 2);
  lw_layout *layout = NULL;
  int named = 0;
  OK(lw_log_set_callback(remember, &named, NULL));
  OK(lw_layout_from_json(other, strlen(other), &layout));
  lw_worker *worker = open_worker(layout, 1);
  for (int i = 0; i < 200 && !__atomic_load_n(&named, __ATOMIC_SEQ_CST); i++) usleep(50000);
  CHECK(named);
  lw_worker_free(worker), lw_layout_free(layout);
  OK(lw_log_set_callback(NULL, NULL, NULL));
}

int main(void) {
  use_private_dir();
  lw_layout *layout = ragged_layout();
  encoded_bytes_carry_their_lengths(layout);
  lw_broker *broker = serve();
  lw_worker *worker = open_worker(layout, 1);
  student = open_student(layout, 0);
  set_model(student, "teacher");
  true_shapes_arrive(worker, layout);
  lengths_are_checked_where_they_are_set(worker);
  a_bad_value_fails_its_task_and_is_told(worker);
  lw_worker_free(worker);
  another_vocabulary_is_refused_by_name();
  lw_student_free(student), lw_broker_free(broker), lw_layout_free(layout);
  return 0;
}
