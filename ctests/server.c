/* server: a node loader in one process and its peers in others: the batches and states of an in-process loader, wrong options, endings. */
#include "lanes.h"

#include <signal.h>

enum { STEPS = 30, RANKS = 2, PEERS = 4 };

static lw_server *serve(const char *name, uint32_t peers) {
  lw_recipe *recipe = parse(ENDLESS_RECIPE);
  lw_loader_options pipeline;
  lw_loader_options_init(&pipeline);
  pipeline.threads = 1;
  lw_server_options options;
  lw_server_options_init(&options);
  options.name = name, options.loader = &pipeline, options.peers = peers;
  lw_server *server = NULL;
  OK(lw_server_start(recipe, &options, &server));
  lw_recipe_free(recipe);
  return server;
}

static lw_connect_options as_peer(const char *name, uint32_t rank) {
  lw_connect_options options;
  lw_connect_options_init(&options);
  options.name = name, options.rank = rank, options.ranks = RANKS;
  return options;
}

static lw_loader *connected(const char *name, uint32_t rank) {
  const lw_connect_options options = as_peer(name, rank);
  lw_loader *loader = NULL;
  OK(lw_loader_connect(NULL, &options, &loader));
  return loader;
}

static void same_batches(lw_loader *one, lw_loader *other, int steps) {
  static const char *const names[] = {"input_ids", "labels", "positions", "segment_ids", "loss_mask", "cu_seqlens"};
  for (int step = 0; step < steps; step++) {
    lw_batch *a = next_batch(one), *b = next_batch(other);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
      const lw_tensor x = tensor(a, names[i]), y = tensor(b, names[i]);
      CHECK(x.nbytes == y.nbytes && memcmp(x.data, y.data, x.nbytes) == 0);
      /* Ids and labels always lie in the slot, the others once they were asked for. */
      CHECK(i > 1 || (uintptr_t)y.data % 64 == 0);
    }
    const lw_batch_info x = describe(a), y = describe(b);
    CHECK(memcmp(&x, &y, sizeof x) == 0);
    lw_segment these[4 * ROW * GLOBAL_BATCH], those[4 * ROW * GLOBAL_BATCH];
    size_t n = 0, m = 0;
    OK(lw_batch_segments(a, these, 4 * ROW * GLOBAL_BATCH, &n));
    OK(lw_batch_segments(b, those, 4 * ROW * GLOBAL_BATCH, &m));
    CHECK(n == m && memcmp(these, those, n * sizeof *these) == 0);
    lw_batch_release(a), lw_batch_release(b);
  }
}

static void be_a_peer(void *rank) {
  lw_loader *here = open_rank(ENDLESS_RECIPE, (uint32_t)(uintptr_t)rank, RANKS, 0), *there = connected("c", (uint32_t)(uintptr_t)rank);
  same_batches(here, there, STEPS);
  lw_loader_free(here), lw_loader_free(there);
}

/* The processes are forked before the server has threads; a connection waits for it. */
static void peers_in_many_processes_read_the_same(void) {
  pid_t children[RANKS * PEERS];
  for (int i = 0; i < RANKS * PEERS; i++) {
    children[i] = fork();
    CHECK(children[i] >= 0);
    if (children[i] == 0) {
      be_a_peer((void *)(uintptr_t)(i % RANKS));
      execl("/bin/true", "true", (char *)NULL);
      _exit(1);
    }
  }
  lw_server *server = serve("c", PEERS);
  for (int i = 0; i < RANKS * PEERS; i++) {
    int status = 0;
    CHECK(waitpid(children[i], &status, 0) == children[i] && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  lw_server_free(server);
}

static void it_is_a_loader_like_any_other(void) {
  lw_server *server = serve("d", 1);
  lw_loader *here = open_rank(ENDLESS_RECIPE, 1, RANKS, 0), *there = connected("d", 1);
  same_batches(here, there, 5);
  char states[2][1 << 16];
  size_t lengths[2];
  OK(lw_loader_save(here, states[0], sizeof states[0], &lengths[0]));
  OK(lw_loader_save(there, states[1], sizeof states[1], &lengths[1]));
  CHECK(lengths[0] == lengths[1] && memcmp(states[0], states[1], lengths[0]) == 0);
  OK(lw_loader_seek(here, 20)), OK(lw_loader_seek(there, 20));
  same_batches(here, there, 3);
  const lw_state state = {states[1], lengths[1]};
  OK(lw_loader_load(here, &state, 1)), OK(lw_loader_load(there, &state, 1));
  same_batches(here, there, 3);
  uint64_t steps = 0, step = 0;
  OK(lw_loader_steps(there, &steps)), OK(lw_loader_step(there, &step));
  CHECK(steps == LW_ENDLESS && step == 8);
  char text[1 << 14], other[1 << 14];
  size_t n = 0;
  OK(lw_loader_info(here, text, sizeof text, &n)), OK(lw_loader_info(there, other, sizeof other, &n));
  CHECK(strcmp(text, other) == 0);
  OK(lw_loader_stats(there, text, sizeof text, &n));
  CHECK(strstr(text, "\"batches\":11") && strstr(text, "\"documents\":"));
  OK(lw_loader_explain(there, text, sizeof text, &n));
  CHECK(strstr(text, "rank 1 of 2") != NULL);
  OK(lw_server_stats(server, text, sizeof text, &n));
  CHECK(strstr(text, "\"name\":\"d\"") && strstr(text, "\"rank\":1"));
  const int64_t ids[] = {1, 2};
  OK(lw_loader_decode(there, ids, 2, text, sizeof text, &n));
  CHECK(lw_dataset_documents(lw_loader_dataset(there, 0)) == NEWS_DOCUMENTS && lw_loader_dataset(there, 2) == NULL);
  CHECK(lw_recipe_fingerprint(lw_loader_recipe(there)) == lw_recipe_fingerprint(lw_loader_recipe(here)));
  lw_loader_cancel(there);
  lw_batch *batch = NULL;
  FAILS(lw_loader_next(there, seconds(30), &batch), LW_INTERRUPTED, "call again");
  batch = next_batch(there);
  const lw_tensor kept = tensor(batch, "input_ids");
  lw_loader_close(there);
  FAILS(lw_loader_next(there, 0, &(lw_batch *){NULL}), LW_CLOSED, "closed");
  lw_loader_free(there), lw_server_free(server), lw_loader_free(here);
  CHECK(((const int64_t *)kept.data)[0] >= 0); /* a batch outlives its loader and its server */
  lw_batch_release(batch);
}

static void a_child_of_a_peer_is_told(void *loader) {
  lw_batch *batch = NULL;
  FAILS(lw_loader_next(loader, seconds(30), &batch), LW_FORKED, "forked");
  lw_loader_free(loader);
}

static void a_forked_child_is_told_and_harms_nobody(void) {
  pid_t child = 0;
  int ready[2];
  CHECK(pipe(ready) == 0 && (child = fork()) >= 0);
  if (child == 0) {
    lw_server *server = serve("f", 1);
    CHECK(write(ready[1], "x", 1) == 1);
    OK(lw_server_wait(server, seconds(60)));
    lw_server_free(server);
    execl("/bin/true", "true", (char *)NULL);
    _exit(1);
  }
  char x;
  CHECK(read(ready[0], &x, 1) == 1);
  lw_loader *loader = connected("f", 0);
  lw_batch_release(next_batch(loader));
  in_child(a_child_of_a_peer_is_told, loader);
  lw_batch_release(next_batch(loader));
  /* The server is told to end by its process's end: a peer then waits for another, and is told when none comes. */
  kill(child, SIGKILL);
  CHECK(waitpid(child, NULL, 0) == child);
  lw_loader_free(loader);
  close(ready[0]), close(ready[1]);
}

static void a_server_that_has_died_is_waited_for(void) {
  lw_server *server = serve("g", 1);
  lw_loader *here = open_rank(ENDLESS_RECIPE, 0, RANKS, 0), *there = NULL;
  lw_connect_options options = as_peer("g", 0);
  options.patience_ms = 200;
  OK(lw_loader_connect(NULL, &options, &there));
  same_batches(here, there, 3);
  lw_server_stop(server);
  OK(lw_server_wait(server, seconds(30)));
  lw_server_free(server);
  lw_batch *batch = NULL;
  lw_status status = LW_OK;
  int left = 0;
  while ((status = lw_loader_next(there, seconds(30), &batch)) == LW_OK) lw_batch_release(batch), lw_batch_release(next_batch(here)), left++;
  CHECK(left <= 3 && status == LW_PEER_DEAD && strstr(lw_last_error(), "nothing is lost"));
  server = serve("g", 1);
  same_batches(here, there, 5);
  lw_loader_free(there), lw_loader_free(here), lw_server_free(server);
}

static void wrong_options_are_named(void) {
  lw_recipe *recipe = parse(ENDLESS_RECIPE), *other = parse(FINITE_RECIPE);
  lw_server *server = NULL, *second = NULL;
  lw_server_options options;
  lw_server_options_init(&options), lw_server_options_init(NULL);
  const lw_server_options plain = options;
#define WRONG(change, status, words)                       \
  options = plain, options.name = "w", change;             \
  FAILS(lw_server_start(recipe, &options, &server), status, words)
  WRONG(options.struct_size = 3, LW_ABI_MISMATCH, "struct_size 48");
  WRONG(options.name = "a b", LW_INVALID_ARGUMENT, "letters");
  WRONG(options.name = "", LW_INVALID_ARGUMENT, "letters");
  WRONG(options.slots = 33, LW_INVALID_ARGUMENT, "slots 33");
  WRONG(options.peers = 65, LW_INVALID_ARGUMENT, "64 peers");
  lw_loader_options pipeline;
  lw_loader_options_init(&pipeline);
  pipeline.rank = 1;
  WRONG(options.loader = &pipeline, LW_INVALID_ARGUMENT, "each peer's");
  FAILS(lw_server_start(NULL, NULL, &server), LW_INVALID_ARGUMENT, "recipe NULL");
  FAILS(lw_server_start(recipe, NULL, NULL), LW_INVALID_ARGUMENT, "out NULL");
  options = plain, options.name = "w", options.ranks = RANKS;
  OK(lw_server_start(recipe, &options, &server));
  FAILS(lw_server_start(recipe, &options, &second), LW_IN_USE, "w runs already");
  FAILS(lw_server_wait(server, 0), LW_TIMEOUT, "goes on");
  FAILS(lw_server_wait(NULL, 0), LW_INVALID_ARGUMENT, "server NULL");
  lw_loader *loader = NULL;
  lw_connect_options peer = as_peer("w", 0);
  FAILS(lw_loader_connect(other, &peer, &loader), LW_REFUSED, "exhausted there here");
  FAILS(lw_loader_connect(NULL, &peer, NULL), LW_INVALID_ARGUMENT, "out NULL");
  peer.peers = 0;
  FAILS(lw_loader_connect(NULL, &peer, &loader), LW_INVALID_ARGUMENT, "peers 0");
  peer = as_peer("w", 2);
  FAILS(lw_loader_connect(NULL, &peer, &loader), LW_INVALID_ARGUMENT, "rank 2 of 2");
  peer = as_peer("nobody", 0), peer.patience_ms = 30;
  FAILS(lw_loader_connect(NULL, &peer, &loader), LW_NOT_FOUND, "laneway serve nobody");
  peer = as_peer("w", 0), peer.ranks = 4;
  OK(lw_loader_connect(recipe, &peer, &loader));
  FAILS(lw_loader_next(loader, seconds(30), &(lw_batch *){NULL}), LW_REFUSED, "serves 2 ranks 4");
  lw_loader_free(loader), lw_server_free(server), lw_server_free(NULL), lw_server_stop(NULL), lw_recipe_free(recipe), lw_recipe_free(other);
}

int main(void) {
  use_data();
  CHECK(mkdir(in_data("node"), 0700) == 0 && setenv("LANEWAY_DIR", in_data("node"), 1) == 0);
  peers_in_many_processes_read_the_same();
  it_is_a_loader_like_any_other();
  a_forked_child_is_told_and_harms_nobody();
  a_server_that_has_died_is_waited_for();
  wrong_options_are_named();
  return 0;
}
