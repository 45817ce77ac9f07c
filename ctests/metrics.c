/* metrics: the numbers of what is open, as JSON, as text and over HTTP; what is closed is not among them. */
#include "exchange.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>

static int32_t fill(void *user, const lw_task *tasks, size_t *lengths, size_t count) {
  (void)user, (void)lengths;
  for (size_t i = 0; i < count; i++) fill_words(&tasks[i]);
  return 0;
}

static void *work(void *worker) {
  OK(lw_worker_run(worker, fill, NULL));
  return NULL;
}

/* What one of the two functions writes, which may grow between two calls. */
static char *text_of(lw_status (*get)(char *, size_t, size_t *)) {
  static char text[65536];
  size_t length = 0;
  OK(get(NULL, 0, &length));
  CHECK(length > 0 && length < sizeof text);
  OK(get(text, sizeof text, &length));
  CHECK(strlen(text) == length);
  return text;
}

static int has(const char *text, const char *part) { return strstr(text, part) != NULL; }

static void check_text(const char *text) {
  CHECK(has(text, "# TYPE laneway_student_samples_total counter\n"));
  CHECK(has(text, "laneway_student_samples_total{group=\"default\",rank=\"0\",role=\"client\",lane=\"0\",pid=\""));
  CHECK(has(text, "\"} 5\n") && has(text, "laneway_worker_samples_total{worker_id=\"7\",pid=\"") && has(text, "laneway_broker_students{pid=\""));
}

static void a_listener_answers(void) {
  lw_metrics_server *server = NULL, *second = NULL;
  OK(lw_metrics_serve("127.0.0.1:0", &server));
  const uint16_t port = lw_metrics_server_port(server);
  char address[32], answer[65536];
  snprintf(address, sizeof address, "127.0.0.1:%u", port);
  FAILS(lw_metrics_serve(address, &second), LW_IO, address);
  FAILS(lw_metrics_serve("here", &second), LW_INVALID_ARGUMENT, "'here' host:port");
  FAILS(lw_metrics_serve(NULL, &second), LW_INVALID_ARGUMENT, "address NULL");
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
  const char question[] = "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";
  CHECK(write(fd, question, sizeof question - 1) == (ssize_t)sizeof question - 1);
  size_t have = 0;
  for (ssize_t n; (n = read(fd, answer + have, sizeof answer - 1 - have)) > 0;) have += (size_t)n;
  answer[have] = 0;
  close(fd);
  CHECK(strncmp(answer, "HTTP/1.1 200 OK\r\n", 17) == 0);
  check_text(answer);
  lw_metrics_server_free(server), lw_metrics_server_free(NULL);
  CHECK(lw_metrics_server_port(NULL) == 0);
}

int main(void) {
  use_private_dir();
  CHECK(unsetenv("TORCHELASTIC_RUN_ID") == 0 && unsetenv("MASTER_ADDR") == 0);
  CHECK(has(text_of(lw_metrics_snapshot), "\"students\":[]"));
  lw_layout *layout = words_layout();
  lw_broker *broker = serve();
  lw_worker_options options;
  lw_worker_options_init(&options);
  options.layout = layout, options.worker_id = 7;
  lw_worker *worker = NULL;
  OK(lw_worker_open(&options, seconds(10), &worker));
  lw_student *student = open_student(layout, 0);
  set_model(student, "teacher");
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, work, worker) == 0);
  for (int i = 0; i < 5; i++) {
    lw_sample sample;
    size_t count;
    OK(lw_student_next(student, seconds(20), &sample, 1, &count));
    OK(lw_student_release(student, &sample, 1, NULL));
  }
  for (int i = 0; i < 200 && !has(text_of(lw_metrics_text), "laneway_broker_pairs"); i++) usleep(20000);
  check_text(text_of(lw_metrics_text));
  const char *json = text_of(lw_metrics_snapshot);
  CHECK(has(json, "\"delivered\":5") && has(json, "\"worker_id\":7") && has(json, "\"loaders\":[]"));
  char small[4];
  size_t length;
  FAILS(lw_metrics_snapshot(small, sizeof small, &length), LW_INVALID_ARGUMENT, "capacity");
  a_listener_answers();
  lw_student_close(student);
  CHECK(has(text_of(lw_metrics_snapshot), "\"students\":[]"));
  lw_worker_stop(worker);
  CHECK(pthread_join(thread, NULL) == 0);
  lw_worker_free(worker), lw_student_free(student), lw_broker_free(broker), lw_layout_free(layout);
  json = text_of(lw_metrics_snapshot);
  CHECK(has(json, "\"workers\":[]") && has(json, "\"brokers\":[]"));
  return 0;
}
