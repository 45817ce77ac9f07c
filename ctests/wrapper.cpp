// The C++ wrapper: owners that move, exceptions with the library's message, views of the right type. Worker and broker run on threads of this process.
#include <laneway.hpp>
#include <laneway.hpp>

#include "exchange.h"

#include <thread>
#include <type_traits>

using namespace std::chrono_literals;
using laneway::in;

namespace {

laneway::Layout layout() { return laneway::Layout{{"words", {WORDS}, LW_INT64}, {"check", {}, LW_INT64}}; }

template <class Call> laneway::Error error_of(Call call) {
  try {
    call();
  } catch (const laneway::Error& error) {
    return error;
  }
  std::fprintf(stderr, "no error was thrown\n");
  std::exit(1);
}

bool has(const laneway::Error& error, const char* words) { return strstr(error.what(), words) != nullptr; }

void layouts_say_what_they_hold() {
  const laneway::Layout made = layout(), read = laneway::Layout::from_json(made.to_json());
  CHECK(made.nbytes() == (WORDS + 1) * 8 && read.to_json() == made.to_json() && made.size() == 2);
  CHECK(made[0].title() == "words" && made[0].sizes()[0] == WORDS && made.offset(1) == WORDS * 8 && made.find("check") == 1);
  const laneway::Error error = error_of([] { laneway::Layout{{"x", {-1}, LW_INT8}}; });
  CHECK(error.status() == LW_INVALID_ARGUMENT && has(error, "'x'"));
  CHECK(error_of([&] { made.find("none"); }).status() == LW_NOT_FOUND);
}

void encode_and_decode_are_inverse() {
  const laneway::Layout pair{{"a", {3}, LW_FLOAT32}, {"b", {2}, LW_UINT8}};
  const std::int64_t three[] = {3}, two[] = {2};
  float a[] = {1.5f, -2.f, 0.f};
  std::uint8_t b[] = {7, 255};
  std::vector<unsigned char> bytes(pair.nbytes());
  pair.encode({{b, two, "b", 2, 1, LW_UINT8, LW_DEVICE_CPU, 0}, {a, three, "a", 12, 1, LW_FLOAT32, LW_DEVICE_CPU, 0}}, bytes.data(), bytes.size());
  const auto tensors = pair.decode(bytes.data(), bytes.size());
  CHECK(tensors[0].as<const float>()[1] == -2.f && tensors[1].as<const std::uint8_t>()[1] == 255);
  CHECK(has(error_of([&] { tensors[0].as<const double>(); }), "'a'"));
}

void ragged_dimensions_are_written_as_everywhere() {
  const laneway::Layout made{laneway::Spec("ids", {"seq<=5"}, LW_INT32).require_range(0, 99),
                             laneway::Spec("top \"k\"", {"seq<=5", 3}, LW_FLOAT32).require_finite()};
  CHECK(made.to_json() == R"({"specs":[{"name":"ids","shape":["seq<=5"],"dtype":"int32","min":0,"max":99},)"
                          R"({"name":"top \"k\"","shape":["seq<=5",3],"dtype":"float32","finite":true}]})");
  CHECK(made[1].sizes()[0] == 5 && made[1].nbytes == 60);
  std::int32_t ids[] = {7, 8};
  float top[] = {1, 2, 3, 4, 5, 6};
  const std::int64_t two[] = {2}, two_three[] = {2, 3};
  std::vector<std::int64_t> words(made.nbytes() / 8 + 1);
  made.encode({{ids, two, "ids", 8, 1, LW_INT32, LW_DEVICE_CPU, 0}, {top, two_three, nullptr, 24, 2, LW_FLOAT32, LW_DEVICE_CPU, 0}}, words.data(), made.nbytes());
  const auto tensors = made.decode(words.data(), made.nbytes());
  CHECK(tensors[0].sizes()[0] == 2 && tensors[0].as<const std::int32_t>()[1] == 8 && tensors[0].as<const std::int32_t>().size() == 2);
  CHECK(tensors[1].sizes()[0] == 2 && tensors[1].as<const float>()[5] == 6);
  CHECK(has(error_of([] { laneway::Layout{{"x", {"seq"}, LW_INT8}}; }), "seq<=2048"));
}

static_assert(!std::is_copy_constructible_v<laneway::MetricsServer>);
static_assert(!std::is_copy_constructible_v<laneway::Sample> && std::is_nothrow_move_constructible_v<laneway::Sample>);
static_assert(!std::is_copy_constructible_v<laneway::Task> && !std::is_copy_constructible_v<laneway::Student>);

void a_sample_outlives_its_student(const laneway::Layout& tensors) {
  std::optional<laneway::Sample> kept;
  {
    laneway::Student student(tensors, [](lw_student_options& o) { o.prefetch = 2; });
    CHECK(student.set_model("teacher", "{}") == 1 && student.generation() == 1 && student.lane() == 0);
    for (std::uint64_t step = 0; step < 20; ++step) {
      auto sample = student.next(in(20s));
      CHECK(sample && (*sample)->step == step);
      check_words(&sample->get());
      CHECK(sample->tensor("words").as<const std::int64_t>().size() == WORDS);
      laneway::Sample second = sample->share();
      sample->release();
      check_words(&second.get());
      kept = std::move(second);
    }
    CHECK(student.stats().front() == '{' && laneway::metrics().find("\"delivered\":20") != std::string::npos);
    CHECK(laneway::metrics_text().find("laneway_student_samples_total{") != std::string::npos && laneway::MetricsServer().port() != 0);
    laneway::Student moved = std::move(student);
    moved.cancel();
    const auto interrupted = error_of([&] { // the next wait: what is there already is handed out first
      while (moved.next(laneway::never)) {}
    });
    CHECK(interrupted.status() == LW_INTERRUPTED);
  }
  check_words(&kept->get());
}

void a_worker_function_that_throws_fails_its_tasks(const laneway::Layout& tensors) {
  laneway::Student student(tensors, [](lw_student_options& o) { o.max_attempts = 2; });
  const std::string step = "step " + std::to_string(student.cursor()); // goes on where the student before it ended
  student.set_model("broken");
  const laneway::Error error = error_of([&] { student.next(in(20s)); });
  CHECK(error.status() == LW_TASK_FAILED && has(error, "the teacher is on holiday") && has(error, step.c_str()));
}

}  // namespace

int main() {
  layouts_say_what_they_hold();
  encode_and_decode_are_inverse();
  ragged_dimensions_are_written_as_everywhere();
  use_private_dir();
  const laneway::Layout tensors = layout();
  laneway::Broker broker;
  broker.start();
  CHECK(has(error_of([] { laneway::Broker second; }), std::to_string(getpid()).c_str()));
  laneway::Worker worker(tensors, [](lw_worker_options& o) { o.batch_size = 2; });
  std::thread loop([&] {
    worker.run([](std::vector<laneway::Task>& tasks) {
      for (laneway::Task& task : tasks) {
        if (task.model_id() == "broken") throw std::runtime_error("the teacher is on holiday");
        CHECK(task.tensor("words").as<std::int64_t>().size() == WORDS && task.model_config() == "{}");
        fill_words(task.operator->());
      }
    });
  });
  a_sample_outlives_its_student(tensors);
  a_worker_function_that_throws_fails_its_tasks(tensors);
  worker.stop();
  loop.join();
}
