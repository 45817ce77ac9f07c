// The C++ wrapper of the lanes: owners that move, exceptions with the library's message, functions as std::function.
#include <laneway.hpp>

#include "lanes.h"

#include <atomic>
#include <stdexcept>
#include <type_traits>

using namespace std::chrono_literals;
using laneway::in;

namespace {

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
laneway::Recipe endless(const std::string& first = "") { return laneway::Recipe::parse(first + ENDLESS_RECIPE, data_dir); }

static_assert(!std::is_copy_constructible_v<laneway::Loader> && std::is_nothrow_move_constructible_v<laneway::Loader>);
static_assert(std::is_nothrow_copy_constructible_v<laneway::Batch> && std::is_nothrow_move_constructible_v<laneway::Batch>);

void recipes_are_compared() {
  const laneway::Recipe one = endless(), again = laneway::Recipe::parse(one.to_toml());
  CHECK(one.fingerprint() == again.fingerprint() && one.difference(again).empty() && one.fields() == again.fields());
  const laneway::Recipe longer = laneway::Recipe::parse(DATASETS("", "") TOKENS "[pack]\nmax_length = 64\n[batch]\nglobal_batch = 8\n", data_dir);
  CHECK(one.difference(longer) == "seed is 7 in one and 0 in the other");
  CHECK(has(error_of([] { laneway::Recipe::load("/nowhere.toml"); }), "/nowhere.toml"));
}

void datasets_are_read() {
  const laneway::Dataset code({in_data("code")}, [](lw_dataset_options& o) { o.name = "code"; });
  char expected[1024];
  put_document(expected, 1, 30);
  CHECK(code.documents() == CODE_DOCUMENTS && code.shards() == 3 && code.read(30) == std::string(expected) && !code.groups().empty());
  const lw_location where = code.locate(32);
  CHECK(where.number == 2 && std::string(code.shard(where.shard).name) == "c.jsonl");
  CHECK(error_of([&] { code.read(CODE_DOCUMENTS); }).status() == LW_INVALID_ARGUMENT);
  CHECK(error_of([] { laneway::Dataset none(std::vector<std::string>{}); }).status() == LW_INVALID_ARGUMENT);
}

std::uint64_t step_of(const std::vector<laneway::Loader>& ranks) {
  std::vector<std::uint64_t> hashes;
  for (const laneway::Loader& loader : ranks)
    for (std::uint64_t hash : loader.next(in(30s))->row_hashes()) hashes.push_back(hash);
  return laneway::global_hash(hashes);
}

std::vector<laneway::Loader> world(std::uint32_t ranks) {
  std::vector<laneway::Loader> all;
  for (std::uint32_t r = 0; r < ranks; ++r) all.emplace_back(endless(), [&](lw_loader_options& o) { o.rank = r, o.ranks = ranks, o.threads = 1; });
  return all;
}

void a_run_goes_on_with_another_number_of_ranks() {
  std::vector<laneway::Loader> one = world(1), two = world(2);
  std::vector<std::uint64_t> hashes;
  std::string middle;
  for (int step = 0; step < 20; ++step) {
    if (step == 10) middle = one[0].save();
    hashes.push_back(step_of(one));
  }
  for (const laneway::Loader& loader : two) loader.load({middle});
  CHECK(two[1].step() == 10);
  for (int step = 10; step < 20; ++step) CHECK(step_of(two) == hashes[step]);
  one[0].load({two[0].save_json(), two[1].save()});
  CHECK(one[0].step() == 20 && !one[0].steps());
  one[0].seek(3);
  CHECK(step_of(one) == hashes[3]);
  one[0].set_mixture({1, 0}, 50);
  CHECK(has(error_of([&] { one[0].load({"nonsense"}); }), "states[0]"));
}

void a_batch_outlives_its_loader() {
  std::optional<laneway::Batch> kept;
  {
    const laneway::Loader loader(endless());
    kept = loader.next();
    const laneway::DatasetRef news = loader.dataset(0);
    CHECK(news.documents() == NEWS_DOCUMENTS && loader.dataset(2).get() == nullptr && loader.recipe().fingerprint() == endless().fingerprint());
    CHECK(loader.explain().find("300 documents") != std::string::npos && loader.info().front() == '{' && loader.stats().front() == '{');
    const std::int64_t ids[] = {word(0, 3, 0), word(0, 3, 1)};
    CHECK(loader.decode(ids, 2) == "w" + std::to_string(ids[0]) + " w" + std::to_string(ids[1]));
  }
  const laneway::Batch copy = *kept;
  const auto ids = copy.tensor("input_ids").as<const std::int64_t>();
  CHECK(copy.info().rows == GLOBAL_BATCH && ids.size() == GLOBAL_BATCH * ROW && copy.rows().size() == GLOBAL_BATCH);
  kept.reset();
  const auto segments = copy.segments();
  for (const lw_segment& s : segments) CHECK(ids[s.row * ROW + s.offset] == word(s.dataset, s.document, s.start));
  CHECK(has(error_of([&] { copy.tensor("ids"); }), "input_ids"));
}

void functions_are_called_and_freed_and_may_throw() {
  const auto counter = std::make_shared<std::atomic<int>>(0);
  const std::string first = "functions = [\"upper 1\", \"some 1\"]\n";
  const laneway::Function upper{"upper 1", [counter](std::string_view text) { return ++*counter, std::string(text) + " w1"; }, nullptr};
  const laneway::Function some{"some 1", nullptr, [counter](std::string_view text) { return text.size() % 2 == 0; }};
  const laneway::Function angry{"some 1", nullptr, [](std::string_view) -> bool { throw std::runtime_error("not today"); }};
  {
    const laneway::Loader loader(endless(first), {some, upper});
    CHECK(loader.next().has_value() && *counter > 0);
  }
  CHECK(counter.use_count() == 3);  // this one, and those of `upper` and `some`
  const laneway::Loader failing(endless(first), {angry, upper});
  const laneway::Error error = error_of([&] { failing.next(); });
  CHECK(error.status() == LW_DATA && has(error, "function 'some 1'") && has(error, "not today"));
  CHECK(has(error_of([&] { laneway::Loader loader(endless(first), {upper}); }), "'some 1'"));
  failing.close();
  CHECK(error_of([&] { failing.next(); }).status() == LW_CLOSED);
}

// Lets two documents of a lane change places.
class Swap : public laneway::LaneOperator {
 public:
  explicit Swap(std::shared_ptr<int> counted) : counted_(std::move(counted)) {}
  void push(const lw_piece& piece, laneway::Pieces& pieces) override {
    if (piece.document == 13) throw std::runtime_error("thirteen");
    if (held_) {
      pieces.emit(piece);
      flush(pieces);
    } else {
      pieces.hold(piece);
      held_ = piece.number;
    }
  }
  void flush(laneway::Pieces& pieces) override {
    if (!held_) return;
    pieces.emit(pieces.get(*held_)), pieces.release(*held_), held_.reset(), ++swaps_;
  }
  std::string save(laneway::Pieces&) override { return std::to_string(swaps_); }
  void load(std::string_view state, const std::vector<lw_piece>& held, laneway::Pieces&) override {
    swaps_ = std::stoi(std::string(state));
    if (!held.empty()) held_ = held[0].number;
  }

 private:
  std::shared_ptr<int> counted_;
  std::optional<std::uint64_t> held_;
  int swaps_ = 0;
};

void an_operator_keeps_its_state_and_may_throw() {
  const auto counted = std::make_shared<int>(0);
  const laneway::Operator swap{"swap 1", [counted](std::uint32_t) { return std::make_unique<Swap>(counted); }};
  const std::string first = "functions = [\"swap 1\"]\n";
  {
    const laneway::Loader all(endless(first), {}, {swap}), some(endless(first), {}, {swap});
    for (int step = 0; step < 2; ++step) CHECK(all.next()->row_hashes() == some.next()->row_hashes());
    const laneway::Loader resumed(endless(first), {}, {swap});
    resumed.load({some.save()});
    CHECK(all.next()->row_hashes() == resumed.next()->row_hashes());
    const laneway::Error error = error_of([&] {
      while (all.next()) {
      }
    });
    CHECK(error.status() == LW_DATA && has(error, "operator 'swap 1'") && has(error, "thirteen"));
  }
  CHECK(counted.use_count() == 2);  // this one, and that of `swap`
}

void rows_come_by_their_tickets() {
  const laneway::Loader loader(endless());
  const laneway::Rows rows(endless());
  std::vector<std::uint64_t> hashes;
  for (int step = 0; step < 3; ++step) hashes = loader.next()->row_hashes();
  const laneway::Batch batch = rows.get({{5, 2}, {1, 2}});
  CHECK(batch.row_hashes() == (std::vector<std::uint64_t>{hashes[5], hashes[1]}) && batch.layout().get() == nullptr);
  CHECK(rows.dataset(0).documents() == NEWS_DOCUMENTS && has(error_of([&] { rows.get({{99, 0}}); }), "lanes 0 to 7"));
  CHECK(error_of([&] { loader.set_model("n", 9); }).status() == LW_UNSUPPORTED);
}

void a_server_feeds_loaders() {
  const std::string dir = in_data("node");
  CHECK(mkdir(dir.c_str(), 0700) == 0 && setenv("LANEWAY_DIR", dir.c_str(), 1) == 0);
  const laneway::Loader here(endless());
  laneway::Server server(endless(), [](lw_server_options& o, lw_loader_options& pipeline) { o.name = "cpp", pipeline.threads = 1; });
  const laneway::Loader there = laneway::connect([](lw_connect_options& o) { o.name = "cpp"; });
  CHECK(there.recipe().fingerprint() == endless().fingerprint());
  for (int step = 0; step < 20; ++step) CHECK(here.next()->row_hashes() == there.next(in(30s))->row_hashes());
  CHECK(here.save() == there.save() && server.stats().find("\"peers\"") != std::string::npos);
  const laneway::Recipe other = laneway::Recipe::parse(DATASETS("", "") TOKENS "[pack]\nmax_length = 64\n[batch]\nglobal_batch = 8\n", data_dir);
  CHECK(error_of([&] { laneway::connect(other, [](lw_connect_options& o) { o.name = "cpp"; }); }).status() == LW_REFUSED);
  CHECK(error_of([&] { laneway::Server second(endless(), [](lw_server_options& o, lw_loader_options&) { o.name = "cpp"; }); }).status() == LW_IN_USE);
  server.stop();
  CHECK(server.wait(in(30s)));
}

void a_server_calls_functions_and_operators() {
  CHECK(setenv("LANEWAY_DIR", in_data("node"), 1) == 0);
  const auto counter = std::make_shared<std::atomic<int>>(0);
  const auto counted = std::make_shared<int>(0);
  const laneway::Function upper{"upper 1", [counter](std::string_view text) { return ++*counter, std::string(text) + " w1"; }, nullptr};
  const laneway::Operator swap{"swap 1", [counted](std::uint32_t) { return std::make_unique<Swap>(counted); }};
  const laneway::Recipe recipe = endless("functions = [\"upper 1\", \"swap 1\"]\n");
  const auto named = [](lw_server_options& o, lw_loader_options& pipeline) { o.name = "cpp2", pipeline.threads = 1; };
  {
    const laneway::Loader here(recipe, {upper}, {swap});
    const laneway::Server server(recipe, {upper}, {swap}, named);
    const laneway::Loader there = laneway::connect(recipe, [](lw_connect_options& o) { o.name = "cpp2"; });
    for (int step = 0; step < 2; ++step) CHECK(here.next()->row_hashes() == there.next(in(30s))->row_hashes());
    const laneway::Error error = error_of([&] {
      while (there.next(in(30s))) {
      }
    });
    CHECK(error.status() == LW_DATA && has(error, "operator 'swap 1'") && has(error, "thirteen") && *counter > 0);
  }
  CHECK(counter.use_count() == 2 && counted.use_count() == 2);  // these, and those of `upper` and `swap`
  CHECK(has(error_of([&] { laneway::Server server(recipe, {upper}, named); }), "'swap 1'"));
  CHECK(counter.use_count() == 2);
}

}  // namespace

int main() {
  use_data();
  rows_come_by_their_tickets();
  a_server_feeds_loaders();
  a_server_calls_functions_and_operators();
  recipes_are_compared();
  datasets_are_read();
  a_run_goes_on_with_another_number_of_ranks();
  a_batch_outlives_its_loader();
  functions_are_called_and_freed_and_may_throw();
  an_operator_keeps_its_state_and_may_throw();
}
