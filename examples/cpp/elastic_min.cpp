// The smallest elastic run, in C++: one rank trains for a while and saves; two ranks go on from there, and see the same global batches.
//
//   c++ -std=c++17 elastic_min.cpp $(pkg-config --cflags --libs laneway) -o elastic_min && ./elastic_min recipe.toml 20
//
// examples/recipes/documentation.toml is a recipe that runs as it is. The two ranks are two loaders here to keep the example in one file; in training each
// is in its own process, opened with torchrun's RANK and WORLD_SIZE. examples/c, examples/rust and examples/python hold the same program under the same
// name.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <laneway.hpp>

// The loaders of all ranks.
static std::vector<laneway::Loader> open_ranks(const laneway::Recipe& recipe, std::uint32_t ranks) {
  std::vector<laneway::Loader> loaders;
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    loaders.emplace_back(recipe, [&](lw_loader_options& o) { o.rank = rank, o.ranks = ranks; });
  return loaders;
}

// One step of all ranks: takes a batch of each, and gives the hash of the global batch. A trainer would look at the tensors.
static std::uint64_t step(const std::vector<laneway::Loader>& loaders) {
  std::vector<std::uint64_t> hashes;
  for (const laneway::Loader& loader : loaders) {
    const auto batch = loader.next();
    if (!batch) throw std::runtime_error("the stream has ended");
    const auto ids = batch->tensor("input_ids").as<const std::int64_t>();
    const auto labels = batch->tensor("labels").as<const std::int64_t>();
    if (ids.size() != labels.size()) throw std::runtime_error("every id has its label");
    for (std::uint64_t hash : batch->row_hashes()) hashes.push_back(hash);
  }
  return laneway::global_hash(hashes);
}

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error("usage: elastic_min recipe.toml STEPS");
  const int steps = std::atoi(argv[2]), half = steps / 2;
  const laneway::Recipe recipe = laneway::Recipe::load(argv[1]);

  const auto one = open_ranks(recipe, 1), two = open_ranks(recipe, 2);
  std::vector<std::uint64_t> expected;
  std::string saved;
  for (int i = 0; i < steps; ++i) {
    if (i == half) saved = one[0].save();
    expected.push_back(step(one));
  }

  for (const laneway::Loader& loader : two) loader.load({saved});
  int different = 0;
  for (int i = half; i < steps; ++i) {
    const std::uint64_t found = step(two);
    std::printf("step %3d  one rank %016" PRIx64 "  two ranks, resumed %016" PRIx64 "\n", i, expected[i], found);
    different += found != expected[i];
  }
  std::printf("%s\n", different ? "DIFFERENT" : "identical");
  return different > 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
