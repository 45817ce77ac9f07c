/* From the start of a process to its first batch, in C: what `make bench` takes the time of. */
#include <laneway.h>
#include <stdio.h>
#include <stdlib.h>

static void check(lw_status status) {
  if (status == LW_OK) return;
  fprintf(stderr, "%s: %s\n", lw_status_name(status), lw_last_error());
  exit(1);
}

int main(int argc, char **argv) {
  if (argc != 2) return fprintf(stderr, "usage: %s recipe.toml\n", argv[0]), 2;
  lw_recipe *recipe;
  lw_loader *loader;
  lw_batch *batch;
  lw_tensor ids;
  lw_loader_options options;
  lw_loader_options_init(&options);
  check(lw_recipe_load(argv[1], &recipe));
  check(lw_loader_open(recipe, &options, &loader));
  check(lw_loader_next(loader, LW_NEVER, &batch));
  check(lw_batch_tensor(batch, "input_ids", &ids));
  lw_batch_release(batch);
  lw_loader_free(loader);
  lw_recipe_free(recipe);
  return 0;
}
