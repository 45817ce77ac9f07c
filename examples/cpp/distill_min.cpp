// The smallest distillation, in C++: a teacher that knows a linear function makes samples, and a student learns it from them.
//
//   c++ -std=c++17 distill_min.cpp $(pkg-config --cflags --libs laneway) -lpthread -o distill_min && ./distill_min
//
// The worker runs on a thread here to keep the example in one file; as a program of its own it would be the same code, and several would share the work.
// examples/c, examples/rust and examples/python hold the same program under the same name.
#include <array>
#include <cstdio>
#include <laneway.hpp>
#include <thread>

using namespace std::chrono_literals;

constexpr int dim = 8, steps = 2000;

// The next of a sequence of numbers in [-1, 1), the same for the same seed.
static float draw(std::uint64_t& state) {
  std::uint64_t z = state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return static_cast<float>((z ^ z >> 31) >> 40) / (1 << 23) - 1.0f;
}

// The teacher: y = 1·x₀ + 2·x₁ + … The task's seed decides x, so any worker makes the same sample for the same task.
static void teach(std::vector<laneway::Task>& tasks) {
  for (laneway::Task& task : tasks) {
    std::uint64_t state = task->seed;
    float sum = 0, weight = 0;
    for (float& x : task.tensor("x").as<float>()) sum += ++weight * (x = draw(state));
    task.tensor("y").as<float>()[0] = sum;
  }
}

int main() try {
  const laneway::Layout layout{{"x", {dim}, LW_FLOAT32}, {"y", {}, LW_FLOAT32}};
  laneway::Student student(layout, [](lw_student_options& o) { o.prefetch = 6, o.embedded_broker = 1; });
  student.set_model("linear");
  laneway::Worker worker(layout, [](lw_worker_options& o) { o.batch_size = 4; });
  std::thread thread([&] { worker.run(teach); });

  std::array<float, dim> weights{};
  float loss = 0;
  for (int step = 0; step < steps; ++step) {
    const auto sample = student.next(laneway::in(10s));
    if (!sample) throw std::runtime_error("no sample within 10 s");
    const auto x = sample->tensor("x").as<const float>();
    float error = -sample->tensor("y").as<const float>()[0];
    for (int d = 0; d < dim; ++d) error += weights[d] * x[d];
    for (int d = 0; d < dim; ++d) weights[d] -= 0.1f * error * x[d];
    loss = 0.99f * loss + 0.01f * error * error;
    if (step % 500 == 499) std::printf("step %4d  loss %.6f\n", step + 1, loss);
  }

  worker.stop();
  thread.join();
  if (loss > 1e-4f) throw std::runtime_error("the student did not learn");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
