// A student as torch operators: torch.ops.laneway_example.{open,set_model,next,stats,close}. What `next` returns are views of the student's memory; a slot is given back
// when the last tensor that views it dies. Python (or TorchScript, or C++) code uses them like any other operator.
#include <laneway/torch.hpp>

#include <map>
#include <mutex>

namespace {

// Operators take and return numbers, texts and tensors, so students are named by numbers here.
class Students {
 public:
  std::int64_t add(laneway::Student student) {
    const std::lock_guard guard(mutex_);
    students_.emplace(++last_, std::make_shared<laneway::Student>(std::move(student)));
    return last_;
  }
  std::shared_ptr<laneway::Student> get(std::int64_t number) {
    const std::lock_guard guard(mutex_);
    const auto found = students_.find(number);
    if (found == students_.end()) throw std::invalid_argument("student " + std::to_string(number) + " is not open");
    return found->second;
  }
  void remove(std::int64_t number) {
    const std::lock_guard guard(mutex_);
    students_.erase(number);
  }

 private:
  std::mutex mutex_;
  std::int64_t last_ = 0;
  std::map<std::int64_t, std::shared_ptr<laneway::Student>> students_;
};

Students& students() {
  static Students all;
  return all;
}

std::int64_t open_student(std::string layout, std::int64_t slots, std::int64_t prefetch) {
  return students().add(laneway::Student(laneway::Layout::from_json(layout), [&](lw_student_options& options) {
    options.slot_count = static_cast<std::uint32_t>(slots);
    options.prefetch = static_cast<std::uint32_t>(prefetch);
  }));
}

std::int64_t set_model(std::int64_t student, std::string id) { return static_cast<std::int64_t>(students().get(student)->set_model(id)); }

// The tensors of the next sample; none if it took longer than that.
std::vector<torch::stable::Tensor> next(std::int64_t student, double timeout_s) {
  const auto nanoseconds = std::chrono::nanoseconds(static_cast<std::int64_t>(timeout_s * 1e9));
  const auto sample = students().get(student)->next(laneway::in(nanoseconds));
  if (!sample) return {};
  return laneway::torch_tensors(*sample);
}

std::string stats(std::int64_t student) { return students().get(student)->stats(); }

void close_student(std::int64_t student) { students().remove(student); }

}  // namespace

STABLE_TORCH_LIBRARY(laneway_example, m) {
  m.def("open(str layout, int slots, int prefetch) -> int");
  m.def("set_model(int student, str id) -> int");
  m.def("next(int student, float timeout_s) -> Tensor[]");
  m.def("stats(int student) -> str");
  m.def("close(int student) -> ()");
}

// They take no tensor from which a device could be seen, so they are registered for all.
STABLE_TORCH_LIBRARY_IMPL(laneway_example, CompositeExplicitAutograd, m) {
  m.impl("open", TORCH_BOX(&open_student));
  m.impl("set_model", TORCH_BOX(&set_model));
  m.impl("next", TORCH_BOX(&next));
  m.impl("stats", TORCH_BOX(&stats));
  m.impl("close", TORCH_BOX(&close_student));
}
