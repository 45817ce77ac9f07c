/* operator: a user's stateful step between documents and rows, in C: its state is in the checkpoint, and every way in which it can fail. */
#include "lanes.h"

enum { STEPS = 30, MOST_HELD = 3 };

#define WITH_OPERATORS(names) "functions = [" names "]\n" ENDLESS_RECIPE

/* Holds up to three documents back, then lets them go, the last one first, each without its first token; and counts. */
typedef struct {
  uint64_t held[MOST_HELD];
  uint32_t lengths[MOST_HELD];
  uint32_t count, seen;
} stack;

static int opened, closed, dropped, fail_in;

enum { OPEN = 1, PUSH, SAVE, LOAD };

static int32_t failing(int where) {
  if (fail_in != where) return 0;
  lw_set_last_error("so it was wanted", 16);
  return -1;
}

static int32_t open_stack(void *user, uint32_t lane, void **state) {
  CHECK(lane < GLOBAL_BATCH);
  if (failing(OPEN)) return -1;
  __atomic_add_fetch((int *)user, 1, __ATOMIC_RELAXED);
  *state = calloc(1, sizeof(stack));
  return 0;
}

static void close_stack(void *user, void *state) {
  (void)user;
  __atomic_add_fetch(&closed, 1, __ATOMIC_RELAXED);
  free(state);
}

static void drop_operator(void *user) {
  CHECK(user == &opened);
  dropped++;
}

static void let_go(stack *s, lw_pieces *pieces) {
  while (s->count > 0) {
    const uint64_t number = s->held[--s->count];
    lw_piece piece;
    OK(lw_pieces_get(pieces, number, &piece));
    CHECK(piece.tokens && piece.number == number && piece.length == s->lengths[s->count]);
    for (uint32_t i = 0; i < piece.length; i++) CHECK((int64_t)piece.tokens[i] == word(piece.dataset, piece.document, piece.start + i));
    if (piece.length > 1) OK(lw_pieces_emit(pieces, number, 1, piece.length - 1));
    OK(lw_pieces_release(pieces, number));
    FAILS(lw_pieces_get(pieces, number, &piece), LW_NOT_FOUND, "piece held");
  }
}

static int32_t push_stack(void *user, void *state, const lw_piece *piece, lw_pieces *pieces) {
  (void)user;
  stack *s = state;
  if (failing(PUSH)) return 7;
  CHECK(piece->length == words_in(piece->dataset, piece->document) + 1 && piece->start == 0 && piece->lane < GLOBAL_BATCH);
  CHECK((int64_t)piece->tokens[piece->length - 1] == END_OF_TEXT);
  FAILS(lw_pieces_emit(pieces, piece->number, 1, piece->length), LW_INVALID_ARGUMENT, "no part of piece");
  FAILS(lw_pieces_emit(pieces, piece->number, 0, 0), LW_INVALID_ARGUMENT, "no part of piece");
  FAILS(lw_pieces_emit(pieces, piece->number + 1, 0, 1), LW_NOT_FOUND, "piece not held");
  s->seen++;
  if (s->seen % 5 == 0) return 0; /* every fifth is dropped */
  OK(lw_pieces_hold(pieces, piece->number));
  s->held[s->count] = piece->number, s->lengths[s->count++] = piece->length;
  if (s->count == MOST_HELD) let_go(s, pieces);
  return 0;
}

static int32_t flush_stack(void *user, void *state, lw_pieces *pieces) {
  (void)user;
  let_go(state, pieces);
  return 0;
}

static int32_t save_stack(void *user, void *state, lw_pieces *pieces, const void **bytes, size_t *len) {
  (void)user, (void)pieces;
  if (failing(SAVE)) return -1;
  static _Thread_local unsigned char written[4];
  const uint32_t seen = ((stack *)state)->seen;
  for (int i = 0; i < 4; i++) written[i] = (unsigned char)(seen >> (8 * i));
  *bytes = written, *len = 4;
  return 0;
}

static int32_t load_stack(void *user, void *state, const void *bytes, size_t len, const lw_piece *held, size_t count, lw_pieces *pieces) {
  (void)user;
  stack *s = state;
  if (failing(LOAD)) return -1;
  CHECK(len == 4 && count < MOST_HELD && s->seen == 0);
  for (int i = 0; i < 4; i++) s->seen |= (uint32_t)((const unsigned char *)bytes)[i] << (8 * i);
  for (size_t i = 0; i < count; i++) {
    lw_piece piece;
    OK(lw_pieces_get(pieces, held[i].number, &piece));
    CHECK(held[i].number == i && held[i].tokens == NULL && piece.tokens == NULL && piece.document == held[i].document);
    s->held[s->count] = held[i].number, s->lengths[s->count++] = held[i].length;
  }
  return 0;
}

static lw_operator_table stack_table(void) {
  lw_operator_table table;
  lw_operator_table_init(&table);
  table.name = "stack 1", table.user = &opened, table.drop = drop_operator;
  table.open = open_stack, table.close = close_stack, table.push = push_stack, table.flush = flush_stack;
  table.save = save_stack, table.load = load_stack;
  return table;
}

static lw_status open_with(const char *text, const lw_operator_table *const *tables, size_t count, uint32_t rank, uint32_t ranks, lw_loader **out) {
  lw_recipe *recipe = parse(text);
  lw_loader_options options;
  lw_loader_options_init(&options);
  options.operators = tables, options.operator_count = count, options.rank = rank, options.ranks = ranks, options.threads = rank % 3;
  const lw_status status = lw_loader_open(recipe, &options, out);
  lw_recipe_free(recipe);
  return status;
}

static lw_loader *open_stacked(uint32_t rank, uint32_t ranks) {
  lw_operator_table table = stack_table();
  const lw_operator_table *tables[] = {&table};
  lw_loader *loader = NULL;
  OK(open_with(WITH_OPERATORS("\"stack 1\""), tables, 1, rank, ranks, &loader));
  memset(&table, 0xEE, sizeof table); /* it was copied */
  return loader;
}

static void its_state_goes_along_to_any_number_of_ranks(void) {
  uint64_t expected[STEPS];
  lw_loader *one = open_stacked(0, 1), *loaders[8];
  for (int step = 0; step < STEPS; step++) expected[step] = global_hash(&one, 1);
  OK(lw_loader_seek(one, 0));
  char *states[8] = {NULL};
  size_t lengths[8];
  uint32_t before = 0;
  for (int step = 0, round = 0; step < STEPS; round++) {
    const uint32_t ranks = 1u << (round % 4);
    lw_state given[8];
    for (uint32_t r = 0; r < before; r++) given[r] = (lw_state){states[r], lengths[r]};
    for (uint32_t r = 0; r < ranks; r++) {
      loaders[r] = open_stacked(r, ranks);
      if (before > 0) OK(lw_loader_load(loaders[r], given, before));
    }
    for (uint32_t r = 0; r < before; r++) free(states[r]);
    for (int end = step + 1 + round % 3; step < end && step < STEPS; step++) CHECK(global_hash(loaders, ranks) == expected[step]);
    for (uint32_t r = 0; r < ranks; r++) {
      OK(lw_loader_save(loaders[r], NULL, 0, &lengths[r]));
      states[r] = malloc(lengths[r]);
      OK(lw_loader_save(loaders[r], states[r], lengths[r], &lengths[r]));
      lw_loader_free(loaders[r]);
    }
    before = ranks;
  }
  for (uint32_t r = 0; r < before; r++) free(states[r]);
  lw_loader_free(one);
  CHECK(opened == closed && opened > STEPS && dropped > 4);
}

static void a_failure_is_said_with_its_reason(void) {
  const int places[] = {OPEN, PUSH, SAVE};
  for (int i = 0; i < 3; i++) {
    lw_loader *loader = open_stacked(0, 1);
    OK(lw_loader_seek(loader, 0));
    fail_in = places[i];
    lw_status status = LW_OK;
    for (int step = 0; step < 100 && status == LW_OK; step++) { /* a state is first saved when a lane's first window is full */
      lw_batch *batch = NULL;
      status = lw_loader_next(loader, seconds(30), &batch);
      lw_batch_release(batch);
    }
    CHECK(status == LW_DATA && check_says("operator 'stack 1' wanted"));
    fail_in = 0;
    OK(lw_loader_seek(loader, 0));
    lw_batch_release(next_batch(loader));
    lw_loader_free(loader);
  }
  lw_loader *loader = open_stacked(0, 1), *other = open_stacked(0, 1);
  for (int step = 0; step < 12; step++) lw_batch_release(next_batch(loader));
  static char bytes[1 << 14];
  size_t length;
  OK(lw_loader_save(loader, bytes, sizeof bytes, &length));
  const lw_state state = {bytes, length};
  fail_in = LOAD;
  FAILS(lw_loader_load(other, &state, 1), LW_DATA, "operator 'stack 1' wanted");
  fail_in = 0;
  OK(lw_loader_load(other, &state, 1));
  lw_loader_free(loader), lw_loader_free(other);
  CHECK(opened == closed);
}

static int32_t hold_all(void *user, void *state, const lw_piece *piece, lw_pieces *pieces) {
  (void)user;
  CHECK(state == NULL);
  OK(lw_pieces_emit(pieces, piece->number, 0, piece->length));
  return lw_pieces_hold(pieces, piece->number);
}

static void tables_that_do_not_fit_are_named(void) {
  lw_operator_table fine = stack_table(), nameless = stack_table(), pushless = stack_table(), loadless = stack_table(), forgets;
  nameless.name = NULL, pushless.push = NULL, loadless.load = NULL;
  lw_operator_table_init(&forgets);
  forgets.name = "forgets", forgets.push = hold_all;
  const lw_operator_table *tables[] = {&fine, &fine}, *null[] = {NULL}, *const a_nameless[] = {&nameless}, *const a_pushless[] = {&pushless};
  const lw_operator_table *const a_loadless[] = {&loadless}, *const a_forgets[] = {&forgets};
  lw_loader *loader = NULL;
  const int before = dropped;
#define REFUSED(names, given, count, words) FAILS(open_with(WITH_OPERATORS(names), given, count, 0, 1, &loader), LW_INVALID_ARGUMENT, words)
  REFUSED("\"stack 1\"", tables, 2, "operators[1] 'stack 1' twice");
  REFUSED("\"other 3\"", tables, 1, "'stack 1' given other 3");
  REFUSED("\"stack 1\", \"other 3\"", tables, 1, "'other 3' not given");
  REFUSED("\"x\"", null, 1, "operators[0] lw_operator_table NULL");
  REFUSED("\"x\"", a_nameless, 1, "operators[0] name NULL");
  REFUSED("\"stack 1\"", a_pushless, 1, "'stack 1' no push");
  REFUSED("\"stack 1\"", a_loadless, 1, "'stack 1' save load");
  CHECK(dropped == before && loader == NULL);
  OK(open_with(WITH_OPERATORS("\"forgets\""), a_forgets, 1, 0, 1, &loader));
  lw_status status = LW_OK;
  for (int step = 0; step < 100 && status == LW_OK; step++) {
    lw_batch *batch = NULL;
    status = lw_loader_next(loader, seconds(30), &batch);
    lw_batch_release(batch);
  }
  CHECK(status == LW_UNSUPPORTED && check_says("'forgets' holds pieces save load"));
  lw_loader_free(loader);
  FAILS(lw_pieces_emit(NULL, 0, 0, 1), LW_INVALID_ARGUMENT, "pieces NULL");
  lw_operator_table_init(NULL);
}

int main(void) {
  use_data();
  its_state_goes_along_to_any_number_of_ranks();
  a_failure_is_said_with_its_reason();
  tables_that_do_not_fit_are_named();
  return 0;
}
