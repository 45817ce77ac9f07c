/* A medium written in C: a file that is read and written by calls, with no memory of its own. Samples travel through it as through any other, a failure of it is
 * told with its reason, and everything that was handed over is dropped once. */
#include "exchange.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>

typedef struct { /* one side's view of the file */
  int fd;
  size_t stride;
  int *drops, broken;
} side;

static int32_t failed(const char *what) {
  char text[128];
  snprintf(text, sizeof text, "%s: %s", what, strerror(errno));
  lw_set_last_error(text, strlen(text));
  return errno ? errno : -1;
}

static int32_t read_slot(void *user, uint32_t slot, void *out, size_t len) {
  side *s = user;
  return pread(s->fd, out, len, (off_t)(slot * s->stride)) == (ssize_t)len ? 0 : failed("pread");
}

static int32_t write_slot(void *user, uint32_t slot, const void *data, size_t len) {
  side *s = user;
  if (s->broken) return errno = ENOSPC, failed("pwrite");
  return pwrite(s->fd, data, len, (off_t)(slot * s->stride)) == (ssize_t)len ? 0 : failed("pwrite");
}

static int32_t unlink_file(void *user) {
  char path[96];
  snprintf(path, sizeof path, "%s/payload", private_dir);
  return (void)user, unlink(path) == 0 ? 0 : failed("unlink");
}

static void drop_side(void *user) {
  side *s = user;
  ++*s->drops, close(s->fd), free(s);
}

static side *open_side(const char *path, int flags, size_t stride, int *drops) {
  side *s = calloc(1, sizeof *s);
  s->fd = open(path, flags | O_CLOEXEC, 0600), s->stride = stride, s->drops = drops;
  CHECK(s->fd >= 0);
  return s;
}

static int medium_drops, side_drops, attach_drops, broken;

static int32_t attach(void *user, const char *buf_name, int32_t fd, uint32_t slot_count, size_t stride, lw_medium_table *out) {
  CHECK(user == &attach_drops && fd == -1 && slot_count == 16 && stride == 8192 && out->struct_size == sizeof *out);
  side *s = open_side(buf_name, O_RDWR, stride, &side_drops);
  s->broken = broken;
  out->user = s, out->drop = drop_side, out->read = read_slot, out->write = write_slot;
  return 0;
}

static void drop_attach(void *user) { ++*(int *)user; }

static int32_t fill(void *user, const lw_task *tasks, size_t *lengths, size_t count) {
  (void)user, (void)lengths;
  for (size_t i = 0; i < count; i++) fill_words(&tasks[i]);
  return 0;
}

static void *work(void *worker) {
  OK(lw_worker_run(worker, fill, NULL));
  return NULL;
}

static lw_worker *start_worker(const lw_layout *layout, pthread_t *thread) {
  lw_attach_table table;
  lw_attach_table_init(&table);
  table.user = &attach_drops, table.drop = drop_attach, table.kind = "plain-file", table.attach = attach;
  const lw_attach_table *tables[] = {&table};
  lw_worker_options options;
  lw_worker_options_init(&options);
  options.layout = layout, options.attach = tables, options.attach_count = 1, options.batch_size = 2;
  lw_worker *worker = NULL;
  OK(lw_worker_open(&options, seconds(10), &worker));
  CHECK(pthread_create(thread, NULL, work, worker) == 0);
  return worker;
}

static lw_student *start_student(const lw_layout *layout) {
  char path[96];
  snprintf(path, sizeof path, "%s/payload", private_dir);
  side *s = open_side(path, O_RDWR | O_CREAT | O_EXCL, 8192, &medium_drops);
  lw_medium_table table;
  lw_medium_table_init(&table);
  table.user = s, table.drop = drop_side, table.kind = "plain-file", table.buf_name = path;
  table.slot_count = 16, table.slot_stride = 8192, table.read = read_slot, table.write = write_slot, table.unlink = unlink_file;
  lw_medium *medium = NULL;
  OK(lw_medium_custom(&table, &medium));
  lw_student_options options;
  lw_student_options_init(&options);
  options.layout = layout, options.medium = medium, options.prefetch = 2, options.max_workers = 1;
  lw_student *student = NULL, *second = NULL;
  OK(lw_student_open(&options, seconds(10), &student));
  options.rank = 1;
  FAILS(lw_student_open(&options, seconds(10), &second), LW_IN_USE, "medium already");
  lw_medium_free(medium);
  return student;
}

static void samples_travel_through_it(const lw_student *student) {
  set_model(student, "first");
  for (uint64_t step = 0; step < 100; step++) {
    lw_sample sample;
    size_t count;
    OK(lw_student_next(student, seconds(20), &sample, 1, &count));
    CHECK(sample.step == step && sample.flags & LW_SAMPLE_COPIED);
    check_words(&sample);
    OK(lw_student_release(student, &sample, 1, NULL));
  }
}

static void its_failure_is_told_with_the_reason(const lw_student *student) {
  lw_sample sample;
  size_t count;
  FAILS(lw_student_next(student, seconds(20), &sample, 1, &count), LW_TASK_FAILED, "plain-file write slot No space left");
}

int main(void) {
  use_private_dir();
  lw_layout *layout = words_layout();
  lw_broker *broker = serve();
  for (broken = 0; broken < 2; broken++) {
    pthread_t thread;
    lw_worker *worker = start_worker(layout, &thread);
    lw_student *student = start_student(layout);
    if (broken) set_model(student, "first"), its_failure_is_told_with_the_reason(student);
    else samples_travel_through_it(student);
    CHECK(medium_drops == broken && side_drops == broken && attach_drops == broken);
    lw_student_free(student);
    lw_worker_stop(worker);
    CHECK(pthread_join(thread, NULL) == 0);
    lw_worker_free(worker);
    CHECK(medium_drops == broken + 1 && side_drops == broken + 1 && attach_drops == broken + 1);
  }
  lw_broker_free(broker), lw_layout_free(layout);
  return 0;
}
