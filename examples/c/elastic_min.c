/* The smallest elastic run, in C: one rank trains for a while and saves; two ranks go on from there, and see the same global batches.
 *
 *   cc elastic_min.c $(pkg-config --cflags --libs laneway) -o elastic_min && ./elastic_min recipe.toml 20
 *
 * examples/recipes/documentation.toml is a recipe that runs as it is. The two ranks are two loaders here to keep the example in one file; in training each
 * is in its own process, opened with torchrun's RANK and WORLD_SIZE. examples/cpp, examples/rust and examples/python hold the same program under the
 * same name. */
#include <inttypes.h>
#include <laneway.h>
#include <stdio.h>
#include <stdlib.h>

static void check(lw_status status) {
  if (status == LW_OK) return;
  fprintf(stderr, "%s: %s\n", lw_status_name(status), lw_last_error());
  exit(1);
}

static lw_loader *open_rank(const lw_recipe *recipe, uint32_t rank, uint32_t ranks) {
  lw_loader_options options;
  lw_loader_options_init(&options);
  options.rank = rank, options.ranks = ranks;
  lw_loader *loader;
  check(lw_loader_open(recipe, &options, &loader));
  return loader;
}

/* One step of all ranks: takes a batch of each, and gives the hash of the global batch. A trainer would look at the tensors. */
static uint64_t step(lw_loader **loaders, int ranks) {
  uint64_t hashes[4096];
  size_t rows = 0;
  for (int rank = 0; rank < ranks; rank++) {
    lw_batch *batch;
    lw_tensor ids, labels;
    size_t count;
    check(lw_loader_next(loaders[rank], LW_NEVER, &batch));
    if (!batch) fprintf(stderr, "the stream has ended\n"), exit(1);
    check(lw_batch_tensor(batch, "input_ids", &ids)); /* int64, ids.shape[0] rows of ids.shape[1] tokens */
    check(lw_batch_tensor(batch, "labels", &labels));
    check(lw_batch_row_hashes(batch, hashes + rows, 4096 - rows, &count));
    rows += count;
    lw_batch_release(batch);
  }
  return lw_batch_global_hash(hashes, rows);
}

int main(int argc, char **argv) {
  if (argc != 3) return fprintf(stderr, "usage: %s recipe.toml STEPS\n", argv[0]), 2;
  const int steps = atoi(argv[2]), half = steps / 2;
  lw_recipe *recipe;
  check(lw_recipe_load(argv[1], &recipe));

  lw_loader *one = open_rank(recipe, 0, 1), *two[] = {open_rank(recipe, 0, 2), open_rank(recipe, 1, 2)};
  uint64_t *expected = calloc((size_t)steps + 1, sizeof *expected);
  static char saved[1 << 20]; /* some hundred bytes a lane, however far the run has come */
  size_t length = 0;
  for (int i = 0; i < steps; i++) {
    if (i == half) check(lw_loader_save(one, saved, sizeof saved, &length));
    expected[i] = step(&one, 1);
  }

  const lw_state state = {saved, length};
  for (int rank = 0; rank < 2; rank++) check(lw_loader_load(two[rank], &state, 1));
  int different = 0;
  for (int i = half; i < steps; i++) {
    const uint64_t found = step(two, 2);
    printf("step %3d  one rank %016" PRIx64 "  two ranks, resumed %016" PRIx64 "\n", i, expected[i], found);
    different += found != expected[i];
  }
  printf("%s\n", different ? "DIFFERENT" : "identical");
  free(expected), lw_loader_free(one), lw_loader_free(two[0]), lw_loader_free(two[1]), lw_recipe_free(recipe);
  return different > 0;
}
