/* medium "cuda" against a STAND-IN for the driver (tests/standin_cuda): device addresses, streams, DLPack on a device, what is said where CUDA refuses. Nothing here is
 * about a real GPU. */
#include "dlpack.h"
#include "exchange.h"

#include <dlfcn.h>
#include <pthread.h>

typedef uint64_t device_ptr;
static void *driver;
static void *stream;

/* The driver's function of that name, which a trainer calls by itself. */
#define CALL(name, types, ...)                    \
  do {                                            \
    int (*function) types;                        \
    *(void **)&function = dlsym(driver, name);    \
    CHECK(function != NULL && !function(__VA_ARGS__)); \
  } while (0)

static void begin(void) {
  void *context = NULL;
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(driver != NULL);
  CHECK(dlsym(driver, "standinCudaCounts") != NULL); /* never a real driver */
  CALL("cuInit", (unsigned), 0);
  CALL("cuDevicePrimaryCtxRetain", (void **, int), &context, 0);
  CALL("cuCtxPushCurrent_v2", (void *), context);
  CALL("cuStreamCreate", (void **, unsigned), &stream, 1);
}

/* Makes samples on the student's device, queued on a stream of its own. */
static void *work(void *argument) {
  const lw_worker *worker = argument;
  void *context = NULL, *own = NULL;
  CALL("cuDevicePrimaryCtxRetain", (void **, int), &context, 0);
  CALL("cuCtxPushCurrent_v2", (void *), context);
  CALL("cuStreamCreate", (void **, unsigned), &own, 1);
  lw_task task;
  size_t count = 0;
  while (lw_worker_take(worker, seconds(20), &task, 1, &count) == LW_OK) {
    /* A commit on a stream does not wait for the copy that reads this. */
    static int64_t sources[64][WORDS + 1];
    int64_t *words = sources[task.step % 64];
    lw_task on_host = task;
    on_host.data = words;
    fill_words(&on_host);
    lw_tensor tensor;
    OK(lw_worker_tensor(worker, &task, 0, &tensor));
    CHECK(task.flags == LW_ON_DEVICE && tensor.device_type == LW_DEVICE_CUDA && tensor.device_id == 0 && tensor.data == task.data);
    DLManagedTensorVersioned *shared = NULL;
    OK(lw_worker_dlpack(worker, &task, 0, &shared));
    CHECK(shared->dl_tensor.device.device_type == 2 && shared->flags == 0 && shared->dl_tensor.data == task.data);
    shared->deleter(shared);
    if (task.step % 2) {
      OK(lw_worker_write(worker, &task, words, sizeof *sources));
      OK(lw_worker_commit(worker, &task, NULL, 1, NULL, NULL));
    } else {
      CALL("cuMemcpyHtoDAsync_v2", (device_ptr, const void *, size_t, void *), (device_ptr)(uintptr_t)task.data, words, sizeof *sources, own);
      OK(lw_worker_commit(worker, &task, NULL, 1, own, NULL));
    }
  }
  return NULL;
}

static lw_status open_on(const lw_layout *layout, lw_medium *medium, lw_student **out) {
  lw_student_options options;
  lw_student_options_init(&options);
  options.layout = layout, options.medium = medium, options.max_workers = options.max_batch = 1, options.prefetch = 2;
  const lw_status status = lw_student_open(&options, seconds(10), out);
  lw_medium_free(medium);
  return status;
}

static void samples_lie_on_the_device(const lw_layout *layout) {
  lw_medium *medium = NULL;
  lw_student *student = NULL;
  OK(lw_medium_cuda(0, LW_FALLBACK_NONE, &medium));
  OK(open_on(layout, medium, &student));
  set_model(student, "m");
  lw_worker_options options;
  lw_worker_options_init(&options);
  options.layout = layout, options.device = LW_MAKE_ON_STUDENTS_DEVICE;
  lw_worker *worker = NULL;
  OK(lw_worker_open(&options, seconds(10), &worker));
  pthread_t thread;
  CHECK(!pthread_create(&thread, NULL, work, worker));
  for (uint64_t step = 0; step < 40; step++) {
    lw_sample sample, host;
    size_t count = 0;
    OK(lw_student_next(student, seconds(20), &sample, 1, &count));
    CHECK(sample.step == step && (sample.flags & LW_ON_DEVICE));
    _Alignas(64) int64_t words[WORDS + 1] = {0}, queued[WORDS + 1] = {0};
    OK(lw_student_read(student, &sample, words, sizeof words));
    host = sample, host.data = words;
    check_words(&host);
    lw_tensor tensor;
    OK(lw_student_tensor(student, &sample, 1, &tensor));
    CHECK(tensor.device_type == LW_DEVICE_CUDA && tensor.device_id == 0 && (char *)tensor.data == (char *)sample.data + WORDS * 8);
    DLManagedTensorVersioned *shared = NULL;
    OK(lw_student_dlpack(student, &sample, 0, &shared));
    CHECK(shared->dl_tensor.device.device_type == 2 && shared->dl_tensor.device.device_id == 0 && shared->flags == 1);
    shared->deleter(shared);
    /* Reading is queued, and the sample given back at once. */
    CALL("cuMemcpyDtoHAsync_v2", (void *, device_ptr, size_t, void *), queued, (device_ptr)(uintptr_t)sample.data, sizeof queued, stream);
    OK(lw_student_release(student, &sample, 1, step % 2 ? stream : NULL));
    FAILS(lw_student_read(student, &(lw_sample){.slot = sample.slot, .serial = sample.serial + 1000}, words, 8), LW_INVALID_ARGUMENT, "not held");
    CALL("cuStreamSynchronize", (void *), stream);
    host.data = queued;
    check_words(&host);
  }
  lw_worker_stop(worker);
  CHECK(!pthread_join(thread, NULL));
  lw_worker_free(worker);
  lw_student_free(student);
}

static void what_is_wrong_is_said(const lw_layout *layout) {
  lw_medium *medium = NULL;
  lw_student *student = NULL;
  FAILS(lw_medium_cuda(-1, LW_FALLBACK_NONE, &medium), LW_INVALID_ARGUMENT, "device -1");
  FAILS(lw_medium_cuda(0, 7, &medium), LW_INVALID_ARGUMENT, "fallback 7 LW_FALLBACK_SHM");
  FAILS(lw_medium_shm_pinned(0, 7, &medium), LW_INVALID_ARGUMENT, "fallback 7");
  FAILS(lw_medium_cuda(0, LW_FALLBACK_NONE, NULL), LW_INVALID_ARGUMENT, "out NULL");
  OK(lw_medium_cuda(5, LW_FALLBACK_NONE, &medium));
  FAILS(open_on(layout, medium, &student), LW_NOT_FOUND, "device=5 2 CUDA");
  OK(lw_medium_cuda(5, LW_FALLBACK_SHM, &medium));
  OK(open_on(layout, medium, &student));
  lw_student_free(student);
  OK(lw_medium_shm_pinned(1, LW_FALLBACK_NONE, &medium));
  OK(open_on(layout, medium, &student));
  lw_student_free(student);
  lw_worker_options options;
  lw_worker_options_init(&options);
  options.layout = layout, options.device = -3;
  lw_worker *worker = NULL;
  FAILS(lw_worker_open(&options, seconds(10), &worker), LW_INVALID_ARGUMENT, "device -3 LW_MAKE_IN_HOST_MEMORY");
}

int main(void) {
  begin();
  use_private_dir();
  lw_broker *broker = serve();
  lw_layout *layout = words_layout();
  samples_lie_on_the_device(layout);
  what_is_wrong_is_said(layout);
  lw_layout_free(layout);
  lw_broker_free(broker);
  return 0;
}
