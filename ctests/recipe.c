/* recipe: what is read is what is written, and what is wrong is named with its line and what was expected. */
#include "lanes.h"

static char *to_toml(const lw_recipe *recipe) {
  size_t length = 0;
  OK(lw_recipe_to_toml(recipe, NULL, 0, &length));
  char *text = malloc(length + 1);
  FAILS(lw_recipe_to_toml(recipe, text, length, &length), LW_INVALID_ARGUMENT, "capacity NUL");
  OK(lw_recipe_to_toml(recipe, text, length + 1, &length));
  CHECK(strlen(text) == length);
  return text;
}

static void toml_goes_there_and_back(void) {
  lw_recipe *recipe = parse(ENDLESS_RECIPE), *again = NULL;
  char *text = to_toml(recipe);
  CHECK(strstr(text, "buffer_size = 64") && strstr(text, "algorithm = \"wrap\"") && strstr(text, data_dir));
  OK(lw_recipe_parse(text, strlen(text), NULL, &again)); /* paths are absolute now */
  CHECK(lw_recipe_fingerprint(recipe) == lw_recipe_fingerprint(again) && lw_recipe_fingerprint(recipe) != 0);
  char *second = to_toml(again);
  CHECK(strcmp(text, second) == 0);
  free(text), free(second), lw_recipe_free(recipe), lw_recipe_free(again);
}

static void a_file_is_read_relative_to_itself(void) {
  write_file("recipe.toml", ENDLESS_RECIPE, strlen(ENDLESS_RECIPE));
  lw_recipe *recipe = NULL, *same = parse(ENDLESS_RECIPE);
  OK(lw_recipe_load(in_data("recipe.toml"), &recipe));
  CHECK(lw_recipe_fingerprint(recipe) == lw_recipe_fingerprint(same));
  lw_recipe_free(recipe), lw_recipe_free(same);
}

static void two_recipes_are_compared_by_field(void) {
  lw_recipe *one = parse(ENDLESS_RECIPE), *same = NULL, *other = parse("seed = 8\n" DATASETS("", "") TOKENS ROWS);
  OK(lw_recipe_parse(ENDLESS_RECIPE, strlen(ENDLESS_RECIPE), "/elsewhere", &same));
  char text[200];
  size_t length = 99;
  OK(lw_recipe_difference(one, same, text, sizeof text, &length));
  CHECK(length == 0 && text[0] == 0); /* where the data lies is no difference */
  OK(lw_recipe_difference(one, other, text, sizeof text, &length));
  CHECK(strcmp(text, "seed is 7 in one and 8 in the other") == 0 && length == strlen(text));
  CHECK(lw_recipe_fingerprint(one) == lw_recipe_fingerprint(same) && lw_recipe_fingerprint(one) != lw_recipe_fingerprint(other));
  OK(lw_recipe_fields(one, NULL, 0, &length));
  char *fields = malloc(length + 1);
  OK(lw_recipe_fields(one, fields, length + 1, &length));
  CHECK(fields[0] == '{' && strstr(fields, "\"pack.max_length\":\"32\"") && !strstr(fields, data_dir));
  free(fields), lw_recipe_free(one), lw_recipe_free(same), lw_recipe_free(other);
}

static void what_is_wrong_is_named(void) {
  lw_recipe *recipe = NULL;
#define WRONG(text, words) FAILS(lw_recipe_parse(text, strlen(text), NULL, &recipe), LW_INVALID_ARGUMENT, words)
  WRONG(DATASETS("", "") TOKENS "[pack]\nmax_length = 32\nalgoritm = \"wrap\"\n[batch]\nglobal_batch = 8\n", "line 'pack.algoritm' mean 'algorithm'");
  WRONG(DATASETS("", "") TOKENS "[pack]\nmax_length = \"32\"\n[batch]\nglobal_batch = 8\n", "line pack.max_length whole number");
  WRONG(DATASETS("", "") TOKENS "[pack]\nmax_length = 32\n", "lacks 'batch'");
  WRONG(DATASETS("", "weight = -1\n") TOKENS ROWS, "weight 'code' -1");
  FAILS(lw_recipe_parse("[", 1, NULL, &recipe), LW_DATA, "line 1 TOML");
  FAILS(lw_recipe_parse("\xff", 1, NULL, &recipe), LW_INVALID_ARGUMENT, "text UTF-8");
  FAILS(lw_recipe_parse(NULL, 1, NULL, &recipe), LW_INVALID_ARGUMENT, "text NULL");
  FAILS(lw_recipe_parse("", 0, NULL, NULL), LW_INVALID_ARGUMENT, "out NULL");
  FAILS(lw_recipe_load(NULL, &recipe), LW_INVALID_ARGUMENT, "path NULL");
  FAILS(lw_recipe_load("/nowhere/recipe.toml", &recipe), LW_IO, "/nowhere/recipe.toml No such file");
  FAILS(lw_recipe_to_toml(NULL, NULL, 0, &(size_t){0}), LW_INVALID_ARGUMENT, "recipe NULL");
  CHECK(recipe == NULL && lw_recipe_fingerprint(NULL) == 0);
  lw_recipe_free(NULL);
}

int main(void) {
  use_data();
  toml_goes_there_and_back();
  a_file_is_read_relative_to_itself();
  two_recipes_are_compared_by_field();
  what_is_wrong_is_named();
  return 0;
}
