/* ragged samples on a device, against a STAND-IN for the driver (tests/standin_cuda): true shapes in views and DLPack while the tensors are device memory, lengths that are
 * set after the tensors were queued, and lengths that somebody has scribbled into the student's segment. Nothing here is about a real GPU. */
#include "dlpack.h"
#include "exchange.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

typedef uint64_t device_ptr;
enum { SEQ = 7, K = 4, PLACE = SEQ * K, BYTES = 352, SHAPES = 320, LOGITS = 128, TAG = 256 };

static const char text[] = "{\"specs\": [{\"name\": \"ids\", \"shape\": [\"seq<=7\", 4], \"dtype\": \"int32\"},"
                           " {\"name\": \"logits\", \"shape\": [\"seq<=7\", 4], \"dtype\": \"float32\"},"
                           " {\"name\": \"tag\", \"shape\": [], \"dtype\": \"int64\"}]}";
static const uint64_t lengths[] = {7, 0, 1, 3}; /* the longest first: it leaves bytes behind */

static void *driver, *stream;
static lw_student *student;

/* The driver's function of that name, which a trainer or a teacher calls by itself. */
#define CALL(name, types, ...)                         \
  do {                                                 \
    int (*function) types;                             \
    *(void **)&function = dlsym(driver, name);         \
    CHECK(function != NULL && !function(__VA_ARGS__)); \
  } while (0)

static void begin(void) {
  void *context = NULL;
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(driver != NULL && dlsym(driver, "standinCudaCounts") != NULL); /* never a real driver */
  CALL("cuInit", (unsigned), 0);
  CALL("cuDevicePrimaryCtxRetain", (void **, int), &context, 0);
  CALL("cuCtxPushCurrent_v2", (void *), context);
  CALL("cuStreamCreate", (void **, unsigned), &stream, 1);
}

static lw_student *open_on_device(const lw_layout *layout) {
  lw_student_options options;
  lw_student_options_init(&options);
  lw_medium *medium = NULL;
  lw_student *opened = NULL;
  OK(lw_medium_cuda(0, LW_FALLBACK_NONE, &medium));
  /* A window of two: the second sample held is a private copy. */
  options.layout = layout, options.medium = medium, options.slot_count = 2, options.max_workers = options.max_batch = 1, options.max_attempts = 1;
  OK(lw_student_open(&options, seconds(10), &opened));
  lw_medium_free(medium);
  return opened;
}

static void *take_one(void *sample) {
  size_t count;
  OK(lw_student_next(student, seconds(20), sample, 1, &count));
  return NULL;
}

/* Starts waiting for a sample, and gives its task. */
static lw_task wait_for(const lw_worker *worker, pthread_t *thread, lw_sample *sample) {
  lw_task task;
  size_t count = 0;
  CHECK(pthread_create(thread, NULL, take_one, sample) == 0);
  OK(lw_worker_take(worker, seconds(20), &task, 1, &count));
  CHECK(task.flags == LW_ON_DEVICE && task.capacity == BYTES);
  return task;
}

/* Noise where nothing belongs. */
static void fill(unsigned char *bytes, uint64_t length) {
  memset(bytes, 0xEE, SHAPES);
  for (size_t i = 0; i < length * K; i++) {
    const float half = (float)i / 2;
    const int32_t id = (int32_t)i;
    memcpy(bytes + 4 * i, &id, 4), memcpy(bytes + LOGITS + 4 * i, &half, 4);
  }
  const int64_t tag = (int64_t)length;
  memcpy(bytes + TAG, &tag, sizeof tag);
}

static void check_views(const lw_sample *sample, uint64_t length) {
  lw_tensor views[3];
  for (size_t t = 0; t < 3; t++) {
    OK(lw_student_tensor(student, sample, t, &views[t]));
    CHECK(views[t].device_type == LW_DEVICE_CUDA && views[t].device_id == 0);
    if (t < 2) CHECK(views[t].ndim == 2 && views[t].shape[0] == (int64_t)length && views[t].shape[1] == K && views[t].nbytes == length * K * 4);
  }
  CHECK((char *)views[1].data == (char *)sample->data + LOGITS && views[2].nbytes == 8);
  DLManagedTensorVersioned *shared = NULL;
  OK(lw_student_dlpack(student, sample, 1, &shared));
  CHECK(shared->dl_tensor.device.device_type == 2 && shared->dl_tensor.ndim == 2 && shared->dl_tensor.shape[0] == (int64_t)length && shared->dl_tensor.strides[0] == K);
  CHECK(shared->dl_tensor.data == views[1].data);
  shared->deleter(shared);
}

/* What was read to the host is a sample like any other, with its shapes behind its tensors. */
static void check_bytes(const lw_layout *layout, const lw_sample *sample, uint64_t length) {
  _Alignas(64) unsigned char bytes[BYTES];
  memset(bytes, 0x77, sizeof bytes);
  CHECK(sample->nbytes == BYTES);
  OK(lw_student_read(student, sample, bytes, sizeof bytes));
  lw_tensor decoded[3];
  OK(lw_layout_decode(layout, bytes, sizeof bytes, decoded, 3));
  CHECK(decoded[0].shape[0] == (int64_t)length && decoded[1].shape[0] == (int64_t)length && *(int64_t *)decoded[2].data == (int64_t)length);
  for (size_t i = 0; i < PLACE; i++) { /* what is left of the place is zero */
    const int there = i < length * K;
    CHECK(((int32_t *)decoded[0].data)[i] == (there ? (int32_t)i : 0) && ((float *)decoded[1].data)[i] == (there ? (float)i / 2 : 0));
  }
  unsigned char part[SHAPES + 8];
  OK(lw_student_read(student, sample, part, sizeof part));
  CHECK(!memcmp(part, bytes, sizeof part));
  OK(lw_student_read(student, sample, part, 8));
  FAILS(lw_student_read(student, sample, bytes, BYTES + 1), LW_INVALID_ARGUMENT, "353 352");
}

static void true_shapes_arrive(const lw_worker *worker, const lw_layout *layout) {
  static unsigned char sources[4][BYTES]; /* what a queued copy reads must stay */
  lw_sample samples[4];
  for (int i = 0; i < 4; i++) {
    pthread_t thread;
    lw_tensor ids;
    lw_task task = wait_for(worker, &thread, &samples[i]);
    fill(sources[i], lengths[i]);
    FAILS(lw_worker_tensor(worker, &task, 0, &ids), LW_INVALID_ARGUMENT, "'ids' 'seq' not set");
    if (i % 2) {
      /* Whole, as lw_layout_encode makes it. */
      const int64_t shape[] = {(int64_t)lengths[i], K};
      lw_tensor tensors[] = {{sources[i], shape, "ids", lengths[i] * K * 4, 2, LW_INT32, LW_DEVICE_CPU, 0},
                             {sources[i] + LOGITS, shape, "logits", lengths[i] * K * 4, 2, LW_FLOAT32, LW_DEVICE_CPU, 0},
                             {sources[i] + TAG, NULL, "tag", 8, 0, LW_INT64, LW_DEVICE_CPU, 0}};
      int64_t whole[BYTES / 8];
      OK(lw_layout_encode(layout, tensors, 3, whole, sizeof whole));
      FAILS(lw_worker_write(worker, &task, whole, sizeof whole + 1), LW_INVALID_ARGUMENT, "353 352");
      OK(lw_worker_write(worker, &task, whole, sizeof whole));
    } else {
      CALL("cuMemcpyHtoDAsync_v2", (device_ptr, const void *, size_t, void *), (device_ptr)(uintptr_t)task.data, sources[i], SHAPES, stream);
      OK(lw_worker_set_length(worker, &task, "seq", 2)); /* and thinks better of it */
      OK(lw_worker_set_length(worker, &task, "seq", lengths[i]));
    }
    OK(lw_worker_tensor(worker, &task, 0, &ids));
    CHECK(ids.shape[0] == (int64_t)lengths[i] && ids.shape[1] == K && ids.nbytes == lengths[i] * K * 4 && ids.data == task.data && ids.device_type == LW_DEVICE_CUDA);
    DLManagedTensorVersioned *shared = NULL;
    OK(lw_worker_dlpack(worker, &task, 1, &shared));
    CHECK(shared->dl_tensor.shape[0] == (int64_t)lengths[i] && shared->flags == 0 && (char *)shared->dl_tensor.data == (char *)task.data + LOGITS);
    shared->deleter(shared);
    OK(lw_worker_commit(worker, &task, NULL, 1, i == 2 ? stream : NULL, NULL));
    CHECK(pthread_join(thread, NULL) == 0);
  }
  /* All are held, those that are private copies, too, while the slots of these are written by others. */
  for (int i = 0; i < 4; i++) {
    CHECK(!(samples[i].flags & LW_SAMPLE_COPIED) == (i == 0));
    check_views(&samples[i], lengths[i]);
    check_bytes(layout, &samples[i], lengths[i]);
    const lw_sample other = {.slot = samples[i].slot, .serial = samples[i].serial + 1000};
    lw_tensor view;
    FAILS(lw_student_tensor(student, &other, 0, &view), LW_INVALID_ARGUMENT, "not held");
    OK(lw_student_release(student, &samples[i], 1, NULL));
  }
}

/* The student's segment as its workers have it. */
static unsigned char *map_segment(size_t *size) {
  DIR *open_files = opendir("/proc/self/fd");
  CHECK(open_files != NULL);
  for (struct dirent *entry; (entry = readdir(open_files));) {
    char name[64], target[256] = {0};
    snprintf(name, sizeof name, "/proc/self/fd/%.20s", entry->d_name);
    if (readlink(name, target, sizeof target - 1) < 0 || !strstr(target, "lw_segment")) continue;
    const int fd = open(name, O_RDWR);
    struct stat status;
    CHECK(fd >= 0 && fstat(fd, &status) == 0);
    void *mapped = mmap(NULL, *size = (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(mapped != MAP_FAILED && close(fd) == 0 && closedir(open_files) == 0);
    return mapped;
  }
  CHECK(!"there is a segment");
  return NULL;
}

static uint64_t word(const unsigned char *at) {
  uint64_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

static void scribbled_lengths_are_an_error_and_no_view(const lw_worker *worker) {
  size_t size = 0;
  unsigned char *segment = map_segment(&size);
  const uint64_t bytes = word(segment + 176), at = word(segment + 184), slots = (size - at) / 64; /* the header's last two words */
  CHECK(word(segment + 16) == 2 && bytes == 32 && at % 4096 == 0 && slots >= 3); /* a feature that peers must know */
  const int64_t bad[] = {8, -2, INT64_MAX, INT64_MIN, -1};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    lw_sample sample;
    lw_task task;
    lw_tensor view;
    size_t count;
    /* Published before the student looks. */
    FAILS(lw_student_next(student, seconds(0.02), &sample, 1, &count), LW_TIMEOUT, "");
    OK(lw_worker_take(worker, seconds(20), &task, 1, &count));
    OK(lw_worker_set_length(worker, &task, "seq", 3));
    OK(lw_worker_commit(worker, &task, NULL, 1, NULL, NULL));
    for (uint64_t slot = 0; slot < slots; slot++) memcpy(segment + at + 64 * slot, &bad[i], 8);
    OK(lw_student_next(student, seconds(20), &sample, 1, &count));
    FAILS(lw_student_tensor(student, &sample, 0, &view), LW_CORRUPT, i < 4 ? "'ids' size 0 is" : "'ids' 'seq' not set");
    DLManagedTensorVersioned *shared = NULL;
    FAILS(lw_student_dlpack(student, &sample, 0, &shared), LW_CORRUPT, "'ids'");
    /* A tensor that they did not reach is as it was; and what is scribbled after the delivery reaches nobody. */
    OK(lw_student_tensor(student, &sample, 1, &view));
    for (uint64_t slot = 0; slot < slots; slot++) memset(segment + at + 64 * slot, 0x7F, 64);
    CHECK(view.shape[0] == 3 && view.nbytes == 3 * K * 4);
    OK(lw_student_tensor(student, &sample, 1, &view));
    CHECK(view.shape[0] == 3 && view.shape[1] == K);
    OK(lw_student_release(student, &sample, 1, NULL));
  }
  CHECK(munmap(segment, size) == 0);
}

int main(void) {
  begin();
  use_private_dir();
  lw_broker *broker = serve();
  lw_layout *layout = NULL;
  OK(lw_layout_from_json(text, strlen(text), &layout));
  CHECK(lw_layout_nbytes(layout) == BYTES);
  lw_worker_options options;
  lw_worker_options_init(&options);
  options.layout = layout, options.device = LW_MAKE_ON_STUDENTS_DEVICE;
  lw_worker *worker = NULL;
  OK(lw_worker_open(&options, seconds(10), &worker));
  student = open_on_device(layout);
  set_model(student, "teacher");
  true_shapes_arrive(worker, layout);
  scribbled_lengths_are_an_error_and_no_view(worker);
  lw_worker_free(worker), lw_student_free(student), lw_broker_free(broker), lw_layout_free(layout);
  return 0;
}
