/* layout: tensors of one sample, made, described, encoded, decoded; and everything that can be wrong with them. */
#include "check.h"

static const int64_t image_shape[] = {3, 224, 224}, label_shape[] = {1000};

static lw_layout *image_layout(void) {
  const lw_tensor_spec specs[] = {{"x", image_shape, 3, LW_FLOAT32}, {"y", label_shape, 1, LW_FLOAT32}};
  lw_layout *layout = NULL;
  OK(lw_layout_new(specs, 2, &layout));
  return layout;
}

static void a_layout_describes_its_tensors(void) {
  lw_layout *layout = image_layout();
  CHECK(lw_layout_nbytes(layout) == 606112 && lw_layout_count(layout) == 2);
  lw_tensor y;
  uint64_t offset;
  OK(lw_layout_tensor(layout, 1, &y, &offset));
  CHECK(offset == 602112 && y.nbytes == 4000 && y.ndim == 1 && y.shape[0] == 1000 && y.dtype == LW_FLOAT32);
  CHECK(y.data == NULL && strcmp(y.name, "y") == 0 && y.device_type == LW_DEVICE_CPU);
  size_t index;
  OK(lw_layout_find(layout, "y", &index));
  CHECK(index == 1);
  FAILS(lw_layout_find(layout, "z", &index), LW_NOT_FOUND, "'z' x, y");
  FAILS(lw_layout_tensor(layout, 2, &y, NULL), LW_INVALID_ARGUMENT, "tensor 2 has 2");
  lw_layout_free(layout);
}

static void json_goes_there_and_back(void) {
  lw_layout *layout = image_layout(), *again = NULL;
  size_t length = 0;
  OK(lw_layout_to_json(layout, NULL, 0, &length));
  char *text = malloc(length + 1), *second = malloc(length + 1);
  FAILS(lw_layout_to_json(layout, text, length, &length), LW_INVALID_ARGUMENT, "capacity NUL");
  OK(lw_layout_to_json(layout, text, length + 1, &length));
  CHECK(strlen(text) == length);
  OK(lw_layout_from_json(text, length, &again));
  OK(lw_layout_to_json(again, second, length + 1, &length));
  CHECK(strcmp(text, second) == 0);
  free(text), free(second), lw_layout_free(layout), lw_layout_free(again);
}

static void encode_places_by_name_and_decode_views_it(void) {
  const int64_t two[] = {2}, none[] = {0};
  const lw_tensor_spec specs[] = {{"a", two, 1, LW_INT8}, {"scalar", NULL, 0, LW_INT64}, {"empty", none, 1, LW_BOOL}};
  lw_layout *layout = NULL;
  OK(lw_layout_new(specs, 3, &layout));
  CHECK(lw_layout_nbytes(layout) == 128);
  int8_t a[2] = {7, -8};
  int64_t scalar = 1234567890123;
  const lw_tensor tensors[] = {{&scalar, NULL, "scalar", 8, 0, LW_INT64, LW_DEVICE_CPU, 0},
                               {NULL, none, "empty", 0, 1, LW_BOOL, LW_DEVICE_CPU, 0},
                               {a, two, "a", 2, 1, LW_INT8, LW_DEVICE_CPU, 0}};
  unsigned char sample[128];
  memset(sample, 0xEE, sizeof sample);
  OK(lw_layout_encode(layout, tensors, 3, sample, sizeof sample));
  for (int i = 2; i < 64; i++) CHECK(sample[i] == 0); /* between tensors */
  lw_tensor views[3];
  OK(lw_layout_decode(layout, sample, sizeof sample, views, 3));
  CHECK(views[0].data == sample && ((int8_t *)views[0].data)[1] == -8);
  CHECK(views[1].data == sample + 64 && memcmp(views[1].data, &scalar, 8) == 0 && views[2].nbytes == 0);
  FAILS(lw_layout_decode(layout, sample, 127, views, 3), LW_INVALID_ARGUMENT, "len 127 128");
  FAILS(lw_layout_decode(layout, sample, 128, views, 2), LW_INVALID_ARGUMENT, "count 2 3");
  FAILS(lw_layout_encode(layout, tensors, 3, sample, 100), LW_INVALID_ARGUMENT, "capacity 100 128");
  FAILS(lw_layout_encode(layout, tensors, 2, sample, 128), LW_INVALID_ARGUMENT, "'a' missing");
  lw_layout_free(layout);
}

static void a_wrong_tensor_is_named(void) {
  lw_layout *layout = image_layout();
  size_t n = lw_layout_nbytes(layout);
  float *x = calloc(1, 602112), *y = calloc(1, 4000);
  void *out = malloc(n);
  const lw_tensor good[] = {{x, image_shape, "x", 602112, 3, LW_FLOAT32, LW_DEVICE_CPU, 0},
                            {y, label_shape, "y", 4000, 1, LW_FLOAT32, LW_DEVICE_CPU, 0}};
  OK(lw_layout_encode(layout, good, 2, out, n));
  lw_tensor bad[2];
#define WITH(change, status, words)                                        \
  memcpy(bad, good, sizeof bad), change, FAILS(lw_layout_encode(layout, bad, 2, out, n), status, words)
  const int64_t other_shape[] = {999};
  WITH(bad[1].dtype = LW_INT64, LW_LAYOUT_MISMATCH, "'y' int64 float32");
  WITH(bad[1].dtype = 77, LW_LAYOUT_MISMATCH, "'y' unknown 77");
  WITH(bad[1].shape = other_shape, LW_LAYOUT_MISMATCH, "'y' [999] [1000]");
  WITH(bad[1].shape = NULL, LW_INVALID_ARGUMENT, "'y' shape NULL");
  WITH(bad[1].ndim = 2, LW_LAYOUT_MISMATCH, "'y' 2 dimensions");
  WITH(bad[1].ndim = -1, LW_LAYOUT_MISMATCH, "'y' -1 dimensions");
  WITH(bad[1].nbytes = 3999, LW_INVALID_ARGUMENT, "'y' 3999 4000");
  WITH(bad[1].data = NULL, LW_INVALID_ARGUMENT, "'y' data NULL");
  WITH(bad[1].device_type = 2, LW_UNSUPPORTED, "'y' device_type LW_DEVICE_CPU");
  WITH(bad[1].name = "z", LW_INVALID_ARGUMENT, "tensors[1] 'z'");
  WITH(bad[1].name = "x", LW_INVALID_ARGUMENT, "'x' twice");
  WITH(bad[1].name = "\xff", LW_INVALID_ARGUMENT, "tensors[1] UTF-8");
  WITH((bad[0].name = NULL, bad[1].name = NULL, bad[1].ndim = 0), LW_LAYOUT_MISMATCH, "'y'"); /* by position */
  free(x), free(y), free(out), lw_layout_free(layout);
}

static void a_wrong_spec_is_named(void) {
  lw_layout *layout = NULL;
  const int64_t negative[] = {2, -1}, huge[] = {INT64_MAX, INT64_MAX}, many[33] = {0};
#define SPEC(status, words, ...)                                    \
  do {                                                              \
    const lw_tensor_spec spec = {__VA_ARGS__};                      \
    FAILS(lw_layout_new(&spec, 1, &layout), status, words);         \
  } while (0)
  SPEC(LW_INVALID_ARGUMENT, "specs[0] name NULL", NULL, negative, 1, LW_INT8);
  SPEC(LW_INVALID_ARGUMENT, "empty", "", negative, 1, LW_INT8);
  SPEC(LW_INVALID_ARGUMENT, "specs[0] 'a' -1 negative", "a", negative, 2, LW_INT8);
  SPEC(LW_INVALID_ARGUMENT, "'a' -3 dimensions", "a", negative, -3, LW_INT8);
  SPEC(LW_INVALID_ARGUMENT, "'a' shape NULL", "a", NULL, 1, LW_INT8);
  SPEC(LW_INVALID_ARGUMENT, "'a' dtype 11", "a", negative, 1, 11);
  SPEC(LW_INVALID_ARGUMENT, "'a' overflows", "a", huge, 2, LW_INT8);
  SPEC(LW_INVALID_ARGUMENT, "'a' 33 dimensions", "a", many, 33, LW_INT8);
  FAILS(lw_layout_new(NULL, 0, &layout), LW_INVALID_ARGUMENT, "at least one");
  CHECK(layout == NULL);
}

int main(void) {
  a_layout_describes_its_tensors();
  json_goes_there_and_back();
  encode_places_by_name_and_decode_views_it();
  a_wrong_tensor_is_named();
  a_wrong_spec_is_named();
  return 0;
}
