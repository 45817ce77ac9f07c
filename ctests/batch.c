/* batch: tensors, segments and rows say the same, and every token is that of the document that the segment names. */
#include "lanes.h"
#include "dlpack.h"

#include <pthread.h>

static void every_token_is_that_of_its_document(const lw_batch *batch) {
  const lw_batch_info info = describe(batch);
  CHECK(info.rows == GLOBAL_BATCH && info.row_length == ROW);
  const lw_tensor ids_view = tensor(batch, "input_ids"), labels_view = tensor(batch, "labels"), positions_view = tensor(batch, "positions");
  const lw_tensor numbers_view = tensor(batch, "segment_ids"), mask_view = tensor(batch, "loss_mask"), ends_view = tensor(batch, "cu_seqlens");
  CHECK(ids_view.dtype == LW_INT64 && labels_view.dtype == LW_INT64 && positions_view.dtype == LW_INT64);
  CHECK(numbers_view.dtype == LW_INT32 && mask_view.dtype == LW_BOOL && ends_view.dtype == LW_INT32);
  CHECK(ids_view.ndim == 2 && ids_view.shape[0] == GLOBAL_BATCH && ids_view.shape[1] == ROW && ids_view.nbytes == GLOBAL_BATCH * ROW * 8);
  CHECK(mask_view.nbytes == GLOBAL_BATCH * ROW && ends_view.ndim == 1 && ends_view.nbytes == (uint64_t)ends_view.shape[0] * 4);
  const int64_t *ids = ids_view.data, *labels = labels_view.data, *positions = positions_view.data;
  const int32_t *numbers = numbers_view.data, *ends = ends_view.data;
  const uint8_t *mask = mask_view.data;

  lw_segment segments[512];
  lw_row rows[GLOBAL_BATCH];
  size_t count = 0, row_count = 0, at = 0;
  OK(lw_batch_segments(batch, segments, 512, &count));
  OK(lw_batch_rows(batch, rows, GLOBAL_BATCH, &row_count));
  CHECK(count == info.segments && row_count == info.rows);
  uint64_t tokens = 0, valid = 0;
  int64_t longest = 0;
  int32_t end = 0;
  for (uint32_t r = 0; r < row_count; r++) {
    uint32_t used = 0;
    CHECK(rows[r].lane < GLOBAL_BATCH && rows[r].position == rows[r].lane && rows[r].number == info.step);
    for (uint32_t s = 0; s < rows[r].segments; s++, at++) {
      const lw_segment *segment = &segments[at];
      CHECK(segment->row == r && segment->offset == used && segment->length > 0);
      CHECK(segment->shard == (segment->dataset == 0 || segment->document < 30 ? 0u : segment->document < 31 ? 1u : 2u));
      for (uint32_t i = 0; i < segment->length; i++, used++) {
        const size_t p = (size_t)r * ROW + used;
        const int last = i + 1 == segment->length;
        CHECK(ids[p] == word(segment->dataset, segment->document, segment->start + i));
        CHECK(positions[p] == segment->start + i && numbers[p] == (int32_t)s + 1);
        CHECK(labels[p] == (last ? -100 : word(segment->dataset, segment->document, segment->start + i + 1)) && mask[p] == !last);
      }
      CHECK(*ends++ == end);
      end += (int32_t)segment->length, valid += segment->length - 1;
      if (segment->length > longest) longest = segment->length;
    }
    tokens += used;
    if (used < ROW) CHECK(*ends++ == end), end += ROW - (int32_t)used;
    for (; used < ROW; used++) {
      const size_t p = (size_t)r * ROW + used;
      CHECK(labels[p] == -100 && positions[p] == 0 && numbers[p] == 0 && mask[p] == 0);
    }
  }
  CHECK(*ends == GLOBAL_BATCH * ROW && at == count);
  CHECK(info.num_tokens == tokens && info.num_valid_tokens == valid && info.max_seqlen == longest);
}

static void hashes_tell_batches_apart(const lw_batch *one, const lw_batch *other) {
  uint64_t first[GLOBAL_BATCH], second[GLOBAL_BATCH];
  size_t n = 0;
  OK(lw_batch_row_hashes(one, NULL, 0, &n));
  CHECK(n == GLOBAL_BATCH);
  FAILS(lw_batch_row_hashes(one, first, n - 1, &n), LW_INVALID_ARGUMENT, "capacity 7 8 hashes");
  OK(lw_batch_row_hashes(one, first, n, &n));
  OK(lw_batch_row_hashes(other, second, n, &n));
  CHECK(memcmp(first, second, sizeof first) != 0 && lw_batch_global_hash(first, n) != lw_batch_global_hash(second, n));
  CHECK(lw_batch_global_hash(NULL, 3) == 0 && lw_batch_global_hash(NULL, 0) == lw_batch_global_hash(first, 0));
}

static void wrong_arguments_are_named(const lw_batch *batch) {
  lw_tensor view;
  size_t n;
  FAILS(lw_batch_tensor(batch, "ids", &view), LW_NOT_FOUND, "'ids' input_ids, cu_seqlens");
  FAILS(lw_batch_tensor(batch, NULL, &view), LW_INVALID_ARGUMENT, "name NULL");
  FAILS(lw_batch_tensor(NULL, "labels", &view), LW_INVALID_ARGUMENT, "batch NULL");
  FAILS(lw_batch_describe(batch, NULL), LW_INVALID_ARGUMENT, "info NULL");
  FAILS(lw_batch_rows(batch, NULL, GLOBAL_BATCH, &n), LW_INVALID_ARGUMENT, "rows NULL");
  FAILS(lw_batch_segments(batch, NULL, 0, NULL), LW_INVALID_ARGUMENT, "count NULL");
  lw_batch_retain(NULL), lw_batch_release(NULL);
}

static void child(void *batch) {
  lw_tensor view;
  FAILS(lw_batch_tensor(batch, "positions", &view), LW_FORKED, "forked");
  FAILS(lw_batch_describe(batch, &(lw_batch_info){0}), LW_FORKED, "forked");
  lw_batch_release(batch);
}

static void *release_on_another_thread(void *batch) { return lw_batch_release(batch), NULL; }
static void *delete_on_another_thread(void *tensor) { return ((DLManagedTensorVersioned *)tensor)->deleter(tensor), NULL; }
static void elsewhere(void *(*run)(void *), void *argument) {
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, run, argument) == 0 && pthread_join(thread, NULL) == 0);
}
static void delete_in_child(void *tensor) { delete_on_another_thread(tensor); }

/* `batch` has one reference, and the loader is still open. */
static void it_outlives_its_loader(lw_batch *batch, lw_loader *loader) {
  DLManagedTensorVersioned *ids = NULL, *ends = NULL, *none = NULL;
  OK(lw_batch_dlpack(batch, "input_ids", &ids));
  OK(lw_batch_dlpack(batch, "cu_seqlens", &ends));
  FAILS(lw_batch_dlpack(batch, "ids", &none), LW_NOT_FOUND, "'ids'");
  lw_batch_retain(batch);
  in_child(child, batch);
  in_child(delete_in_child, ids);
  lw_loader_free(loader);
  every_token_is_that_of_its_document(batch);
  const lw_tensor view = tensor(batch, "input_ids"), end_view = tensor(batch, "cu_seqlens");
  CHECK(ids->version.major == 1 && ids->dl_tensor.data == view.data && ids->dl_tensor.ndim == 2 && (ids->flags & 1) == 1);
  CHECK(ids->dl_tensor.shape[0] == GLOBAL_BATCH && ids->dl_tensor.shape[1] == ROW && ids->dl_tensor.strides[0] == ROW && ids->dl_tensor.strides[1] == 1);
  CHECK(ids->dl_tensor.dtype.code == 0 && ids->dl_tensor.dtype.bits == 64 && ids->dl_tensor.device.device_type == 1);
  CHECK(ends->dl_tensor.ndim == 1 && ends->dl_tensor.shape[0] == end_view.shape[0] && ends->dl_tensor.dtype.bits == 32);
  int64_t first = ((const int64_t *)view.data)[0];
  lw_batch_release(batch);
  elsewhere(release_on_another_thread, batch);
  CHECK(((const int64_t *)ids->dl_tensor.data)[0] == first); /* the tensors still hold it */
  elsewhere(delete_on_another_thread, ids), elsewhere(delete_on_another_thread, ends);
}

static void *use(void *batch) { return every_token_is_that_of_its_document(batch), lw_batch_release(batch), NULL; }

static void threads_share_a_batch(lw_batch *batch) {
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) lw_batch_retain(batch), CHECK(pthread_create(&threads[i], NULL, use, batch) == 0);
  for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

static void rows_that_fill_up_are_no_part_of_the_batch(void) {
  lw_recipe *recipe = parse(ENDLESS_RECIPE);
  lw_loader_options options;
  lw_loader_options_init(&options);
  options.rank = 2, options.ranks = 5, options.uneven = 1, options.threads = 1; /* 8 lanes: ranks have 1, 2, 1, 2, 2 */
  lw_loader *loader = NULL;
  OK(lw_loader_open(recipe, &options, &loader));
  lw_batch *batch = next_batch(loader);
  lw_row rows[2];
  size_t n = 0;
  OK(lw_batch_rows(batch, rows, 2, &n));
  CHECK(n == 2 && rows[0].lane == 3 && rows[0].position == 3 && rows[1].lane == LW_NO_LANE && rows[1].position == UINT64_MAX && rows[1].segments == 0);
  OK(lw_batch_row_hashes(batch, NULL, 0, &n));
  CHECK(n == 1);
  lw_batch_release(batch), lw_loader_free(loader), lw_recipe_free(recipe);
}

int main(void) {
  use_data();
  lw_loader *loader = open_rank(ENDLESS_RECIPE, 0, 1, FORKING_THREADS);
  lw_batch *first = next_batch(loader), *second = next_batch(loader);
  threads_share_a_batch(second);
  every_token_is_that_of_its_document(first);
  hashes_tell_batches_apart(first, second);
  wrong_arguments_are_named(first);
  for (int i = 0; i < 60; i++) {
    lw_batch *batch = next_batch(loader);
    every_token_is_that_of_its_document(batch);
    lw_batch_release(batch);
  }
  lw_batch_release(second);
  rows_that_fill_up_are_no_part_of_the_batch();
  it_outlives_its_loader(first, loader);
  return 0;
}
