/* dataset: every document by its number, from files of every kind; what cannot be read, found or kept is said. */
#include "lanes.h"

#include <pthread.h>
#include <sys/mount.h>

static lw_dataset *open_paths(const char *const *paths, size_t count, const char *on_error) {
  lw_dataset_options options;
  lw_dataset_options_init(&options);
  CHECK(options.struct_size == sizeof options);
  options.name = "set", options.paths = paths, options.path_count = count, options.on_error = on_error;
  lw_dataset *dataset = NULL;
  OK(lw_dataset_open(&options, &dataset));
  return dataset;
}

static void check_document(const lw_dataset *dataset, uint64_t number, uint32_t kind, uint64_t document) {
  char text[1024], expected[1024];
  const char *skipped = "?";
  size_t length = 0, expected_length = put_document(expected, kind, document);
  OK(lw_dataset_read(dataset, number, text, sizeof text, &length, &skipped));
  CHECK(length == expected_length && strcmp(text, expected) == 0 && skipped == NULL);
}

static void documents_shards_and_groups_agree(void) {
  const char *paths[] = {in_data("code"), in_data("news.jsonl")};
  lw_dataset *dataset = open_paths(paths, 2, NULL);
  CHECK(lw_dataset_documents(dataset) == CODE_DOCUMENTS + NEWS_DOCUMENTS && lw_dataset_shard_count(dataset) == 4);
  const char *names[] = {"a.jsonl", "b.jsonl", "c.jsonl", "news.jsonl"};
  uint64_t next = 0;
  for (size_t i = 0; i < 4; i++) {
    lw_shard shard;
    OK(lw_dataset_shard(dataset, i, &shard));
    CHECK(strcmp(shard.name, names[i]) == 0 && strstr(shard.path, data_dir) == shard.path && strcmp(shard.format, "jsonl") == 0);
    CHECK(shard.damage == NULL && shard.first_document == next && shard.size > 0);
    next += shard.documents;
  }
  FAILS(lw_dataset_shard(dataset, 4, &(lw_shard){0}), LW_INVALID_ARGUMENT, "shard 4 has 4");
  size_t count = 0, again = 0;
  OK(lw_dataset_groups(dataset, NULL, 0, &count));
  lw_group *groups = calloc(count, sizeof *groups);
  if (count > 1) FAILS(lw_dataset_groups(dataset, groups, count - 1, &again), LW_INVALID_ARGUMENT, "capacity groups");
  OK(lw_dataset_groups(dataset, groups, count, &again));
  next = 0;
  for (size_t i = 0; i < count; i++) CHECK(groups[i].first_document == next && groups[i].documents > 0 && groups[i].shard < 4), next += groups[i].documents;
  CHECK(next == CODE_DOCUMENTS + NEWS_DOCUMENTS && again == count);
  free(groups);
  for (uint64_t d = 0; d < next; d++) check_document(dataset, d, d < CODE_DOCUMENTS, d < CODE_DOCUMENTS ? d : d - CODE_DOCUMENTS);
  lw_location where;
  OK(lw_dataset_locate(dataset, CODE_DOCUMENTS + 41, &where));
  CHECK(where.shard == 3 && where.number == 42 && where.is_row == 0);
  FAILS(lw_dataset_locate(dataset, next, &where), LW_INVALID_ARGUMENT, "'set' 370 documents");
  FAILS(lw_dataset_read(dataset, next, NULL, 0, &count, NULL), LW_INVALID_ARGUMENT, "'set' 370 documents");
  CHECK(lw_dataset_bytes_read(dataset) > 0 && lw_dataset_fingerprint(dataset) != 0);
  lw_dataset_free(dataset);
}

static void a_glob_finds_what_it_names(void) {
  const char *paths[] = {in_data("code/[ac].jsonl")};
  lw_dataset *dataset = open_paths(paths, 1, NULL);
  CHECK(lw_dataset_documents(dataset) == CODE_DOCUMENTS - 1);
  check_document(dataset, 30, 1, 31);
  lw_dataset_free(dataset);
}

static void unreadable_documents_fare_as_asked(void) {
  const char *bad = "{\"text\": \"one\"}\nnot json\n{\"text\": \"a\\u0000b\"}\n{\"other\": 1}\n{\"text\": null}\n{\"text\": \"\xff\"}\n{\"text\": 5}\n";
  write_file("bad.jsonl", bad, strlen(bad));
  const char *paths[] = {in_data("bad.jsonl")}, *why[] = {NULL, "bad_json", NULL, "missing_field", "null_text", "bad_utf8", "not_text"};
  lw_dataset *strict = open_paths(paths, 1, NULL), *lenient = open_paths(paths, 1, "skip");
  char text[16];
  const char *skipped;
  size_t length;
  for (uint64_t d = 0; d < 7; d++) {
    OK(lw_dataset_read(lenient, d, text, sizeof text, &length, &skipped));
    CHECK(skipped == why[d] || strcmp(skipped, why[d]) == 0);
    CHECK(!skipped || length == 0);
  }
  OK(lw_dataset_read(strict, 2, text, sizeof text, &length, NULL));
  CHECK(length == 3 && memcmp(text, "a\0b", 4) == 0);
  FAILS(lw_dataset_read(strict, 1, text, sizeof text, &length, NULL), LW_DATA, "bad.jsonl line 2 JSON on_error skip");
  FAILS(lw_dataset_read(strict, 5, text, sizeof text, &length, NULL), LW_DATA, "bad.jsonl line 6 UTF-8");
  lw_dataset_free(strict), lw_dataset_free(lenient);
}

static void *read_all(void *dataset) {
  for (uint64_t d = 0; d < NEWS_DOCUMENTS; d++) check_document(dataset, d * 7 % NEWS_DOCUMENTS, 0, d * 7 % NEWS_DOCUMENTS);
  return NULL;
}

static void many_threads_read_at_once(void) {
  const char *paths[] = {in_data("news.jsonl")};
  lw_dataset *dataset = open_paths(paths, 1, NULL);
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, read_all, dataset) == 0);
  for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  lw_dataset_free(dataset);
}

static void child(void *dataset) {
  size_t length;
  FAILS(lw_dataset_read(dataset, 0, NULL, 0, &length, NULL), LW_FORKED, "forked");
  FAILS(lw_dataset_locate(dataset, 0, &(lw_location){0}), LW_FORKED, "forked");
  CHECK(lw_dataset_documents(dataset) == NEWS_DOCUMENTS);
  lw_dataset_free(dataset);
}

static void a_forked_child_is_told(void) {
  const char *paths[] = {in_data("news.jsonl")};
  lw_dataset *dataset = open_paths(paths, 1, NULL);
  in_child(child, dataset);
  check_document(dataset, 5, 0, 5);
  lw_dataset_free(dataset);
}

static void a_file_that_vanishes_is_an_error_that_names_it(void) {
  write_dataset("gone.jsonl", 0, 0, 20);
  const char *paths[] = {in_data("gone.jsonl")};
  lw_dataset *dataset = open_paths(paths, 1, NULL);
  CHECK(unlink(paths[0]) == 0);
  size_t length;
  lw_status status = lw_dataset_read(dataset, 3, NULL, 0, &length, NULL);
  /* Held open, a file outlives its name. */
  if (status != LW_OK) CHECK(status == LW_IO && check_says("gone.jsonl"));
  lw_dataset_free(dataset);
  lw_dataset_options options;
  lw_dataset_options_init(&options);
  options.paths = paths, options.path_count = 1;
  FAILS(lw_dataset_open(&options, &dataset), LW_NOT_FOUND, "'dataset' gone.jsonl");
}

/* As large as is worth an index. */
static void write_large(const char *name) {
  FILE *file = fopen(in_data(name), "w");
  CHECK(file != NULL);
  for (int i = 0; i < 9000; i++) CHECK(fprintf(file, "{\"text\": \"%d, and what else there is to say to fill a line up to some hundred characters or so\"}\n", i) > 0);
  CHECK(fclose(file) == 0);
}

static int32_t stop_at_once(void *told, const char *what, uint64_t done, uint64_t total) {
  CHECK(strstr(what, "index") && done <= total);
  return ++*(int *)told, 1;
}

static void progress_is_told_and_can_stop_it(void) {
  write_large("large.jsonl");
  const char *paths[] = {in_data("large.jsonl")};
  lw_dataset_options options;
  lw_dataset_options_init(&options);
  int told = 0;
  options.paths = paths, options.path_count = 1, options.progress = stop_at_once, options.progress_user = &told, options.threads = 1;
  lw_dataset *dataset = NULL;
  FAILS(lw_dataset_open(&options, &dataset), LW_INTERRUPTED, "");
  CHECK(told >= 1 && dataset == NULL);
  options.progress = NULL;
  OK(lw_dataset_open(&options, &dataset));
  CHECK(lw_dataset_documents(dataset) == 9000);
  lw_dataset_free(dataset);
}

static void a_full_disk_costs_the_index_only(void) {
  CHECK(mkdir(in_data("full"), 0700) == 0);
  if (mount("laneway", in_data("full"), "tmpfs", 0, "size=4k") != 0) {
    fprintf(stderr, "SKIPPED: a full disk needs root, to mount a tmpfs of one page\n");
    return;
  }
  write_file("full/fill", "", 0);
  FILE *file = fopen(in_data("full/fill"), "wb");
  char page[4096] = {1};
  CHECK(file && fwrite(page, 1, sizeof page, file) == sizeof page && fclose(file) == 0);
  write_large("other.jsonl");
  const char *paths[] = {in_data("other.jsonl")};
  lw_dataset_options options;
  lw_dataset_options_init(&options);
  options.paths = paths, options.path_count = 1, options.cache_dir = in_data("full");
  lw_dataset *dataset = NULL;
  lw_status status = lw_dataset_open(&options, &dataset);
  char text[256];
  size_t length = 0;
  if (status == LW_OK) OK(lw_dataset_read(dataset, 8999, text, sizeof text, &length, NULL));
  lw_dataset_free(dataset);
  CHECK(umount(in_data("full")) == 0);
  CHECK(status == LW_OK && strncmp(text, "8999, and", 9) == 0);
}

static void wrong_options_are_named(void) {
  const char *paths[] = {in_data("news.jsonl"), NULL}, *nowhere[] = {in_data("*.parquet")};
  lw_dataset_options good, options;
  lw_dataset *dataset = NULL;
  lw_dataset_options_init(&good), lw_dataset_options_init(NULL);
  good.paths = paths, good.path_count = 1;
#define WITH(change, status, words) options = good, change, FAILS(lw_dataset_open(&options, &dataset), status, words)
  WITH(options.struct_size = 0, LW_ABI_MISMATCH, "lw_dataset_options.struct_size");
  WITH(options.path_count = 0, LW_INVALID_ARGUMENT, "path_count 0");
  WITH(options.path_count = 2, LW_INVALID_ARGUMENT, "paths[1] NULL");
  WITH(options.paths = NULL, LW_INVALID_ARGUMENT, "paths NULL");
  WITH(options.format = "csv", LW_INVALID_ARGUMENT, "format 'csv' jsonl, parquet");
  WITH(options.text_unit = "page", LW_INVALID_ARGUMENT, "text_unit 'page' paragraph");
  WITH(options.text_unit = "file", LW_INVALID_ARGUMENT, "text_unit \"file\" plain none");
  WITH((options.format = "jsonl", options.text_unit = "file"), LW_INVALID_ARGUMENT, "text_unit \"file\" plain line");
  WITH((options.format = "text", options.text_field = "body"), LW_INVALID_ARGUMENT, "text_field \"body\" fields");
  WITH(options.on_error = "ignore", LW_INVALID_ARGUMENT, "on_error 'ignore' replace");
  WITH(options.text_field = "a..b", LW_INVALID_ARGUMENT, "text_field 'a..b'");
  WITH(options.name = "\xff", LW_INVALID_ARGUMENT, "name UTF-8");
  WITH(options.paths = nowhere, LW_NOT_FOUND, "*.parquet");
  FAILS(lw_dataset_open(NULL, &dataset), LW_INVALID_ARGUMENT, "lw_dataset_options NULL");
  FAILS(lw_dataset_open(&good, NULL), LW_INVALID_ARGUMENT, "out NULL");
  CHECK(dataset == NULL && lw_dataset_documents(NULL) == 0 && lw_dataset_shard_count(NULL) == 0);
  lw_dataset_free(NULL);
}

int main(void) {
  use_data();
  documents_shards_and_groups_agree();
  a_glob_finds_what_it_names();
  unreadable_documents_fare_as_asked();
  many_threads_read_at_once();
  a_forked_child_is_told();
  a_file_that_vanishes_is_an_error_that_names_it();
  progress_is_told_and_can_stop_it();
  a_full_disk_costs_the_index_only();
  wrong_options_are_named();
  return 0;
}
