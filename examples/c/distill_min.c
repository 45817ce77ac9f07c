/* The smallest distillation, in C: a teacher that knows a linear function makes samples, and a student learns it from them.
 *
 *   cc distill_min.c $(pkg-config --cflags --libs laneway) -lpthread -lm -o distill_min && ./distill_min
 *
 * The worker runs on a thread here to keep the example in one file; as a program of its own it would be the same code, and several would share the work.
 * examples/cpp, examples/rust and examples/python hold the same program under the same name. */
#include <laneway.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { DIM = 8, STEPS = 2000 };

static void check(lw_status status) {
  if (status == LW_OK) return;
  fprintf(stderr, "%s: %s\n", lw_status_name(status), lw_last_error());
  exit(1);
}

/* The next of a sequence of numbers in [-1, 1), the same for the same seed. */
static float draw(uint64_t *state) {
  uint64_t z = *state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return (float)((z ^ z >> 31) >> 40) / (float)(1 << 23) - 1.0f;
}

/* The teacher: y = 1·x₀ + 2·x₁ + … The task's seed decides x, so any worker makes the same sample for the same task. */
static int32_t teach(void *worker, const lw_task *tasks, size_t *lengths, size_t count) {
  (void)lengths;
  for (size_t i = 0; i < count; i++) {
    lw_tensor x, y;
    check(lw_worker_tensor(worker, &tasks[i], 0, &x));
    check(lw_worker_tensor(worker, &tasks[i], 1, &y));
    uint64_t state = tasks[i].seed;
    float sum = 0;
    for (int d = 0; d < DIM; d++) sum += (float)(d + 1) * (((float *)x.data)[d] = draw(&state));
    *(float *)y.data = sum;
  }
  return 0;
}

static void *work(void *worker) {
  check(lw_worker_run(worker, teach, worker));
  return NULL;
}

int main(void) {
  const int64_t shape[] = {DIM};
  const lw_tensor_spec specs[] = {{"x", shape, 1, LW_FLOAT32}, {"y", NULL, 0, LW_FLOAT32}};
  lw_layout *layout;
  check(lw_layout_new(specs, 2, &layout));

  lw_student_options options;
  lw_student_options_init(&options);
  options.layout = layout, options.prefetch = 6, options.embedded_broker = 1;
  lw_student *student;
  check(lw_student_open(&options, lw_now() + 10000000000, &student));
  check(lw_student_set_model(student, "linear", 6, NULL, 0, lw_now() + 10000000000, NULL));

  lw_worker_options work_options;
  lw_worker_options_init(&work_options);
  work_options.layout = layout, work_options.batch_size = 4;
  lw_worker *worker;
  check(lw_worker_open(&work_options, lw_now() + 10000000000, &worker));
  pthread_t thread;
  if (pthread_create(&thread, NULL, work, worker) != 0) return 1;

  float weights[DIM] = {0}, loss = 0;
  for (int step = 0; step < STEPS; step++) {
    lw_sample sample;
    size_t count;
    lw_tensor x, y;
    check(lw_student_next(student, lw_now() + 10000000000, &sample, 1, &count));
    check(lw_student_tensor(student, &sample, 0, &x));
    check(lw_student_tensor(student, &sample, 1, &y));
    float error = -*(const float *)y.data;
    for (int d = 0; d < DIM; d++) error += weights[d] * ((const float *)x.data)[d];
    for (int d = 0; d < DIM; d++) weights[d] -= 0.1f * error * ((const float *)x.data)[d];
    check(lw_student_release(student, &sample, 1, NULL));
    loss = 0.99f * loss + 0.01f * error * error;
    if (step % 500 == 499) printf("step %4d  loss %.6f\n", step + 1, loss);
  }

  lw_worker_stop(worker);
  pthread_join(thread, NULL);
  lw_worker_free(worker), lw_student_free(student), lw_layout_free(layout);
  if (loss > 1e-4f) return fprintf(stderr, "the student did not learn\n"), 1;
  return 0;
}
