/* The smallest node loader, in C: one server makes the batches of two ranks, and two peers of each read them; one peer ends on the way and comes back.
 *
 *   cc node_min.c $(pkg-config --cflags --libs laneway) -o node_min && ./node_min recipe.toml 20
 *
 * examples/recipes/documentation.toml is a recipe that runs as it is. Server and peers are in one process here to keep the example in one file; in training
 * `laneway serve recipe.toml --ranks 2 --peers 2` runs on each node, and each peer is in the process of its GPU. examples/cpp, examples/rust and examples/python
 * hold the same program under the same name. */
#include <inttypes.h>
#include <laneway.h>
#include <stdio.h>
#include <stdlib.h>

enum { RANKS = 2, PEERS = 2 };
static const char *const name = "node_min";

static void check(lw_status status) {
  if (status == LW_OK) return;
  fprintf(stderr, "%s: %s\n", lw_status_name(status), lw_last_error());
  exit(1);
}

static lw_server *serve(const lw_recipe *recipe) {
  lw_server_options options;
  lw_server_options_init(&options);
  options.name = name, options.ranks = RANKS, options.peers = PEERS;
  lw_server *server;
  check(lw_server_start(recipe, &options, &server));
  return server;
}

static lw_loader *connect_to(uint32_t rank) {
  lw_connect_options options;
  lw_connect_options_init(&options);
  options.name = name, options.rank = rank, options.ranks = RANKS, options.peers = PEERS;
  lw_loader *peer;
  check(lw_loader_connect(NULL, &options, &peer));
  return peer;
}

/* Ends a peer and opens it again where it was. A trainer that died comes back with the state of its checkpoint. */
static lw_loader *restart(lw_loader *peer, uint32_t rank) {
  static char saved[1 << 20]; /* some hundred bytes a lane, however far the run has come */
  size_t length;
  check(lw_loader_save(peer, saved, sizeof saved, &length));
  lw_loader_free(peer);
  const lw_state state = {saved, length};
  peer = connect_to(rank);
  check(lw_loader_load(peer, &state, 1));
  return peer;
}

/* One step as one peer of each rank sees it: the hash of the global batch. A trainer would look at the tensors, which lie in the server's memory. */
static uint64_t step(lw_loader *const *ranks) {
  uint64_t hashes[4096];
  size_t rows = 0;
  for (int rank = 0; rank < RANKS; rank++) {
    lw_batch *batch;
    lw_tensor ids;
    size_t count;
    check(lw_loader_next(ranks[rank], LW_NEVER, &batch));
    if (!batch) fprintf(stderr, "the stream has ended\n"), exit(1);
    check(lw_batch_tensor(batch, "input_ids", &ids)); /* int64, ids.shape[0] rows of ids.shape[1] tokens */
    check(lw_batch_row_hashes(batch, hashes + rows, 4096 - rows, &count));
    rows += count;
    lw_batch_release(batch);
  }
  return lw_batch_global_hash(hashes, rows);
}

int main(int argc, char **argv) {
  if (argc != 3) return fprintf(stderr, "usage: %s recipe.toml STEPS\n", argv[0]), 2;
  const int steps = atoi(argv[2]);
  lw_recipe *recipe;
  check(lw_recipe_load(argv[1], &recipe));
  lw_server *server = serve(recipe);
  lw_loader *first[] = {connect_to(0), connect_to(1)}, *second[] = {connect_to(0), connect_to(1)};
  int different = 0;
  for (int i = 0; i < steps; i++) {
    if (i == steps / 2) second[0] = restart(second[0], 0);
    const uint64_t one = step(first), other = step(second);
    printf("step %3d  first peers %016" PRIx64 "  second peers %016" PRIx64 "%s\n", i, one, other, i == steps / 2 ? ", one of them restarted" : "");
    different += one != other;
  }
  printf("%s\n", different ? "DIFFERENT" : "identical");
  for (int rank = 0; rank < RANKS; rank++) lw_loader_free(first[rank]), lw_loader_free(second[rank]);
  lw_server_free(server), lw_recipe_free(recipe);
  return different > 0;
}
