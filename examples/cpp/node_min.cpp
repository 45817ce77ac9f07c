// The smallest node loader, in C++: one server makes the batches of two ranks, and two peers of each read them; one peer ends on the way and comes back.
//
//   c++ -std=c++17 node_min.cpp $(pkg-config --cflags --libs laneway) -o node_min && ./node_min recipe.toml 20
//
// examples/recipes/documentation.toml is a recipe that runs as it is. Server and peers are in one process here to keep the example in one file; in training
// `laneway serve recipe.toml --ranks 2 --peers 2` runs on each node, and each peer is in the process of its GPU. examples/c, examples/rust and examples/python
// hold the same program under the same name.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <laneway.hpp>

constexpr std::uint32_t ranks = 2, peers = 2;
constexpr const char* name = "node_min";

static laneway::Loader connect_to(std::uint32_t rank) {
  return laneway::connect([&](lw_connect_options& o) { o.name = name, o.rank = rank, o.ranks = ranks, o.peers = peers; });
}

// Ends a peer and opens it again where it was. A trainer that died comes back with the state of its checkpoint.
static void restart(laneway::Loader& peer, std::uint32_t rank) {
  const std::string state = peer.save();
  peer.close();
  peer = connect_to(rank);
  peer.load({state});
}

// One step as one peer of each rank sees it: the hash of the global batch. A trainer would look at the tensors, which lie in the server's memory.
static std::uint64_t step(const std::vector<laneway::Loader>& of_ranks) {
  std::vector<std::uint64_t> hashes;
  for (const laneway::Loader& peer : of_ranks) {
    const auto batch = peer.next();
    if (!batch) throw std::runtime_error("the stream has ended");
    const auto ids = batch->tensor("input_ids").as<const std::int64_t>();
    if (ids.size() == 0) throw std::runtime_error("a batch without tokens");
    for (std::uint64_t hash : batch->row_hashes()) hashes.push_back(hash);
  }
  return laneway::global_hash(hashes);
}

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error("usage: node_min recipe.toml STEPS");
  const int steps = std::atoi(argv[2]);
  const laneway::Server server(laneway::Recipe::load(argv[1]), [](lw_server_options& o, lw_loader_options&) { o.name = name, o.ranks = ranks, o.peers = peers; });
  std::vector<laneway::Loader> first, second;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) first.push_back(connect_to(rank)), second.push_back(connect_to(rank));
  int different = 0;
  for (int i = 0; i < steps; ++i) {
    if (i == steps / 2) restart(second[0], 0);
    const std::uint64_t one = step(first), other = step(second);
    std::printf("step %3d  first peers %016" PRIx64 "  second peers %016" PRIx64 "%s\n", i, one, other, i == steps / 2 ? ", one of them restarted" : "");
    different += one != other;
  }
  std::printf("%s\n", different ? "DIFFERENT" : "identical");
  return different > 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
