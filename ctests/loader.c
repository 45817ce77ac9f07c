/* loader: the same global batches on any number of ranks, in one run and resumed; every way in which it can be moved, stopped and can fail. */
#include "lanes.h"

#include <pthread.h>

enum { STEPS = 40, MOST_RANKS = 8 };

static uint64_t expected[STEPS];

static void open_world(lw_loader **loaders, uint32_t ranks, uint32_t threads) {
  for (uint32_t r = 0; r < ranks; r++) loaders[r] = open_rank(ENDLESS_RECIPE, r, ranks, threads);
}

static void close_world(lw_loader **loaders, uint32_t ranks) {
  for (uint32_t r = 0; r < ranks; r++) lw_loader_free(loaders[r]);
}

static void run(lw_loader **loaders, uint32_t ranks, int from, int to) {
  for (int step = from; step < to; step++) CHECK(global_hash(loaders, ranks) == expected[step]);
}

static void every_number_of_ranks_sees_the_same(void) {
  lw_loader *loaders[MOST_RANKS];
  open_world(loaders, 1, 2);
  for (int step = 0; step < STEPS; step++) expected[step] = global_hash(loaders, 1);
  for (int step = 1; step < STEPS; step++) CHECK(expected[step] != expected[step - 1]);
  close_world(loaders, 1);
  for (uint32_t ranks = 2; ranks <= MOST_RANKS; ranks *= 2) {
    open_world(loaders, ranks, ranks % 3); /* 2 and 1 threads, and none */
    run(loaders, ranks, 0, STEPS);
    close_world(loaders, ranks);
  }
}

typedef struct {
  lw_state states[MOST_RANKS];
  char *memory[MOST_RANKS];
  uint32_t count;
} saved;

static saved save(lw_loader **loaders, uint32_t ranks, int json) {
  saved all = {.count = ranks};
  for (uint32_t r = 0; r < ranks; r++) {
    size_t length = 0, again = 0;
    if (json) OK(lw_loader_save_json(loaders[r], NULL, 0, &length)), length++;
    else OK(lw_loader_save(loaders[r], NULL, 0, &length));
    all.memory[r] = malloc(length);
    if (json) {
      OK(lw_loader_save_json(loaders[r], all.memory[r], length, &again));
      CHECK(again == length - 1 && all.memory[r][0] == '{' && strstr(all.memory[r], "\"lanes\":{"));
    } else {
      FAILS(lw_loader_save(loaders[r], all.memory[r], length - 1, &again), LW_INVALID_ARGUMENT, "capacity buffer");
      OK(lw_loader_save(loaders[r], all.memory[r], length, &again));
      CHECK(again == length);
    }
    all.states[r] = (lw_state){all.memory[r], again};
  }
  return all;
}

static void forget(saved *all) {
  for (uint32_t r = 0; r < all->count; r++) free(all->memory[r]);
}

static void a_run_goes_on_with_any_number_of_ranks(void) {
  lw_loader *loaders[MOST_RANKS];
  const struct { uint32_t ranks; int until, json; } parts[] = {{2, 0, 0}, {4, 7, 1}, {1, 8, 0}, {8, 19, 1}, {2, 20, 0}, {4, STEPS, 0}};
  saved before = {0};
  int at = 0;
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    open_world(loaders, parts[i].ranks, (uint32_t)i % 3);
    for (uint32_t r = 0; before.count > 0 && r < parts[i].ranks; r++) {
      OK(lw_loader_load(loaders[r], before.states, before.count));
      uint64_t step = 99;
      OK(lw_loader_step(loaders[r], &step));
      CHECK(step == (uint64_t)at);
    }
    run(loaders, parts[i].ranks, at, parts[i].until);
    at = parts[i].until;
    forget(&before);
    before = save(loaders, parts[i].ranks, parts[i].json);
    close_world(loaders, parts[i].ranks);
  }
  forget(&before);
}

static void a_state_that_does_not_fit_is_refused_by_name(void) {
  lw_loader *two[2], *one = open_rank(ENDLESS_RECIPE, 0, 1, 0), *other = open_rank("seed = 8\n" DATASETS("", "") TOKENS ROWS, 0, 1, 0);
  open_world(two, 2, 0);
  saved halves = save(two, 2, 0);
  FAILS(lw_loader_load(one, halves.states, 1), LW_NOT_FOUND, "lane 4 ranks together");
  FAILS(lw_loader_load(one, halves.states, 0), LW_INVALID_ARGUMENT, "count 0");
  FAILS(lw_loader_load(other, halves.states, 2), LW_REFUSED, "seed 8 7");
  OK(lw_loader_load(two[0], halves.states, 1)); /* what it owns is enough */
  (void)global_hash(&one, 1);
  saved later = save(&one, 1, 0);
  const lw_state mixed[] = {halves.states[0], later.states[0]}, cut = {halves.memory[0], halves.states[0].len / 2}, none = {NULL, 5}, noise = {"{}", 2};
  FAILS(lw_loader_load(one, mixed, 2), LW_REFUSED, "states[1] step 0 step 1");
  FAILS(lw_loader_load(one, &cut, 1), LW_CORRUPT, "states[0] damaged");
  FAILS(lw_loader_load(one, &noise, 1), LW_CORRUPT, "states[0]");
  FAILS(lw_loader_load(one, &none, 1), LW_INVALID_ARGUMENT, "states[0] data NULL");
  CHECK(global_hash(&one, 1) == expected[1]); /* it stays where it was */
  forget(&halves), forget(&later), close_world(two, 2), lw_loader_free(one), lw_loader_free(other);
}

static void seeking_is_as_good_as_running(void) {
  lw_loader *loader = open_rank(ENDLESS_RECIPE, 0, 1, 1);
  const int places[] = {30, 3, 0, 17};
  for (int i = 0; i < 4; i++) {
    OK(lw_loader_seek(loader, (uint64_t)places[i]));
    run(&loader, 1, places[i], places[i] + 2);
  }
  lw_loader_free(loader);
}

static void weights_can_change(void) {
  lw_loader *loader = open_rank(ENDLESS_RECIPE, 0, 1, 1);
  const double code_only[] = {0, 1}, bad[] = {-1, 1};
  (void)global_hash(&loader, 1);
  FAILS(lw_loader_set_mixture(loader, code_only, 2, 0), LW_INVALID_ARGUMENT, "from_step 0 first 1");
  FAILS(lw_loader_set_mixture(loader, code_only, 1, 8), LW_INVALID_ARGUMENT, "1 weights 2 datasets");
  FAILS(lw_loader_set_mixture(loader, bad, 2, 8), LW_INVALID_ARGUMENT, "'news' -1");
  OK(lw_loader_set_mixture(loader, code_only, 2, 8));
  CHECK(global_hash(&loader, 1) == expected[1]);
  OK(lw_loader_seek(loader, 100));
  lw_batch *batch = next_batch(loader);
  lw_segment segments[256];
  size_t count;
  OK(lw_batch_segments(batch, segments, 256, &count));
  CHECK(count > 0);
  for (size_t i = 0; i < count; i++) CHECK(segments[i].dataset == 1);
  lw_batch_release(batch), lw_loader_free(loader);
}

static void a_stream_that_ends_has_every_document_once(void) {
  lw_loader *loader = open_rank(FINITE_RECIPE, 0, 1, 2), *endless = open_rank(ENDLESS_RECIPE, 0, 1, 0);
  uint64_t steps = 0, seen = 0, tokens = 0;
  OK(lw_loader_steps(endless, &steps));
  CHECK(steps == LW_ENDLESS);
  OK(lw_loader_steps(loader, &steps));
  uint32_t words[2][NEWS_DOCUMENTS] = {{0}};
  for (lw_batch *batch; (batch = next_batch(loader)); seen++) {
    lw_segment segments[512];
    size_t count;
    OK(lw_batch_segments(batch, segments, 512, &count));
    for (size_t i = 0; i < count; i++) words[segments[i].dataset][segments[i].document] += segments[i].length;
    tokens += describe(batch).num_tokens;
    lw_batch_release(batch);
  }
  CHECK(seen == steps && next_batch(loader) == NULL);
  for (uint64_t d = 0; d < NEWS_DOCUMENTS; d++) CHECK(words[0][d] == words_in(0, d) + 1), tokens -= words[0][d];
  for (uint64_t d = 0; d < CODE_DOCUMENTS; d++) CHECK(words[1][d] == words_in(1, d) + 1), tokens -= words[1][d];
  CHECK(tokens == 0);
  FAILS(lw_loader_seek(loader, steps + 1), LW_INVALID_ARGUMENT, "end");
  lw_loader_free(loader), lw_loader_free(endless);
}

static void it_says_what_it_is_and_does(void) {
  lw_loader *loader = open_rank(ENDLESS_RECIPE, 1, 2, 1);
  lw_batch *batch = next_batch(loader);
  char text[4096], words[1024];
  size_t length = 0;
  OK(lw_loader_info(loader, text, sizeof text, &length));
  CHECK(strlen(text) == length);
  const char *facts[] = {"\"lanes\":8", "\"first_lane\":4", "\"end_lane\":8", "\"rows\":4", "\"row_length\":32", "\"documents\":300", "\"eos\":501", "\"step\":1"};
  for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) CHECK(strstr(text, facts[i]) != NULL);
  OK(lw_loader_stats(loader, text, sizeof text, &length));
  CHECK(strstr(text, "\"batches\":1") && strstr(text, "\"filtered\":0") && strstr(text, "\"tokenizer\":\"") && !strstr(text, "\"bytes_read\":0,"));
  OK(lw_loader_explain(loader, text, sizeof text, &length));
  CHECK(strstr(text, "news: 300 documents") && strstr(text, "rank 1 of 2 owns lanes 4 to 7"));
  CHECK(lw_recipe_fingerprint(lw_loader_recipe(loader)) != 0 && lw_dataset_documents(lw_loader_dataset(loader, 1)) == CODE_DOCUMENTS);
  CHECK(lw_loader_dataset(loader, 2) == NULL && lw_loader_dataset(NULL, 0) == NULL && lw_loader_recipe(NULL) == NULL);
  /* The text of a document's tokens is the document. */
  int64_t ids[64];
  uint32_t count = words_in(0, 7);
  for (uint32_t i = 0; i < count; i++) ids[i] = word(0, 7, i);
  OK(lw_loader_decode(loader, ids, count, text, sizeof text, &length));
  put_document(words, 0, 7);
  CHECK(strcmp(text, words) == 0);
  ids[0] = -5;
  FAILS(lw_loader_decode(loader, ids, 1, text, sizeof text, &length), LW_INVALID_ARGUMENT, "ids[0] -5");
  lw_batch_release(batch), lw_loader_free(loader);
}

/* ---- user functions ---- */

static int dropped;
static void count_drop(void *user) { dropped += *(int *)user; }

/* Doubles a text: "w1 w2" becomes "w1 w2 w1 w2". */
static int32_t doubled(void *user, const char *text, size_t len, lw_text *out) {
  (void)user;
  OK(lw_text_append(out, text, len));
  OK(lw_text_append(out, " ", 1));
  OK(lw_text_append(out, text, len));
  FAILS(lw_text_append(out, "\xff", 1), LW_INVALID_ARGUMENT, "text UTF-8");
  return 0;
}

static int32_t of_even_number(void *user, const char *text, size_t len) {
  (void)user;
  const char *number = memchr(text, 'w', len);
  return number && (number[1] - '0') % 2 == 0;
}

static int32_t refuse_w7(void *user, const char *text, size_t len) {
  (void)user;
  if (len < 3 || memcmp(text, "w77", 3) != 0) return 1;
  lw_set_last_error("it begins with w77", 18);
  return -1;
}

static int32_t refuse_silently(void *user, const char *text, size_t len, lw_text *out) { return (void)user, (void)text, (void)len, (void)out, 5; }

static lw_function_table table(const char *name, int *user) {
  lw_function_table made;
  lw_function_table_init(&made);
  made.name = name, made.user = user, made.drop = count_drop;
  return made;
}

#define WITH_FUNCTIONS(names) "functions = [" names "]\n" ENDLESS_RECIPE

static lw_status open_with(const char *text, const lw_function_table *const *tables, size_t count, uint32_t threads, lw_loader **out) {
  lw_recipe *recipe = parse(text);
  lw_loader_options options;
  lw_loader_options_init(&options);
  options.functions = tables, options.function_count = count, options.threads = threads;
  lw_status status = lw_loader_open(recipe, &options, out);
  lw_recipe_free(recipe);
  return status;
}

static void functions_run_in_the_recipes_order(void) {
  int one = 1, ten = 10;
  lw_function_table twice = table("twice 1", &one), even = table("even 1", &ten);
  twice.map = doubled, even.filter = of_even_number;
  const lw_function_table *tables[] = {&even, &twice};
  lw_loader *loader = NULL;
  dropped = 0;
  OK(open_with(WITH_FUNCTIONS("\"twice 1\", \"even 1\""), tables, 2, 2, &loader));
  memset(&twice, 0xEE, sizeof twice), memset(&even, 0xEE, sizeof even); /* they were copied */
  for (int step = 0; step < 30; step++) {
    lw_batch *batch = next_batch(loader);
    lw_segment segments[512];
    size_t count;
    OK(lw_batch_segments(batch, segments, 512, &count));
    const int64_t *ids = tensor(batch, "input_ids").data;
    for (size_t i = 0; i < count; i++) {
      const lw_segment *s = &segments[i];
      const uint32_t words = words_in(s->dataset, s->document);
      char first[24];
      sprintf(first, "%d", (int)word(s->dataset, s->document, 0));
      CHECK((first[0] - '0') % 2 == 0);
      for (uint32_t t = 0; t < s->length; t++) {
        const uint32_t at = s->start + t;
        CHECK(ids[s->row * ROW + s->offset + t] == (at == 2 * words ? END_OF_TEXT : word(s->dataset, s->document, at % words)));
      }
    }
    lw_batch_release(batch);
  }
  char stats[1024];
  size_t length;
  OK(lw_loader_stats(loader, stats, sizeof stats, &length));
  CHECK(!strstr(stats, "\"filtered\":0"));
  CHECK(dropped == 0);
  lw_loader_free(loader);
  CHECK(dropped == 11);
}

static void functions_that_do_not_fit_are_named(void) {
  int one = 1;
  lw_function_table twice = table("twice 1", &one), even = table("even 1", &one), both = table("both 1", &one), neither = table("neither 1", &one);
  lw_function_table nameless = table(NULL, &one);
  twice.map = doubled, even.filter = of_even_number, both.map = doubled, both.filter = of_even_number;
  const lw_function_table *tables[] = {&twice, &even}, *same[] = {&twice, &twice}, *null[] = {NULL};
  const lw_function_table *const a_both[] = {&both}, *const a_neither[] = {&neither}, *const a_nameless[] = {&nameless};
  lw_loader *loader = NULL;
  dropped = 0;
#define REFUSED(names, given, count, words) FAILS(open_with(WITH_FUNCTIONS(names), given, count, 0, &loader), LW_INVALID_ARGUMENT, words)
  REFUSED("\"twice 1\", \"other 3\"", tables, 1, "names 'other 3' not given");
  REFUSED("\"twice 1\"", tables, 2, "'even 1' given recipe twice");
  REFUSED("\"twice 1\"", same, 2, "functions[1] 'twice 1' given twice");
  REFUSED("\"twice 1\"", null, 1, "functions[0] lw_function_table NULL");
  REFUSED("\"both 1\"", a_both, 1, "'both 1' map filter");
  REFUSED("\"neither 1\"", a_neither, 1, "'neither 1' neither");
  REFUSED("\"x\"", a_nameless, 1, "functions[0] name NULL");
  CHECK(dropped == 0 && loader == NULL);
}

static void a_function_that_fails_fails_the_row_that_needs_it(uint32_t threads) {
  int one = 1;
  lw_function_table refuse = table("no w77", &one), silent = table("silent", &one);
  refuse.filter = refuse_w7, silent.map = refuse_silently;
  const lw_function_table *refuses[] = {&refuse}, *silents[] = {&silent};
  lw_loader *loader = NULL;
  dropped = 0;
  OK(open_with(WITH_FUNCTIONS("\"no w77\""), refuses, 1, threads, &loader));
  lw_status status = LW_OK;
  for (int step = 0; step < 1000 && status == LW_OK; step++) {
    lw_batch *batch = NULL;
    status = lw_loader_next(loader, seconds(30), &batch);
    lw_batch_release(batch);
  }
  CHECK(status == LW_DATA && check_says("function 'no w77' begins with w77"));
  CHECK(check_says(data_dir) && check_says("line"));
  FAILS(lw_loader_next(loader, seconds(30), &(lw_batch *){NULL}), LW_DATA, "'no w77'"); /* it stays */
  OK(lw_loader_seek(loader, 0));
  lw_batch_release(next_batch(loader));
  lw_loader_free(loader);
  OK(open_with(WITH_FUNCTIONS("\"silent\""), silents, 1, threads, &loader));
  FAILS(lw_loader_next(loader, seconds(30), &(lw_batch *){NULL}), LW_DATA, "'silent' returned 5 reason");
  lw_loader_free(loader);
  CHECK(dropped == 2);
}

static lw_loader *_Atomic closing;
static int32_t close_it(void *user, const char *text, size_t len) {
  (void)user, (void)text, (void)len;
  uint64_t step;
  lw_loader *loader = closing;
  CHECK(loader != NULL);
  FAILS(lw_loader_step(loader, &step), LW_UNSUPPORTED, "functions cannot use");
  lw_loader_close(loader);
  FAILS(lw_loader_step(loader, &step), LW_CLOSED, "closed");
  return 1;
}

static void a_function_may_close_its_loader(uint32_t threads) {
  int one = 1;
  lw_function_table closes = table("closes", &one);
  closes.filter = close_it;
  const lw_function_table *tables[] = {&closes};
  dropped = 0;
  lw_loader *loader = NULL;
  OK(open_with(WITH_FUNCTIONS("\"closes\""), tables, 1, threads, &loader));
  closing = loader;
  FAILS(lw_loader_next(loader, seconds(30), &(lw_batch *){NULL}), LW_CLOSED, "closed");
  FAILS(lw_loader_next(loader, seconds(30), &(lw_batch *){NULL}), LW_CLOSED, "closed");
  lw_loader_free(loader);
  CHECK(dropped == 0); /* nothing is called after that */
}

static _Atomic int entered, may_leave;
static int32_t wait_for_leave(void *user, const char *text, size_t len) {
  (void)user, (void)text, (void)len;
  entered++;
  while (!may_leave) usleep(1000);
  return 1;
}

static lw_loader *open_waiting(uint32_t threads) {
  static int one = 1;
  lw_function_table waits = table("waits", &one);
  waits.filter = wait_for_leave;
  const lw_function_table *tables[] = {&waits};
  lw_loader *loader = NULL;
  entered = may_leave = dropped = 0;
  OK(open_with(WITH_FUNCTIONS("\"waits\""), tables, 1, threads, &loader));
  FAILS(lw_loader_next(loader, seconds(0), &(lw_batch *){NULL}), LW_TIMEOUT, "");
  while (!entered) usleep(1000);
  return loader;
}

static void an_abandoned_loader_waits_for_no_function(void) {
  lw_loader *loader = open_waiting(2);
  lw_loader_abandon(loader), lw_loader_abandon(loader), lw_loader_abandon(NULL);
  FAILS(lw_loader_next(loader, LW_NEVER, &(lw_batch *){NULL}), LW_CLOSED, "closed");
  FAILS(lw_loader_join(loader, seconds(0)), LW_TIMEOUT, "still run");
  int so_far = entered;
  may_leave = 1;
  OK(lw_loader_join(loader, seconds(30)));
  lw_loader_close(loader);
  CHECK(entered == so_far && dropped == 0);
  lw_loader_free(loader);
  loader = open_waiting(2);
  lw_loader_abandon(loader);
  lw_loader_free(loader); /* while one runs */
  may_leave = 1;
}

/* In a process of its own, since it is for ever. */
static void end_callbacks(void *unused) {
  (void)unused;
  lw_loader *loader = open_waiting(2);
  FAILS(lw_callbacks_end(seconds(0)), LW_TIMEOUT, "functions still run");
  may_leave = 1;
  OK(lw_callbacks_end(seconds(30)));
  FAILS(lw_loader_next(loader, seconds(30), &(lw_batch *){NULL}), LW_CLOSED, "'waits' lw_callbacks_end");
  lw_loader_free(loader);
  CHECK(dropped == 0);
}

static void an_ending_host_has_nothing_called_any_more(void) {
  lw_loader *loader = open_waiting(2);
  in_child(end_callbacks, NULL); /* which does not wait for the parent's threads */
  may_leave = 1;
  lw_batch_release(next_batch(loader));
  lw_loader_free(loader);
}

/* ---- waiting ---- */

static int32_t slow(void *user, const char *text, size_t len) {
  (void)user, (void)text, (void)len;
  usleep(20000);
  return 1;
}

static lw_loader *open_slow(void) {
  static int zero;
  lw_function_table table_ = table("slow", &zero);
  table_.filter = slow;
  const lw_function_table *tables[] = {&table_};
  lw_loader *loader = NULL;
  OK(open_with(WITH_FUNCTIONS("\"slow\""), tables, 1, 1, &loader));
  return loader;
}

static void *cancel_soon(void *loader) { return usleep(100000), lw_loader_cancel(loader), NULL; }
static void *close_soon(void *loader) { return usleep(100000), lw_loader_close(loader), NULL; }
static void *save_many(void *loader) {
  char state[8192];
  size_t length;
  for (int i = 0; i < 5; i++) OK(lw_loader_save(loader, state, sizeof state, &length));
  return NULL;
}

static void waiting_ends_as_said(void) {
  lw_loader *loader = open_slow();
  lw_batch *batch = (lw_batch *)loader;
  FAILS(lw_loader_next(loader, 0, &batch), LW_TIMEOUT, "lane 0 call again");
  FAILS(lw_loader_next(loader, seconds(0.1), &batch), LW_TIMEOUT, "");
  lw_loader_cancel(loader), lw_loader_cancel(NULL);
  FAILS(lw_loader_next(loader, LW_NEVER, &batch), LW_INTERRUPTED, "call again");
  pthread_t thread, saving;
  CHECK(pthread_create(&thread, NULL, cancel_soon, loader) == 0 && pthread_create(&saving, NULL, save_many, loader) == 0);
  FAILS(lw_loader_next(loader, LW_NEVER, &batch), LW_INTERRUPTED, "");
  CHECK(pthread_join(thread, NULL) == 0 && pthread_join(saving, NULL) == 0);
  CHECK(pthread_create(&thread, NULL, close_soon, loader) == 0);
  FAILS(lw_loader_next(loader, LW_NEVER, &batch), LW_CLOSED, "closed");
  CHECK(pthread_join(thread, NULL) == 0 && batch == (lw_batch *)loader);
  lw_loader_close(loader), lw_loader_close(NULL);
  FAILS(lw_loader_seek(loader, 0), LW_CLOSED, "closed");
  FAILS(lw_loader_stats(loader, NULL, 0, &(size_t){0}), LW_CLOSED, "closed");
  lw_loader_free(loader);
}

static void *take(void *argument) {
  lw_loader *loader = argument;
  for (int i = 0; i < 10; i++) lw_batch_release(next_batch(loader));
  return NULL;
}

static void threads_share_a_loader(void) {
  lw_loader *loader = open_rank(ENDLESS_RECIPE, 0, 1, 2);
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, take, loader) == 0);
  for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  run(&loader, 1, 30, 32); /* each batch was given to one of them */
  lw_loader_free(loader);
}

static void child(void *loader) {
  lw_batch *batch;
  FAILS(lw_loader_next(loader, LW_NEVER, &batch), LW_FORKED, "forked new");
  FAILS(lw_loader_save(loader, NULL, 0, &(size_t){0}), LW_FORKED, "forked");
  lw_loader_cancel(loader), lw_loader_close(loader), lw_loader_free(loader);
  lw_loader *own = open_rank(ENDLESS_RECIPE, 0, 1, 2);
  run(&own, 1, 0, 2);
  lw_loader_free(own);
}

static void a_forked_child_is_told_and_can_have_its_own(void) {
  lw_loader *loader = open_rank(ENDLESS_RECIPE, 0, 1, FORKING_THREADS);
  run(&loader, 1, 0, 2);
  in_child(child, loader);
  run(&loader, 1, 2, 4);
  lw_loader_free(loader);
}

/* ---- data that is not there, or wrong ---- */

static int32_t stop_counting(void *told, const char *what, uint64_t done, uint64_t total) {
  CHECK(done <= total);
  return strcmp(what, "count tokens") == 0 ? (++*(int *)told, 1) : 0;
}

static void counting_is_told_and_can_be_stopped(void) {
  CHECK(mkdir(in_data("uncounted"), 0700) == 0);
  lw_recipe *recipe = parse(FINITE_RECIPE);
  int told = 0;
  lw_loader_options options;
  lw_loader_options_init(&options);
  options.cache_dir = in_data("uncounted"), options.progress = stop_counting, options.progress_user = &told;
  lw_loader *loader = NULL;
  uint64_t steps = 0;
  OK(lw_loader_open(recipe, &options, &loader));
  FAILS(lw_loader_steps(loader, &steps), LW_INTERRUPTED, "");
  CHECK(told >= 1 && steps == 0);
  lw_loader_free(loader), lw_recipe_free(recipe);
}

static void a_file_that_vanishes_is_named(void) {
  write_dataset("gone.jsonl", 0, 0, NEWS_DOCUMENTS);
  lw_recipe *recipe = parse("[[dataset]]\nname = \"gone\"\npaths = \"gone.jsonl\"\n" TOKENS ROWS);
  lw_loader *loader = NULL, *second = NULL;
  OK(lw_loader_open(recipe, NULL, &loader));
  lw_batch_release(next_batch(loader));
  CHECK(unlink(in_data("gone.jsonl")) == 0);
  FAILS(lw_loader_open(recipe, NULL, &second), LW_NOT_FOUND, "'gone' gone.jsonl");
  lw_status status = LW_OK;
  for (int step = 0; step < 200 && status == LW_OK; step++) {
    lw_batch *batch = NULL;
    status = lw_loader_next(loader, seconds(30), &batch);
    lw_batch_release(batch);
  }
  /* Held open, a file outlives its name. */
  if (status != LW_OK) CHECK(status == LW_IO && check_says("gone.jsonl"));
  lw_loader_free(loader), lw_recipe_free(recipe);
}

static void a_bad_line_is_named(void) {
  const char *bad = "{\"text\": \"w1\"}\n{\"text\": 3}\n";
  write_file("bad.jsonl", bad, strlen(bad));
  lw_recipe *recipe = parse("[[dataset]]\nname = \"bad\"\npaths = \"bad.jsonl\"\n" TOKENS ROWS);
  lw_loader *loader = NULL;
  OK(lw_loader_open(recipe, NULL, &loader));
  FAILS(lw_loader_next(loader, seconds(30), &(lw_batch *){NULL}), LW_DATA, "'bad' bad.jsonl line 2 string");
  lw_loader_free(loader), lw_recipe_free(recipe);
}

static void wrong_options_are_named(void) {
  lw_recipe *recipe = parse(ENDLESS_RECIPE), *nowhere = parse("seed = 7\n" DATASETS("", "") "[tokenizer]\npath = \"none.json\"\n" ROWS);
  lw_loader_options good, options;
  lw_loader *loader = NULL;
  lw_loader_options_init(&good), lw_loader_options_init(NULL), lw_function_table_init(NULL);
#define WITH(change, status, words) options = good, change, FAILS(lw_loader_open(recipe, &options, &loader), status, words)
  WITH(options.struct_size = 7, LW_ABI_MISMATCH, "lw_loader_options.struct_size 7");
  WITH(options.ranks = 0, LW_INVALID_ARGUMENT, "rank 0 of 0");
  WITH(options.rank = 1, LW_INVALID_ARGUMENT, "rank 1 of 1");
  WITH(options.ranks = 3, LW_INVALID_ARGUMENT, "3 ranks 8 lanes 1, 2, 4, 8 uneven");
  WITH(options.microbatch_size = 3, LW_INVALID_ARGUMENT, "microbatch_size 3 1, 2, 4, 8");
  WITH(options.uneven = 2, LW_INVALID_ARGUMENT, "uneven 2");
  WITH(options.function_count = 1, LW_INVALID_ARGUMENT, "functions NULL");
  WITH(options.cache_dir = "\xff", LW_INVALID_ARGUMENT, "cache_dir UTF-8");
  FAILS(lw_loader_open(nowhere, NULL, &loader), LW_NOT_FOUND, "none.json");
  FAILS(lw_loader_open(NULL, NULL, &loader), LW_INVALID_ARGUMENT, "recipe NULL");
  FAILS(lw_loader_open(recipe, NULL, NULL), LW_INVALID_ARGUMENT, "out NULL");
  FAILS(lw_loader_next(NULL, 0, &(lw_batch *){NULL}), LW_INVALID_ARGUMENT, "loader NULL");
  CHECK(loader == NULL);
  OK(lw_loader_open(recipe, NULL, &loader));
  FAILS(lw_loader_next(loader, 0, NULL), LW_INVALID_ARGUMENT, "out NULL");
  FAILS(lw_loader_load(loader, NULL, 1), LW_INVALID_ARGUMENT, "states NULL");
  lw_loader_free(loader), lw_loader_free(NULL), lw_recipe_free(recipe), lw_recipe_free(nowhere);
}

int main(void) {
  use_data();
  every_number_of_ranks_sees_the_same();
  a_run_goes_on_with_any_number_of_ranks();
  a_state_that_does_not_fit_is_refused_by_name();
  seeking_is_as_good_as_running();
  weights_can_change();
  a_stream_that_ends_has_every_document_once();
  it_says_what_it_is_and_does();
  functions_run_in_the_recipes_order();
  functions_that_do_not_fit_are_named();
  a_function_that_fails_fails_the_row_that_needs_it(2);
  a_function_that_fails_fails_the_row_that_needs_it(0);
  a_function_may_close_its_loader(3);
  a_function_may_close_its_loader(1);
  a_function_may_close_its_loader(0);
  an_abandoned_loader_waits_for_no_function();
  an_ending_host_has_nothing_called_any_more();
  waiting_ends_as_said();
  threads_share_a_loader();
  a_forked_child_is_told_and_can_have_its_own();
  counting_is_told_and_can_be_stopped();
  a_file_that_vanishes_is_named();
  a_bad_line_is_named();
  wrong_options_are_named();
  return 0;
}
