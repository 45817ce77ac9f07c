/* student: what it hands out stays readable exactly as long as somebody holds it, and every way in which waiting can end. A worker serves on a thread of this
 * process. */
#include "exchange.h"
#include "dlpack.h"

#include <poll.h>
#include <pthread.h>

static int32_t fill(void *user, const lw_task *tasks, size_t *lengths, size_t count) {
  (void)user, (void)lengths;
  for (size_t i = 0; i < count; i++) fill_words(&tasks[i]);
  return 0;
}

static void *work(void *worker) {
  OK(lw_worker_run(worker, fill, NULL));
  return NULL;
}

static lw_sample next(const lw_student *student) {
  lw_sample sample;
  size_t count = 0;
  OK(lw_student_next(student, seconds(20), &sample, 1, &count));
  CHECK(count == 1);
  check_words(&sample);
  return sample;
}

static void a_sample_is_held_by_references(const lw_student *student) {
  lw_sample sample = next(student), forged;
  OK(lw_student_retain(student, &sample));
  OK(lw_student_release(student, &sample, 1, NULL));
  check_words(&sample);
  FAILS(lw_student_release(student, &sample, 1, &sample), LW_UNSUPPORTED, "stream NULL");
  OK(lw_student_release(student, &sample, 1, NULL));
  FAILS(lw_student_release(student, &sample, 1, NULL), LW_INVALID_ARGUMENT, "slot serial not held");
  FAILS(lw_student_retain(student, &sample), LW_INVALID_ARGUMENT, "not held");
  forged = sample, forged.slot = 0xFFFFFFFF;
  FAILS(lw_student_release(student, &forged, 1, NULL), LW_INVALID_ARGUMENT, "not held");
}

static void one_bad_release_does_not_spoil_the_others(const lw_student *student) {
  lw_sample both[2] = {next(student), next(student)}, bad[3] = {both[0], both[0], both[1]};
  FAILS(lw_student_release(student, bad, 3, NULL), LW_INVALID_ARGUMENT, "not held");
  FAILS(lw_student_release(student, &both[1], 1, NULL), LW_INVALID_ARGUMENT, "not held");
}

static void tensors_view_the_sample(const lw_student *student) {
  lw_sample sample = next(student);
  lw_tensor tensor;
  OK(lw_student_tensor(student, &sample, 1, &tensor));
  CHECK((char *)tensor.data == (const char *)sample.data + WORDS * 8 && strcmp(tensor.name, "check") == 0 && tensor.ndim == 0);
  FAILS(lw_student_tensor(student, &sample, 2, &tensor), LW_INVALID_ARGUMENT, "tensor 2");
  OK(lw_student_release(student, &sample, 1, NULL));
}

static void waiting_ends_as_said(const lw_student *student) {
  lw_sample sample;
  size_t count = 99;
  FAILS(lw_student_next(student, seconds(1), &sample, 0, &count), LW_INVALID_ARGUMENT, "max 0");
  FAILS(lw_student_next(student, seconds(1), NULL, 1, &count), LW_INVALID_ARGUMENT, "samples NULL");
  lw_student_cancel(student);
  FAILS(lw_student_next(student, LW_NEVER, &sample, 1, &count), LW_INTERRUPTED, "");
  CHECK(count == 99);
}

static void a_descriptor_is_readable_when_a_sample_is(const lw_student *student) {
  lw_sample sample;
  size_t count;
  int32_t fd = -1;
  OK(lw_student_fd(student, &fd));
  struct pollfd watched = {.fd = fd, .events = POLLIN};
  lw_status status = lw_student_next(student, 0, &sample, 1, &count); /* opens the ticket; may find it made already */
  if (status == LW_TIMEOUT) {
    CHECK(poll(&watched, 1, 10000) == 1);
    sample = next(student);
  }
  OK(lw_student_release(student, &sample, 1, NULL));
}

static void only_the_leader_sets_the_model(const lw_layout *layout) {
  lw_student_options options;
  lw_student_options_init(&options);
  options.layout = layout, options.rank = 1;
  lw_student *follower = NULL, *double_ = NULL;
  OK(lw_student_open(&options, seconds(10), &follower));
  CHECK(lw_student_lane(follower) == 1 && lw_student_generation(follower) == 1);
  FAILS(lw_student_set_model(follower, "mine", 4, NULL, 0, seconds(1), NULL), LW_NOT_LEADER, "rank 0");
  FAILS(lw_student_open(&options, seconds(10), &double_), LW_IN_USE, "");
  lw_student_close(follower), lw_student_close(follower);
  FAILS(lw_student_next(follower, LW_NEVER, &(lw_sample){0}, 1, &(size_t){0}), LW_CLOSED, "closed");
  lw_student_free(follower);
}

static void a_forked_child_is_told(const lw_student *student) {
  lw_sample sample = next(student);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    size_t count;
    lw_sample other;
    FAILS(lw_student_next(student, LW_NEVER, &other, 1, &count), LW_FORKED, "parent");
    FAILS(lw_student_set_model(student, "x", 1, NULL, 0, LW_NEVER, NULL), LW_FORKED, "parent");
    CHECK(lw_student_generation(student) == 1);
    if (lw_student_release(student, &sample, 1, NULL) != LW_OK) CHECK(check_says("parent")); /* harmless either way */
    lw_student_free((lw_student *)student);
    execl("/bin/true", "true", NULL); /* rather than _exit: valgrind would look for leaks among what belongs to the parent */
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  check_words(&sample);
  OK(lw_student_release(student, &sample, 1, NULL)); /* the child took nothing away */
}

static void *delete_on_another_thread(void *tensor) {
  DLManagedTensorVersioned *managed = tensor;
  managed->deleter(managed);
  return NULL;
}

static void dlpack_outlives_the_student(lw_student *student) {
  lw_sample sample = next(student), held = next(student);
  DLManagedTensorVersioned *words = NULL;
  OK(lw_student_dlpack(student, &sample, 0, &words));
  FAILS(lw_student_dlpack(student, &sample, 9, &words), LW_INVALID_ARGUMENT, "tensor 9");
  OK(lw_student_release(student, &sample, 1, NULL));
  CHECK(words->version.major == 1 && words->dl_tensor.data == sample.data && words->dl_tensor.ndim == 1);
  CHECK(words->dl_tensor.shape[0] == WORDS && words->dl_tensor.strides[0] == 1 && words->dl_tensor.byte_offset == 0);
  CHECK(words->dl_tensor.dtype.code == 0 && words->dl_tensor.dtype.bits == 64 && words->dl_tensor.device.device_type == 1);
  for (int i = 0; i < 50; i++) { /* its slot is not used again meanwhile */
    lw_sample other = next(student);
    CHECK(other.data != sample.data && other.data != held.data);
    OK(lw_student_release(student, &other, 1, NULL));
  }
  lw_student_free(student);
  check_words(&sample), check_words(&held); /* `held` was never released: its memory stays */
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, delete_on_another_thread, words) == 0 && pthread_join(thread, NULL) == 0);
  check_words(&held);
}

int main(void) {
  use_private_dir();
  lw_layout *layout = words_layout();
  lw_broker *broker = serve();
  lw_worker *worker = open_worker(layout, 1);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, work, worker) == 0);
  lw_student *student = open_student(layout, 0);
  CHECK(lw_layout_nbytes(lw_student_layout(student)) == lw_layout_nbytes(layout));
  set_model(student, "first");
  a_sample_is_held_by_references(student);
  one_bad_release_does_not_spoil_the_others(student);
  tensors_view_the_sample(student);
  waiting_ends_as_said(student);
  a_descriptor_is_readable_when_a_sample_is(student);
  only_the_leader_sets_the_model(layout);
  a_forked_child_is_told(student);
  dlpack_outlives_the_student(student);
  lw_worker_stop(worker);
  CHECK(pthread_join(thread, NULL) == 0);
  lw_worker_free(worker), lw_broker_free(broker), lw_layout_free(layout);
  return 0;
}
