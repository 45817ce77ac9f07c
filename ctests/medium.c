/* medium: choosing one, and one written in C. How samples travel through it is in exchange.c. */
#include "check.h"

static int drops;
static void on_drop(void *user) { CHECK(user == &drops), drops++; }
static int32_t no_read(void *user, uint32_t slot, void *out, size_t len) { return (void)user, (void)slot, (void)out, (void)len, 1; }
static int32_t no_write(void *user, uint32_t slot, const void *data, size_t len) { return (void)user, (void)slot, (void)data, (void)len, 1; }

static lw_medium_table valid_table(void) {
  lw_medium_table table;
  lw_medium_table_init(&table);
  table.user = &drops, table.drop = on_drop, table.kind = "null", table.buf_name = "nowhere";
  table.slot_count = 4, table.slot_stride = 64, table.read = no_read, table.write = no_write;
  return table;
}

static void choices_are_made_and_freed(void) {
  lw_medium *medium = NULL;
  OK(lw_medium_shm(&medium));
  lw_medium_free(medium);
  OK(lw_medium_file("/tmp/never-made", &medium));
  lw_medium_free(medium);
  /* CUDA is looked for when a student is opened: these are choices on any machine. */
  OK(lw_medium_cuda(0, LW_FALLBACK_NONE, &medium));
  lw_medium_free(medium);
  OK(lw_medium_shm_pinned(0, LW_FALLBACK_SHM, &medium));
  lw_medium_free(medium);
}

static void a_custom_medium_is_dropped_once_and_only_if_it_was_taken(void) {
  lw_medium *medium = NULL;
  lw_medium_table table = valid_table(), bad;
  OK(lw_medium_custom(&table, &medium));
  CHECK(drops == 0);
  lw_medium_free(medium);
  CHECK(drops == 1);
#define TABLE(change, words) bad = table, change, FAILS(lw_medium_custom(&bad, &medium), LW_INVALID_ARGUMENT, words)
  TABLE(bad.kind = NULL, "kind NULL");
  TABLE(bad.kind = "shm", "kind 'shm' built");
  TABLE(bad.kind = "cuda", "kind 'cuda' built");
  TABLE(bad.kind = "", "kind ''");
  TABLE(bad.kind = "a-kind-whose-name-is-far-too-long", "31");
  TABLE(bad.buf_name = NULL, "buf_name NULL");
  TABLE(bad.buf_name = "\xc3", "buf_name UTF-8");
  TABLE(bad.slot_count = 0, "slot_count 0");
  TABLE(bad.slot_stride = 0, "slot_stride 0");
  TABLE(bad.read = NULL, "read NULL");
  TABLE(bad.write = NULL, "write NULL");
  bad = table, bad.struct_size = 96;
  FAILS(lw_medium_custom(&bad, &medium), LW_ABI_MISMATCH, "lw_medium_table 96 104");
  CHECK(drops == 1);
}

int main(void) {
  choices_are_made_and_freed();
  a_custom_medium_is_dropped_once_and_only_if_it_was_taken();
  return 0;
}
