// Laneway for C++17: owners that free themselves, exceptions instead of statuses. Header-only, over laneway.h, which has
// the whole documentation; this file says only what is different here.
//
//   laneway::Layout layout{{"x", {3, 224, 224}, LW_FLOAT32}, {"y", {1000}, LW_FLOAT32}};
//   laneway::Student student(layout, [](lw_student_options& o) { o.slot_count = 16; }, laneway::in(5s));
//   student.set_model("teacher");
//   while (auto sample = student.next(laneway::in(1s))) use(sample->tensor("x").as<const float>());
//
// A function that fails throws laneway::Error; its status() is the lw_status. Threads: as in laneway.h, const functions
// may run at the same time.
#ifndef LANEWAY_HPP
#define LANEWAY_HPP

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "laneway/lanes.hpp"
#include "laneway/node.hpp"
#include "laneway/layout.hpp"

namespace laneway {

// Where samples live.
class Medium {
 public:
  static Medium shm() { return make([](lw_medium** out) { return lw_medium_shm(out); }); }
  // Page-locked, for copies to a CUDA device; and a CUDA device's own memory. `fallback`: one of lw_fallback.
  static Medium shm_pinned(int device = 0, lw_fallback fallback = LW_FALLBACK_NONE) {
    return make([&](lw_medium** out) { return lw_medium_shm_pinned(device, fallback, out); });
  }
  static Medium cuda(int device = 0, lw_fallback fallback = LW_FALLBACK_NONE) {
    return make([&](lw_medium** out) { return lw_medium_cuda(device, fallback, out); });
  }
  static Medium file(const std::string& path) { return make([&](lw_medium** out) { return lw_medium_file(path.c_str(), out); }); }
  static Medium custom(const lw_medium_table& table) { return make([&](lw_medium** out) { return lw_medium_custom(&table, out); }); }
  const lw_medium* get() const noexcept { return owner_.get(); }

 private:
  template <class Make> static Medium make(Make make) {
    check_abi();
    Medium medium;
    lw_medium* handle = nullptr;
    check(make(&handle));
    medium.owner_.reset(handle);
    return medium;
  }
  std::unique_ptr<lw_medium, detail::Freed<lw_medium, lw_medium_free>> owner_;
};

// A broker in this process.
class Broker {
 public:
  // `set` changes the options after their defaults are set: [](lw_broker_options& o) { … }.
  template <class Set = detail::Nothing> explicit Broker(Set set = {}) {
    check_abi();
    lw_broker_options options;
    lw_broker_options_init(&options);
    set(options);
    lw_broker* handle = nullptr;
    check(lw_broker_open(&options, &handle));
    owner_.reset(handle);
  }
  void run() const { check(lw_broker_run(owner_.get())); }
  void start() const { check(lw_broker_start(owner_.get())); }
  void stop() const noexcept { lw_broker_stop(owner_.get()); }
  std::string stats() const {
    return detail::text([&](char* buffer, std::size_t room, std::size_t* length) { return lw_broker_stats(owner_.get(), buffer, room, length); });
  }

 private:
  std::unique_ptr<lw_broker, detail::Freed<lw_broker, lw_broker_free>> owner_;
};

// One reference to a sample, released with this object. Outlives its Student. Movable; share() takes another reference.
class Sample {
 public:
  Sample(Sample&& other) noexcept : student_(std::move(other.student_)), sample_(other.sample_) {}
  Sample& operator=(Sample&& other) noexcept {
    if (this != &other) {
      release();
      student_ = std::move(other.student_);
      sample_ = other.sample_;
    }
    return *this;
  }
  ~Sample() { release(); }
  Sample share() const {
    check(lw_student_retain(student_.get(), &sample_));
    return Sample(student_, sample_);
  }
  // Gives the slot back now; the sample must not be read any more. On a device, what was queued on `stream` before may still read it.
  void release(void* stream = nullptr) noexcept {
    if (student_ && lw_student_release(student_.get(), &sample_, 1, stream) != LW_OK) {
      // In a forked child there is nothing to give back; elsewhere a reference that is held can be released.
    }
    student_.reset();
  }
  const lw_sample* operator->() const noexcept { return &sample_; }
  const lw_sample& get() const noexcept { return sample_; }
  Tensor tensor(std::size_t index) const {
    Tensor tensor;
    check(lw_student_tensor(student_.get(), &sample_, index, &tensor));
    return tensor;
  }
  Tensor tensor(const std::string& name) const { return tensor(layout().find(name)); }
  LayoutRef layout() const noexcept { return LayoutRef(lw_student_layout(student_.get())); }
  // Copies its first bytes to the host, wherever it lies.
  void read(void* out, std::size_t length) const { check(lw_student_read(student_.get(), &sample_, out, length)); }
  // A DLPack tensor with a reference of its own; whoever takes it calls its deleter.
  DLManagedTensorVersioned* dlpack(std::size_t index) const {
    DLManagedTensorVersioned* tensor = nullptr;
    check(lw_student_dlpack(student_.get(), &sample_, index, &tensor));
    return tensor;
  }

 private:
  friend class Student;
  Sample(std::shared_ptr<lw_student> student, const lw_sample& sample) noexcept : student_(std::move(student)), sample_(sample) {}
  std::shared_ptr<lw_student> student_;
  lw_sample sample_;
};

// The trainer's side.
class Student {
 public:
  // `set` changes the options after their defaults are set.
  template <class Set = detail::Nothing> explicit Student(const LayoutRef& layout, Set set = {}, Deadline deadline = in(std::chrono::seconds(10))) {
    check_abi();
    lw_student_options options;
    lw_student_options_init(&options);
    options.layout = layout.get();
    set(options);
    lw_student* handle = nullptr;
    check(lw_student_open(&options, deadline, &handle));
    handle_.reset(handle, lw_student_free);
  }
  Student(Student&&) noexcept = default;
  Student& operator=(Student&& other) noexcept {
    close();
    handle_ = std::move(other.handle_);
    return *this;
  }
  ~Student() { close(); }

  // The model for the whole group from now on; gives its generation.
  std::uint64_t set_model(std::string_view id, std::optional<std::string_view> config = std::nullopt, Deadline deadline = in(std::chrono::seconds(10))) const {
    std::uint64_t generation = 0;
    check(lw_student_set_model(get(), id.data(), id.size(), config ? config->data() : nullptr, config ? config->size() : 0, deadline, &generation));
    return generation;
  }
  // The inputs of the next `count` tickets, `bytes` each, one behind the other.
  void give(const void* data, std::size_t bytes, std::size_t count = 1) const { check(lw_student_give(get(), data, bytes, count)); }
  // The next sample, nothing if the deadline passed first.
  std::optional<Sample> next(Deadline deadline) const {
    std::vector<Sample> one = next(1, deadline);
    if (one.empty()) return std::nullopt;
    return std::move(one.front());
  }
  // The next sample and those that are ready behind it, `max` at most; none if the deadline passed first.
  std::vector<Sample> next(std::size_t max, Deadline deadline) const {
    std::vector<lw_sample> plain(max);
    std::vector<Sample> samples;
    samples.reserve(max);
    std::size_t count = 0;
    const lw_status status = lw_student_next(get(), deadline, plain.data(), max, &count);
    if (status == LW_TIMEOUT) return samples;
    check(status);
    for (std::size_t i = 0; i < count; ++i) samples.push_back(Sample(handle_, plain[i]));
    return samples;
  }
  LayoutRef layout() const noexcept { return LayoutRef(lw_student_layout(get())); }
  std::uint64_t generation() const noexcept { return lw_student_generation(get()); }
  std::uint64_t lane() const noexcept { return lw_student_lane(get()); }
  std::uint64_t cursor() const noexcept { return lw_student_cursor(get()); }
  std::string stats() const {
    return detail::text([&](char* buffer, std::size_t room, std::size_t* length) { return lw_student_stats(get(), buffer, room, length); });
  }
  int fd() const {
    std::int32_t fd = -1;
    check(lw_student_fd(get(), &fd));
    return fd;
  }
  void cancel() const noexcept { lw_student_cancel(get()); }
  void close() const noexcept { lw_student_close(get()); }
  const lw_student* get() const noexcept { return handle_.get(); }

 private:
  std::shared_ptr<lw_student> handle_;
};

// One open task. Commit or fail it through its Worker, or it fails with this object.
class Task {
 public:
  Task(Task&& other) noexcept : worker_(std::move(other.worker_)), task_(other.task_) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    constexpr std::string_view text = "the worker dropped the task";
    if (worker_ && lw_worker_fail(worker_.get(), &task_, text.data(), text.size()) != LW_OK) {
      // Stale or stopped: nobody waits for it.
    }
  }
  const lw_task* operator->() const noexcept { return &task_; }
  std::string_view model_id() const noexcept { return {task_.model_id, task_.model_id_len}; }
  std::optional<std::string_view> model_config() const noexcept {
    if (!task_.model_config) return std::nullopt;
    return std::string_view(task_.model_config, task_.model_config_len);
  }
  LayoutRef layout() const noexcept { return LayoutRef(task_.layout); }
  Tensor tensor(std::size_t index) const {
    Tensor tensor;
    check(lw_worker_tensor(worker_.get(), &task_, index, &tensor));
    return tensor;
  }
  // The length of a ragged dimension, in all tensors that have it: set before their views are asked for.
  void set_length(const std::string& dimension, std::uint64_t length) const {
    check(lw_worker_set_length(worker_.get(), &task_, dimension.c_str(), length));
  }
  Tensor tensor(const std::string& name) const { return tensor(layout().find(name)); }
  // What its ticket carries, by name; not to be written: take Span<const T>.
  Tensor input(const std::string& name) const {
    Tensor tensor;
    check(lw_worker_input(worker_.get(), &task_, LayoutRef(lw_worker_input_layout(worker_.get(), &task_)).find(name), &tensor));
    return tensor;
  }
  // Copies bytes of the host to its beginning, wherever it lies.
  void write(const void* data, std::size_t length) const { check(lw_worker_write(worker_.get(), &task_, data, length)); }
  // A DLPack tensor to be written; whoever takes it calls its deleter.
  DLManagedTensorVersioned* dlpack(std::size_t index) const {
    DLManagedTensorVersioned* tensor = nullptr;
    check(lw_worker_dlpack(worker_.get(), &task_, index, &tensor));
    return tensor;
  }

 private:
  friend class Worker;
  Task(std::shared_ptr<lw_worker> worker, const lw_task& task) noexcept : worker_(std::move(worker)), task_(task) {}
  std::shared_ptr<lw_worker> worker_;
  lw_task task_;
};

// The side that makes samples.
class Worker {
 public:
  // `set` changes the options after their defaults are set; without a layout it must set slot_size.
  template <class Set = detail::Nothing>
  explicit Worker(const LayoutRef& layout = LayoutRef(nullptr), Set set = {}, Deadline deadline = in(std::chrono::seconds(10))) {
    check_abi();
    lw_worker_options options;
    lw_worker_options_init(&options);
    options.layout = layout.get();
    set(options);
    lw_worker* handle = nullptr;
    check(lw_worker_open(&options, deadline, &handle));
    handle_.reset(handle, lw_worker_free);
    batch_size_ = options.batch_size;
  }
  // Up to `max` tasks of one student and one generation; none if the deadline passed first.
  std::vector<Task> take(std::size_t max, Deadline deadline) const {
    std::vector<lw_task> plain(max);
    std::vector<Task> tasks;
    tasks.reserve(max);
    std::size_t count = 0;
    const lw_status status = lw_worker_take(get(), deadline, plain.data(), max, &count);
    if (status == LW_TIMEOUT) return tasks;
    check(status);
    for (std::size_t i = 0; i < count; ++i) tasks.push_back(Task(handle_, plain[i]));
    return tasks;
  }
  // Publishes all tensors of each task; gives how many were still wanted. On a device, of a stream that is named,
  // each is published once what is queued there is done, which this does not wait for.
  std::uint32_t commit(std::vector<Task>&& tasks, void* stream = nullptr) const {
    std::vector<lw_task> plain;
    plain.reserve(tasks.size());
    for (const Task& task : tasks) plain.push_back(task.task_);
    std::uint32_t wanted = 0;
    check(lw_worker_commit(get(), plain.data(), nullptr, plain.size(), stream, &wanted));
    for (Task& task : tasks) task.worker_.reset();
    return wanted;
  }
  void fail(Task&& task, std::string_view text) const {
    const lw_task plain = task.task_;
    task.worker_.reset();
    check(lw_worker_fail(get(), &plain, text.data(), text.size()));
  }
  // Calls fill(std::vector<Task>&) for batch after batch until the worker is stopped; what it throws fails the batch with its text.
  template <class Fill> void run(Fill fill) const {
    for (;;) {
      std::vector<Task> tasks;
      try {
        tasks = take(batch_size_, never);
      } catch (const Error& error) {
        if (error.status() == LW_CLOSED) return;
        throw;
      }
      std::optional<std::string> failure;
      try {
        fill(tasks);
      } catch (const std::exception& error) {
        failure = error.what();
      }
      if (!failure) commit(std::move(tasks));
      else for (Task& task : tasks) fail(std::move(task), *failure);
    }
  }
  std::uint64_t generation() const noexcept { return lw_worker_generation(get()); }
  std::string stats() const {
    return detail::text([&](char* buffer, std::size_t room, std::size_t* length) { return lw_worker_stats(get(), buffer, room, length); });
  }
  int fd() const {
    std::int32_t fd = -1;
    check(lw_worker_fd(get(), &fd));
    return fd;
  }
  void stop() const noexcept { lw_worker_stop(get()); }
  void cancel() const noexcept { lw_worker_cancel(get()); }
  const lw_worker* get() const noexcept { return handle_.get(); }

 private:
  std::shared_ptr<lw_worker> handle_;
  std::size_t batch_size_ = 1;
};

}  // namespace laneway

#endif  // LANEWAY_HPP
