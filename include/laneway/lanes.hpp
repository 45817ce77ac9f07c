// The part of laneway.hpp about lanes: recipes, datasets, loaders and their batches. Include laneway.hpp.
//
//   laneway::Loader loader(laneway::Recipe::load("recipe.toml"), [](lw_loader_options& o) { o.rank = 1, o.ranks = 4; });
//   while (auto batch = loader.next()) train(batch->tensor("input_ids").as<const std::int64_t>(), batch->tensor("labels"));
#ifndef LANEWAY_LANES_HPP
#define LANEWAY_LANES_HPP

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "layout.hpp"

namespace laneway {

namespace detail {
// Items from the functions that fill an array and say how many there are.
template <class T, class Get> std::vector<T> items(Get get) {
  std::size_t count = 0;
  check(get(static_cast<T*>(nullptr), std::size_t{0}, &count));
  std::vector<T> all(count);
  check(get(all.data(), all.size(), &count));
  return all;
}
}  // namespace detail

// A recipe that somebody else owns.
class RecipeRef {
 public:
  explicit RecipeRef(const lw_recipe* handle) noexcept : handle_(handle) {}
  const lw_recipe* get() const noexcept { return handle_; }
  std::uint64_t fingerprint() const noexcept { return lw_recipe_fingerprint(handle_); }
  std::string to_toml() const {
    return detail::text([&](char* buffer, std::size_t room, std::size_t* length) { return lw_recipe_to_toml(handle_, buffer, room, length); });
  }
  // What the fingerprint is made of, one JSON object.
  std::string fields() const {
    return detail::text([&](char* buffer, std::size_t room, std::size_t* length) { return lw_recipe_fields(handle_, buffer, room, length); });
  }
  // The first field in which two recipes differ; empty if they give the same bytes.
  std::string difference(const RecipeRef& other) const {
    return detail::text(
        [&](char* buffer, std::size_t room, std::size_t* length) { return lw_recipe_difference(handle_, other.handle_, buffer, room, length); });
  }

 private:
  const lw_recipe* handle_;
};

// Everything that may change a byte.
class Recipe : public RecipeRef {
 public:
  static Recipe load(const std::string& path) {
    return make([&](lw_recipe** out) { return lw_recipe_load(path.c_str(), out); });
  }
  // Relative paths in the text are relative to `base`, or else to the current directory.
  static Recipe parse(std::string_view text, const std::optional<std::string>& base = std::nullopt) {
    return make([&](lw_recipe** out) { return lw_recipe_parse(text.data(), text.size(), base ? base->c_str() : nullptr, out); });
  }

 private:
  explicit Recipe(lw_recipe* handle) : RecipeRef(handle), owner_(handle) {}
  template <class Make> static Recipe make(Make make) {
    check_abi();
    lw_recipe* handle = nullptr;
    check(make(&handle));
    return Recipe(handle);
  }
  std::unique_ptr<lw_recipe, detail::Freed<lw_recipe, lw_recipe_free>> owner_;
};

// A dataset that somebody else owns.
class DatasetRef {
 public:
  explicit DatasetRef(const lw_dataset* handle) noexcept : handle_(handle) {}
  const lw_dataset* get() const noexcept { return handle_; }
  std::uint64_t documents() const noexcept { return lw_dataset_documents(handle_); }
  std::uint64_t fingerprint() const noexcept { return lw_dataset_fingerprint(handle_); }
  std::uint64_t bytes_read() const noexcept { return lw_dataset_bytes_read(handle_); }
  std::size_t shards() const noexcept { return lw_dataset_shard_count(handle_); }
  // Its strings belong to the dataset.
  lw_shard shard(std::size_t index) const {
    lw_shard shard;
    check(lw_dataset_shard(handle_, index, &shard));
    return shard;
  }
  std::vector<lw_group> groups() const {
    return detail::items<lw_group>([&](lw_group* groups, std::size_t room, std::size_t* count) { return lw_dataset_groups(handle_, groups, room, count); });
  }
  lw_location locate(std::uint64_t document) const {
    lw_location location;
    check(lw_dataset_locate(handle_, document, &location));
    return location;
  }
  // The text of a document; nothing if it has none and `on_error` leaves such out.
  std::optional<std::string> read(std::uint64_t document) const {
    const char* skipped = nullptr;
    std::string text = detail::text(
        [&](char* buffer, std::size_t room, std::size_t* length) { return lw_dataset_read(handle_, document, buffer, room, length, &skipped); });
    if (skipped) return std::nullopt;
    return text;
  }

 private:
  const lw_dataset* handle_;
};

// Files read as numbered documents.
class Dataset : public DatasetRef {
 public:
  // `set` changes the options after their defaults are set.
  template <class Set = detail::Nothing> explicit Dataset(const std::vector<std::string>& paths, Set set = {}) : Dataset(open(paths, set)) {}

 private:
  explicit Dataset(lw_dataset* handle) : DatasetRef(handle), owner_(handle) {}
  template <class Set> static lw_dataset* open(const std::vector<std::string>& paths, Set& set) {
    check_abi();
    std::vector<const char*> plain;
    for (const std::string& path : paths) plain.push_back(path.c_str());
    lw_dataset_options options;
    lw_dataset_options_init(&options);
    options.paths = plain.data(), options.path_count = plain.size();
    set(options);
    lw_dataset* handle = nullptr;
    check(lw_dataset_open(&options, &handle));
    return handle;
  }
  std::unique_ptr<lw_dataset, detail::Freed<lw_dataset, lw_dataset_free>> owner_;
};

// Some rows of one step. A copy is another reference to the same; the tensors go with the last. Outlives its Loader.
class Batch {
 public:
  Batch(const Batch& other) noexcept : handle_(other.handle_) { lw_batch_retain(handle_); }
  Batch(Batch&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Batch& operator=(Batch other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Batch() { lw_batch_release(handle_); }
  const lw_batch* get() const noexcept { return handle_; }
  lw_batch_info info() const {
    lw_batch_info info;
    check(lw_batch_describe(handle_, &info));
    return info;
  }
  // A view as long-lived as the batch; not to be written: take Span<const T>.
  Tensor tensor(const std::string& name) const {
    Tensor tensor;
    check(lw_batch_tensor(handle_, name.c_str(), &tensor));
    return tensor;
  }
  // A DLPack tensor with a reference of its own; whoever takes it calls its deleter.
  DLManagedTensorVersioned* dlpack(const std::string& name) const {
    DLManagedTensorVersioned* tensor = nullptr;
    check(lw_batch_dlpack(handle_, name.c_str(), &tensor));
    return tensor;
  }
  // The tensors that teachers made of each row; its handle is NULL if they made none. It belongs to the batch.
  LayoutRef layout() const noexcept { return LayoutRef(lw_batch_layout(handle_)); }
  std::vector<lw_row> rows() const {
    return detail::items<lw_row>([&](lw_row* rows, std::size_t room, std::size_t* count) { return lw_batch_rows(handle_, rows, room, count); });
  }
  std::vector<lw_segment> segments() const {
    return detail::items<lw_segment>(
        [&](lw_segment* segments, std::size_t room, std::size_t* count) { return lw_batch_segments(handle_, segments, room, count); });
  }
  std::vector<std::uint64_t> row_hashes() const {
    return detail::items<std::uint64_t>(
        [&](std::uint64_t* hashes, std::size_t room, std::size_t* count) { return lw_batch_row_hashes(handle_, hashes, room, count); });
  }

 private:
  friend class Loader;
  friend class Rows;
  explicit Batch(lw_batch* handle) noexcept : handle_(handle) {}
  const lw_batch* handle_;
};

// The hash of a global batch, from those of all its rows in order.
inline std::uint64_t global_hash(const std::vector<std::uint64_t>& row_hashes) noexcept {
  return lw_batch_global_hash(row_hashes.data(), row_hashes.size());
}

// A function on a document's text, by its name in the recipe. What it throws fails the row that needs the document, with its text.
struct Function {
  std::string name;
  std::function<std::string(std::string_view)> map;
  std::function<bool(std::string_view)> filter;
};

// The pieces that an operator holds in a lane, and what it hands on; for use during a call, on its thread.
class Pieces {
 public:
  explicit Pieces(lw_pieces* handle) noexcept : handle_(handle) {}
  // Hands on tokens start … start + length of a piece.
  void emit(std::uint64_t number, std::uint32_t start, std::uint32_t length) const { check(lw_pieces_emit(handle_, number, start, length)); }
  void emit(const lw_piece& piece) const { emit(piece.number, 0, piece.length); }
  void hold(const lw_piece& piece) const { check(lw_pieces_hold(handle_, piece.number)); }
  void release(std::uint64_t number) const { check(lw_pieces_release(handle_, number)); }
  // A piece that is held; its tokens are valid until the call returns or releases it.
  lw_piece get(std::uint64_t number) const {
    lw_piece piece;
    check(lw_pieces_get(handle_, number, &piece));
    return piece;
  }

 private:
  lw_pieces* handle_;
};

// One lane's state of an operator. What a function throws fails the row that needed it, with its text.
class LaneOperator {
 public:
  virtual ~LaneOperator() = default;
  // Takes a piece, which is dropped unless it is handed on or held.
  virtual void push(const lw_piece& piece, Pieces& pieces) = 0;
  // The lane's stream ends: hands on what is still to go.
  virtual void flush(Pieces&) {}
  // What is remembered beside the pieces held; nothing, and no piece held: as at the beginning.
  virtual std::string save(Pieces&) { return {}; }
  // Takes up what `save` wrote, and the pieces held then, which have no tokens yet.
  virtual void load(std::string_view, const std::vector<lw_piece>&, Pieces&) {}
};

// An operator between documents and rows, by its name in the recipe; `open` makes the state of a lane.
struct Operator {
  std::string name;
  std::function<std::unique_ptr<LaneOperator>(std::uint32_t lane)> open;
};

namespace detail {
// Functions and operators as the library takes them.
class Given {
 public:
  Given(std::vector<Function> functions, std::vector<Operator> operators) : operator_tables(operators.size()), tables(functions.size()) {
    for (std::size_t i = 0; i < operator_tables.size(); ++i) {
      operating.push_back(std::make_unique<Operator>(std::move(operators[i])));
      operator_tables[i] = table(*operating[i]);
      given_operators.push_back(&operator_tables[i]);
    }
    for (std::size_t i = 0; i < tables.size(); ++i) {
      owned.push_back(std::make_unique<Function>(std::move(functions[i])));
      lw_function_table_init(&tables[i]);
      tables[i].user = owned[i].get(), tables[i].name = owned[i]->name.c_str(), tables[i].drop = drop;
      if (owned[i]->map) tables[i].map = map;
      if (owned[i]->filter) tables[i].filter = filter;
      given.push_back(&tables[i]);
    }
  }
  void put(lw_loader_options& options) const noexcept {
    options.functions = given.data(), options.function_count = given.size();
    options.operators = given_operators.data(), options.operator_count = given_operators.size();
  }
  // They are the library's from now on.
  void release() noexcept {
    for (auto& function : owned) function.release();
    for (auto& one : operating) one.release();
  }

 private:
  static void drop(void* function) { delete static_cast<Function*>(function); }
  template <class Body> static std::int32_t guarded(Body body) noexcept {
    try {
      return body();
    } catch (const std::exception& error) {
      lw_set_last_error(error.what(), std::char_traits<char>::length(error.what()));
    } catch (...) {
      constexpr std::string_view text = "it threw what is no std::exception";
      lw_set_last_error(text.data(), text.size());
    }
    return -1;
  }
  static std::int32_t map(void* function, const char* text, std::size_t length, lw_text* out) {
    return guarded([&] {
      const std::string made = static_cast<Function*>(function)->map(std::string_view(text, length));
      check(lw_text_append(out, made.data(), made.size()));
      return 0;
    });
  }
  static std::int32_t filter(void* function, const char* text, std::size_t length) {
    return guarded([&] { return static_cast<Function*>(function)->filter(std::string_view(text, length)) ? 1 : 0; });
  }

  // A lane's state, and the bytes of its last save.
  struct Lane {
    std::unique_ptr<LaneOperator> made;
    std::string saved;
  };
  static Lane& lane(void* state) { return *static_cast<Lane*>(state); }
  static lw_operator_table table(Operator& of) {
    lw_operator_table table;
    lw_operator_table_init(&table);
    table.user = &of, table.name = of.name.c_str();
    table.drop = [](void* user) { delete static_cast<Operator*>(user); };
    table.open = [](void* user, std::uint32_t number, void** state) {
      return guarded([&] {
        auto made = static_cast<Operator*>(user)->open(number);
        if (!made) throw std::logic_error("open made no state");
        *state = new Lane{std::move(made), {}};
        return 0;
      });
    };
    table.close = [](void*, void* state) { delete static_cast<Lane*>(state); };
    table.push = [](void*, void* state, const lw_piece* piece, lw_pieces* handle) {
      return guarded([&] {
        Pieces pieces(handle);
        lane(state).made->push(*piece, pieces);
        return 0;
      });
    };
    table.flush = [](void*, void* state, lw_pieces* handle) {
      return guarded([&] {
        Pieces pieces(handle);
        lane(state).made->flush(pieces);
        return 0;
      });
    };
    table.save = [](void*, void* state, lw_pieces* handle, const void** bytes, std::size_t* length) {
      return guarded([&] {
        Pieces pieces(handle);
        std::string& saved = lane(state).saved = lane(state).made->save(pieces);
        *bytes = saved.data(), *length = saved.size();
        return 0;
      });
    };
    table.load = [](void*, void* state, const void* bytes, std::size_t length, const lw_piece* held, std::size_t count, lw_pieces* handle) {
      return guarded([&] {
        Pieces pieces(handle);
        lane(state).made->load({static_cast<const char*>(bytes), length}, std::vector<lw_piece>(held, held + count), pieces);
        return 0;
      });
    };
    return table;
  }
  std::vector<std::unique_ptr<Operator>> operating;
  std::vector<lw_operator_table> operator_tables;
  std::vector<const lw_operator_table*> given_operators;
  std::vector<std::unique_ptr<Function>> owned;
  std::vector<lw_function_table> tables;
  std::vector<const lw_function_table*> given;
};
}  // namespace detail

// A rank's part of every global batch, in order.
class Loader {
 public:
  // `set` changes the options after their defaults are set.
  template <class Set = detail::Nothing> explicit Loader(const RecipeRef& recipe, Set set = {}) : Loader(recipe, std::vector<Function>{}, set) {}
  // With the functions that the recipe names, in any order.
  template <class Set = detail::Nothing>
  Loader(const RecipeRef& recipe, std::vector<Function> functions, Set set = {}) : Loader(recipe, std::move(functions), std::vector<Operator>{}, set) {}
  // And the operators, whose names stand behind theirs.
  template <class Set = detail::Nothing> Loader(const RecipeRef& recipe, std::vector<Function> functions, std::vector<Operator> operators, Set set = {}) {
    check_abi();
    detail::Given given(std::move(functions), std::move(operators));
    lw_loader_options options;
    lw_loader_options_init(&options);
    given.put(options);
    set(options);
    lw_loader* handle = nullptr;
    check(lw_loader_open(recipe.get(), &options, &handle));
    handle_.reset(handle);
    given.release();
  }

  // Owns a handle that the library gave.
  explicit Loader(lw_loader* handle) noexcept : handle_(handle) {}

  // The next batch, nothing after the last. Throws LW_TIMEOUT if the deadline passed first: call again.
  std::optional<Batch> next(Deadline deadline = never) const {
    lw_batch* batch = nullptr;
    check(lw_loader_next(get(), deadline, &batch));
    if (!batch) return std::nullopt;
    return Batch(batch);
  }
  // The state after the last batch, for this rank's lanes.
  std::string save() const {
    std::string state(std::size_t{1} << 12, '\0');
    for (std::size_t length = 0;; state.resize(length)) {  // It may have grown in between.
      const lw_status status = lw_loader_save(get(), state.data(), state.size(), &length);
      if (status != LW_OK && length > state.size()) continue;
      check(status);
      state.resize(length);
      return state;
    }
  }
  std::string save_json() const {
    return detail::text([&](char* buffer, std::size_t room, std::size_t* length) { return lw_loader_save_json(get(), buffer, room, length); });
  }
  // Goes on from states in either form, which together hold this rank's lanes.
  void load(const std::vector<std::string>& states) const {
    std::vector<lw_state> plain;
    for (const std::string& state : states) plain.push_back({state.data(), state.size()});
    check(lw_loader_load(get(), plain.data(), plain.size()));
  }
  void seek(std::uint64_t step) const { check(lw_loader_seek(get(), step)); }
  void set_mixture(const std::vector<double>& weights, std::uint64_t from_step) const {
    check(lw_loader_set_mixture(get(), weights.data(), weights.size(), from_step));
  }
  // Teachers make the rows from that step on with another model; `config` is a JSON object.
  void set_model(std::string_view id, std::uint64_t from_step, std::optional<std::string_view> config = std::nullopt) const {
    check(lw_loader_set_model(get(), id.data(), id.size(), config ? config->data() : nullptr, config ? config->size() : 0, from_step));
  }
  // Of the whole stream; nothing if it does not end.
  std::optional<std::uint64_t> steps() const {
    std::uint64_t steps = 0;
    check(lw_loader_steps(get(), &steps));
    if (steps == LW_ENDLESS) return std::nullopt;
    return steps;
  }
  std::uint64_t step() const {
    std::uint64_t step = 0;
    check(lw_loader_step(get(), &step));
    return step;
  }
  RecipeRef recipe() const noexcept { return RecipeRef(lw_loader_recipe(get())); }
  // In the recipe's order; its handle is NULL beyond the last.
  DatasetRef dataset(std::size_t index) const noexcept { return DatasetRef(lw_loader_dataset(get(), index)); }
  std::string info() const {
    return detail::text([&](char* buffer, std::size_t room, std::size_t* length) { return lw_loader_info(get(), buffer, room, length); });
  }
  std::string explain() const {
    return detail::text([&](char* buffer, std::size_t room, std::size_t* length) { return lw_loader_explain(get(), buffer, room, length); });
  }
  std::string stats() const {
    return detail::text([&](char* buffer, std::size_t room, std::size_t* length) { return lw_loader_stats(get(), buffer, room, length); });
  }
  std::string decode(const std::int64_t* ids, std::size_t count) const {
    return detail::text([&](char* buffer, std::size_t room, std::size_t* length) { return lw_loader_decode(get(), ids, count, buffer, room, length); });
  }
  void cancel() const noexcept { lw_loader_cancel(get()); }
  void close() const noexcept { lw_loader_close(get()); }
  // Waits for nobody; join() does. The handle's end then waits for nobody either.
  void abandon() const noexcept { lw_loader_abandon(get()); }
  void join(Deadline deadline = never) const { check(lw_loader_join(get(), deadline)); }
  const lw_loader* get() const noexcept { return handle_.get(); }

 private:
  std::unique_ptr<lw_loader, detail::Freed<lw_loader, lw_loader_free>> handle_;
};

// Any row of a recipe, by its ticket. A worker makes its inputs with it.
class Rows {
 public:
  // `set` changes the options after their defaults are set; those that choose a rank's part stay as they are.
  template <class Set = detail::Nothing> explicit Rows(const RecipeRef& recipe, std::vector<Function> functions = {}, std::vector<Operator> operators = {}, Set set = {}) {
    check_abi();
    detail::Given given(std::move(functions), std::move(operators));
    lw_loader_options options;
    lw_loader_options_init(&options);
    given.put(options);
    set(options);
    lw_rows* handle = nullptr;
    check(lw_rows_open(recipe.get(), &options, &handle));
    handle_.reset(handle);
    given.release();
  }
  Batch get(const std::vector<lw_ticket>& tickets, Deadline deadline = never) const {
    lw_batch* batch = nullptr;
    check(lw_rows_get(get(), tickets.data(), tickets.size(), deadline, &batch));
    return Batch(batch);
  }
  // The rows of a worker's open tasks, all of one generation.
  Batch of_tasks(const lw_worker* worker, const std::vector<lw_task>& tasks, Deadline deadline = never) const {
    lw_batch* batch = nullptr;
    check(lw_rows_of_tasks(get(), worker, tasks.data(), tasks.size(), deadline, &batch));
    return Batch(batch);
  }
  DatasetRef dataset(std::size_t index) const noexcept { return DatasetRef(lw_rows_dataset(get(), index)); }
  void cancel() const noexcept { lw_rows_cancel(get()); }
  void close() const noexcept { lw_rows_close(get()); }
  void abandon() const noexcept { lw_rows_abandon(get()); }
  const lw_rows* get() const noexcept { return handle_.get(); }

 private:
  std::unique_ptr<lw_rows, detail::Freed<lw_rows, lw_rows_free>> handle_;
};

// Numbers of all that this process has open: one JSON object, or lines in Prometheus' text format.
inline std::string metrics() {
  check_abi();
  return detail::text(lw_metrics_snapshot);
}
inline std::string metrics_text() {
  check_abi();
  return detail::text(lw_metrics_text);
}

// A listener that answers GET /metrics; port 0 takes any free one.
class MetricsServer {
 public:
  explicit MetricsServer(const std::string& address = "127.0.0.1:0") {
    check_abi();
    lw_metrics_server* handle = nullptr;
    check(lw_metrics_serve(address.c_str(), &handle));
    handle_.reset(handle);
  }
  std::uint16_t port() const noexcept { return lw_metrics_server_port(handle_.get()); }

 private:
  std::unique_ptr<lw_metrics_server, detail::Freed<lw_metrics_server, lw_metrics_server_free>> handle_;
};

}  // namespace laneway

#endif  // LANEWAY_LANES_HPP
