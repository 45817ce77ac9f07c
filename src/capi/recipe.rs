//! Everything that may change a byte of what a run sees, and nothing else: seed, datasets, mixture, tokenizer, packing,
//! shuffling, batches. One TOML file, whose keys docs/recipe.md lists; what may only change speed is `lw_loader_options`.

use super::arg;
use super::guard::{guard, guard_or};
use super::status::lw_status;
use crate::base::Result;
use crate::recipe::{Recipe, difference};
use std::ffi::c_char;
use std::path::Path;

/// A recipe; it never changes. Any number of threads, and forked children, may use it at once.
pub struct lw_recipe {
    pub(super) recipe: Recipe,
}

/// Puts a recipe where the caller wants it.
///
/// # Safety
/// `out` is writable.
unsafe fn hand_out(recipe: Recipe, out: *mut *mut lw_recipe) {
    // SAFETY: the caller's promise.
    unsafe { out.write(Box::into_raw(Box::new(lw_recipe { recipe }))) };
}

/// Reads the TOML file at `path` (NUL-terminated UTF-8); relative paths in it are relative to its directory. What is wrong (a misspelt key, too)
/// is named with its line, with what was expected. On success `*out` is the caller's: free it with `lw_recipe_free`. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_recipe_load(path: *const c_char, out: *mut *mut lw_recipe) -> lw_status {
    guard(|| {
        let out = arg::out(out, "out")?;
        // SAFETY: the caller promises a NUL-terminated string.
        let path = unsafe { arg::c_string(path, "path") }?.ok_or_else(|| arg::null("path"))?;
        // SAFETY: `out` is not NULL; the caller promises that it is writable.
        unsafe { hand_out(Recipe::load(Path::new(path))?, out) };
        Ok(())
    })
}

/// Reads TOML from `text`, `len` bytes of UTF-8. Relative paths in it are relative to `base` (NUL-terminated UTF-8), or, if that is NULL, to the
/// current directory. On success `*out` is the caller's: free it with `lw_recipe_free`. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_recipe_parse(text: *const c_char, len: usize, base: *const c_char, out: *mut *mut lw_recipe) -> lw_status {
    guard(|| {
        let out = arg::out(out, "out")?;
        // SAFETY: the caller promises `len` bytes at `text`, and a NUL-terminated string or NULL.
        let (text, base) = unsafe { (arg::text(text, len, "text")?, arg::c_string(base, "base")?) };
        // SAFETY: `out` is not NULL; the caller promises that it is writable.
        unsafe { hand_out(Recipe::parse(text, base.map(Path::new))?, out) };
        Ok(())
    })
}

/// Writes the recipe as TOML that `lw_recipe_parse` reads back, with every default spelled out, NUL-terminated, into `buffer`. `*len` becomes
/// its length without the NUL; `capacity` 0 only asks for it. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_recipe_to_toml(recipe: *const lw_recipe, buffer: *mut c_char, capacity: usize, len: *mut usize) -> lw_status {
    // SAFETY: the caller promises a valid handle, and a buffer of that capacity.
    guard(|| unsafe { arg::put_text(&arg::object(recipe, "recipe")?.recipe.to_toml(), buffer, capacity, len) })
}

/// Writes what the fingerprint is made of, one JSON object (`{"pack.max_length": "2048", …}`: names, and values as TOML), NUL-terminated, into
/// `buffer`. Paths are no part of it: data may move, as long as it is the same. `*len` becomes its length without the NUL; `capacity` 0 only asks
/// for it. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_recipe_fields(recipe: *const lw_recipe, buffer: *mut c_char, capacity: usize, len: *mut usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let fields = unsafe { arg::object(recipe, "recipe") }?.recipe.fields();
        let object: serde_json::Map<String, serde_json::Value> = fields.into_iter().map(|(name, value)| (name, value.into())).collect();
        // SAFETY: the caller promises a buffer of that capacity.
        unsafe { arg::put_text(&serde_json::Value::from(object).to_string(), buffer, capacity, len) }
    })
}

/// Equal for recipes that give the same bytes from the same data and tokenizer; 0 for NULL. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_recipe_fingerprint(recipe: *const lw_recipe) -> u64 {
    // SAFETY: the caller promises NULL or a valid handle.
    unsafe { recipe.as_ref() }.map_or(0, |r| guard_or(0, || r.recipe.fingerprint()))
}

/// Writes the first field in which two recipes differ, for people (`pack.max_length is 2048 in one and 1024 in the other`), NUL-terminated,
/// into `buffer`; nothing, and `*len` 0, if they give the same bytes. `capacity` 0 only asks for the length. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_recipe_difference(
    one: *const lw_recipe,
    other: *const lw_recipe,
    buffer: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises valid handles.
        let (one, other) = unsafe { (arg::object(one, "one")?, arg::object(other, "other")?) };
        // SAFETY: the caller promises a buffer of that capacity.
        unsafe { arg::put_text(&difference_text(&one.recipe, &other.recipe)?, buffer, capacity, len) }
    })
}

fn difference_text(one: &Recipe, other: &Recipe) -> Result<String> {
    let (one, other) = (one.fields(), other.fields());
    let shown = |value: Option<&str>| value.unwrap_or("not there").to_owned();
    let said = difference(&one, &other).map(|(name, a, b)| format!("{name} is {} in one and {} in the other", shown(a), shown(b)));
    Ok(said.unwrap_or_default())
}

/// Frees a recipe made by `lw_recipe_load` or `lw_recipe_parse`; NULL is allowed. Loaders that were opened with it have their own copy. Not while
/// another thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_recipe_free(recipe: *mut lw_recipe) {
    if !recipe.is_null() {
        // SAFETY: the caller promises a handle of this library that is freed once.
        let recipe = unsafe { Box::from_raw(recipe) };
        guard_or((), || drop(recipe));
    }
}
