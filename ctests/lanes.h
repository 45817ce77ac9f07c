/* A folder with two datasets, a tokenizer and a recipe, whose every token can be checked. */
#ifndef LANEWAY_LANES_H
#define LANEWAY_LANES_H

#include "check.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NEWS_DOCUMENTS = 300, CODE_DOCUMENTS = 70, WORDS_KNOWN = 500, UNKNOWN = WORDS_KNOWN, END_OF_TEXT, VOCABULARY };
enum { ROW = 32, GLOBAL_BATCH = 8 };

static char data_dir[64];
static pid_t data_owner;

static inline void remove_data(void) {
  if (getpid() != data_owner) return;
  char command[96];
  snprintf(command, sizeof command, "rm -rf '%s'", data_dir);
  CHECK(system(command) == 0);
}

/* A path in the folder; the next four calls leave it alone. */
static inline const char *in_data(const char *name) {
  static char paths[4][160];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", data_dir, name);
  return path;
}

static inline void write_file(const char *name, const char *content, size_t len) {
  FILE *file = fopen(in_data(name), "wb");
  CHECK(file && fwrite(content, 1, len, file) == len && fclose(file) == 0);
}

/* Document `document` of dataset 0 ("news") or 1 ("code") has that many words, and an end-of-text token; `word` i is the token id of its word i. */
static inline uint32_t words_in(uint32_t dataset, uint64_t document) { return 1 + (uint32_t)(document * 37 + dataset * 11) % 60; }
static inline int64_t word(uint32_t dataset, uint64_t document, uint32_t i) {
  if (i == words_in(dataset, document)) return END_OF_TEXT;
  return (int64_t)((document * 7919 + dataset * 104729 + (uint64_t)i * 31) % WORDS_KNOWN);
}

static inline size_t put_document(char *text, uint32_t dataset, uint64_t document) {
  size_t n = 0;
  for (uint32_t i = 0; i < words_in(dataset, document); i++) n += (size_t)sprintf(text + n, "%sw%d", i ? " " : "", (int)word(dataset, document, i));
  return n;
}

static inline void write_dataset(const char *name, uint32_t dataset, uint64_t first, uint64_t documents) {
  FILE *file = fopen(in_data(name), "w");
  CHECK(file != NULL);
  char text[1024];
  for (uint64_t d = first; d < first + documents; d++) put_document(text, dataset, d), fprintf(file, "{\"id\": %d, \"text\": \"%s\"}\n", (int)d, text);
  CHECK(fclose(file) == 0);
}

static inline void write_tokenizer(void) {
  FILE *file = fopen(in_data("tokenizer.json"), "w");
  CHECK(file != NULL);
  fprintf(file, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [{\"id\": %d, \"content\": \"<eos>\", \"single_word\": false,"
                " \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}], \"normalizer\": null, \"pre_tokenizer\": {\"type\":"
                " \"WhitespaceSplit\"}, \"post_processor\": null, \"decoder\": null, \"model\": {\"type\": \"WordLevel\", \"unk_token\": \"<unk>\", \"vocab\": {",
          END_OF_TEXT);
  for (int i = 0; i < WORDS_KNOWN; i++) fprintf(file, "\"w%d\": %d, ", i, i);
  fprintf(file, "\"<unk>\": %d, \"<eos>\": %d}}}\n", UNKNOWN, END_OF_TEXT);
  CHECK(fclose(file) == 0);
}

/* The folder, removed at the end. news.jsonl is one file; code is three in a folder. Indexes and counts stay inside. */
static inline void use_data(void) {
  snprintf(data_dir, sizeof data_dir, "/tmp/laneway-ctest-XXXXXX");
  CHECK(mkdtemp(data_dir) != NULL);
  data_owner = getpid();
  CHECK(atexit(remove_data) == 0 && setenv("LANEWAY_CACHE", in_data("cache"), 1) == 0 && mkdir(in_data("code"), 0700) == 0);
  write_dataset("news.jsonl", 0, 0, NEWS_DOCUMENTS);
  write_dataset("code/a.jsonl", 1, 0, 30), write_dataset("code/b.jsonl", 1, 30, 1), write_dataset("code/c.jsonl", 1, 31, CODE_DOCUMENTS - 31);
  write_tokenizer();
}

#define DATASETS(more_news, more_code)                                                                            \
  "[[dataset]]\nname = \"news\"\npaths = \"news.jsonl\"\nweight = 2\n" more_news "[[dataset]]\nname = \"code\"\n" \
  "paths = \"code\"\n" more_code
#define TOKENS "[tokenizer]\npath = \"tokenizer.json\"\nspecial_tokens = \"eos\"\neos_token = \"<eos>\"\n"
#define ROWS "[pack]\nmax_length = 32\n[shuffle]\nbuffer_size = 64\n[batch]\nglobal_batch = 8\n"
/* A stream without end, and one that ends after each document came once. */
#define ENDLESS_RECIPE "seed = 7\n" DATASETS("", "") TOKENS ROWS
#define FINITE_RECIPE "seed = 7\n" DATASETS("exhausted = \"redistribute\"\n", "exhausted = \"redistribute\"\n") TOKENS ROWS

static inline lw_recipe *parse(const char *text) {
  lw_recipe *recipe = NULL;
  OK(lw_recipe_parse(text, strlen(text), data_dir, &recipe));
  return recipe;
}

static inline lw_loader *open_rank(const char *text, uint32_t rank, uint32_t ranks, uint32_t threads) {
  lw_recipe *recipe = parse(text);
  lw_loader_options options;
  lw_loader_options_init(&options);
  options.rank = rank, options.ranks = ranks, options.threads = threads;
  lw_loader *loader = NULL;
  OK(lw_loader_open(recipe, &options, &loader));
  lw_recipe_free(recipe); /* the loader has its own */
  return loader;
}

static inline lw_batch *next_batch(const lw_loader *loader) {
  lw_batch *batch = NULL;
  OK(lw_loader_next(loader, seconds(30), &batch));
  return batch;
}

static inline lw_batch_info describe(const lw_batch *batch) {
  lw_batch_info info;
  OK(lw_batch_describe(batch, &info));
  return info;
}

static inline lw_tensor tensor(const lw_batch *batch, const char *name) {
  lw_tensor view;
  OK(lw_batch_tensor(batch, name, &view));
  CHECK(strcmp(view.name, name) == 0 && view.device_type == LW_DEVICE_CPU);
  return view;
}

/* The hash of the global batch that these loaders, one for each rank, give next. */
static inline uint64_t global_hash(lw_loader *const *loaders, uint32_t ranks) {
  uint64_t hashes[4 * GLOBAL_BATCH], all = 0;
  for (uint32_t r = 0; r < ranks; r++) {
    lw_batch *batch = next_batch(loaders[r]);
    size_t n = 0;
    OK(lw_batch_row_hashes(batch, hashes + all, 4 * GLOBAL_BATCH - all, &n));
    all += n;
    lw_batch_release(batch);
  }
  CHECK(all == GLOBAL_BATCH);
  return lw_batch_global_hash(hashes, all);
}

/* The threads that a loader may have when its process forks. The address sanitizer's allocator, unlike the C library's, stays locked in the child if
   one of them was just then in it, and the child would wait for ever; without the sanitizer the same tests fork with a pool. */
#ifdef __SANITIZE_ADDRESS__
enum { FORKING_THREADS = 0 };
#else
enum { FORKING_THREADS = 2 };
#endif

/* Runs `check` in a forked child, which must end well. There it ends with exec, since tools that look for leaks would find what is the parent's. */
static inline void in_child(void (*check)(void *), void *argument) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    check(argument);
    execl("/bin/true", "true", (char *)NULL);
    _exit(1);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#endif
