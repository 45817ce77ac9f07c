//! Files of JSON lines, Parquet or plain text, compressed or not, read as numbered documents.
//!
//! Opening finds the files (*shards*) and takes each one's index from a cache, or builds it: where documents start,
//! and how they are *grouped* into what is best read together. After that any document can be read by its number
//! without reading what comes before it. Many processes may open the same files at once: one of them builds an index,
//! the others wait for it.

use super::arg::{self, Sized_, User};
use super::gate::Gate;
use super::guard::{guard, guard_or};
use super::home::Home;
use super::status::lw_status;
use crate::base::{Error, Result, Stop};
use crate::data::{Dataset, DatasetSpec, DocBatch, DocStatus, ErrorPolicy, Format, OpenOptions, Progress, Reader, SkipReason, TextUnit};
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// Told now and then of work that has to be done before the first document: `what` (`"index wiki"`, `"count tokens"`, `"seek"`)
/// is NUL-terminated UTF-8, valid during the call; `done` of `total` bytes, documents or rows. Runs on any thread, on
/// several at once. Returns 0 to go on; anything else ends the work, and the call that does it returns
/// `LW_INTERRUPTED`. Must not throw, or call functions of the handle that is being opened or used.
pub type lw_progress_fn = Option<unsafe extern "C" fn(user: *mut c_void, what: *const c_char, done: u64, total: u64) -> i32>;

/// Which documents, and how to open them. Fill it after `lw_dataset_options_init`; `paths` must be set. All strings are
/// NUL-terminated UTF-8 and read during `lw_dataset_open` only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_dataset_options {
    /// `sizeof(lw_dataset_options)`.
    pub struct_size: usize,
    /// For messages. NULL (the default): "dataset".
    pub name: *const c_char,
    /// `path_count` files, directories (searched to any depth, hidden names left out) and globs (`*`, `?`, `[…]`,
    /// `**`), in this order; within a directory or glob, shards are ordered by the bytes of their relative path.
    pub paths: *const *const c_char,
    /// How many.
    pub path_count: usize,
    /// "jsonl", "parquet" or "text"; NULL (the default): from each file's suffix, under `.gz` or `.zst`.
    pub format: *const c_char,
    /// Field or column that holds the text; `a.b` names field `b` of object `a`. NULL (the default): "text". Not with plain
    /// text, which has no fields.
    pub text_field: *const c_char,
    /// What a document of plain text is: "line", "paragraph" or "file". NULL (the default): "line". Another one is an error where no
    /// file is plain text.
    pub text_unit: *const c_char,
    /// What is done about documents and shards that cannot be read: "error", "skip" or "replace" (U+FFFD for what is
    /// not UTF-8; what that cannot mend is skipped). NULL (the default): "error".
    pub on_error: *const c_char,
    /// Where indexes are kept. NULL (the default): in `.laneway/` beside each shard, else in `$LANEWAY_CACHE`, else in
    /// the user's cache directory.
    pub cache_dir: *const c_char,
    /// Threads that build indexes; 0 (the default): one a processor.
    pub threads: u64,
    /// Bytes that half-read compressed streams and Parquet pages may keep. Default 128 MiB.
    pub memory_budget: u64,
    /// Told of the indexing. NULL (the default): nobody is.
    pub progress: lw_progress_fn,
    /// Handed to `progress`.
    pub progress_user: *mut c_void,
}

const DEFAULTS: lw_dataset_options = lw_dataset_options {
    struct_size: size_of::<lw_dataset_options>(),
    name: ptr::null(),
    paths: ptr::null(),
    path_count: 0,
    format: ptr::null(),
    text_field: ptr::null(),
    text_unit: ptr::null(),
    on_error: ptr::null(),
    cache_dir: ptr::null(),
    threads: 0,
    memory_budget: 128 << 20,
    progress: None,
    progress_user: ptr::null_mut(),
};

// SAFETY: `repr(C)`, begins with a `usize`, without padding, and every field is an integer, a raw pointer, or a function that may be NULL.
unsafe impl Sized_ for lw_dataset_options {
    const NAME: &'static str = "lw_dataset_options";
    const LEAST: usize = 104;
}

/// One file of a dataset. The strings belong to the dataset.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_shard {
    /// Where it is.
    pub path: *const c_char,
    /// Relative to the path, directory or fixed part of the glob by which it was found; with the fingerprint, its
    /// identity.
    pub name: *const c_char,
    /// "jsonl", "parquet" or "text".
    pub format: *const c_char,
    /// Why it was left out whole, or NULL if it was not.
    pub damage: *const c_char,
    /// Bytes of the file.
    pub size: u64,
    /// Hash of its content (Parquet: of its footer).
    pub fingerprint: u64,
    /// Number, in the dataset, of its first document.
    pub first_document: u64,
    /// How many it holds.
    pub documents: u64,
}

/// Consecutive documents of one shard that are best read together.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_group {
    /// Number, in the dataset, of the first.
    pub first_document: u64,
    /// What reading them costs: uncompressed bytes.
    pub bytes: u64,
    /// How many; never 0.
    pub documents: u32,
    /// Which shard they lie in.
    pub shard: u32,
}

/// Where a document comes from, for people.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_location {
    /// Line of the file when uncompressed, or row of the Parquet file, counted from 1.
    pub number: u64,
    /// Which shard; `lw_dataset_shard` has its path.
    pub shard: u32,
    /// 1 if `number` counts rows, 0 if it counts lines.
    pub is_row: i32,
}

/// An opened dataset; it never changes. Any number of threads may use it at once.
pub struct lw_dataset {
    dataset: Dataset,
    shards: Vec<ShardText>,
    /// Those that no thread is using.
    readers: Mutex<Vec<(Reader, DocBatch)>>,
    home: Home,
}

struct ShardText {
    path: CString,
    name: CString,
    damage: Option<CString>,
}

impl lw_dataset {
    pub(super) fn new(dataset: Dataset) -> lw_dataset {
        let text = |text: &str| CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
        let shard =
            |s: &crate::data::Shard| ShardText { path: text(&s.path.to_string_lossy()), name: text(&s.name), damage: s.damage.as_deref().map(text) };
        let shards = dataset.shards().iter().map(shard).collect();
        lw_dataset { dataset, shards, readers: Mutex::default(), home: Home::here() }
    }

    /// The text of a document, or why it has none, with a reader that nobody else is using.
    fn read<R>(&self, document: u64, then: impl FnOnce(&str, DocStatus) -> Result<R>) -> Result<R> {
        self.home.check("dataset")?;
        let pool = || self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut reader, mut batch) = pool().pop().unwrap_or_else(|| (self.dataset.reader(), DocBatch::new()));
        self.dataset.group_of(document)?;
        reader.read(document..document + 1, &mut batch)?;
        let result = then(batch.text(0), batch.status(0));
        pool().push((reader, batch));
        result
    }
}

/// Passes on progress, through a gate, and remembers that the work is to end.
pub(super) fn progress(
    callback: lw_progress_fn,
    user: *mut c_void,
    stop: Stop,
    gate: &Arc<Gate>,
) -> Option<impl Fn(&str, u64, u64) + Send + Sync + 'static> {
    let (callback, user, gate) = (callback?, User { user, drop: None }, Arc::clone(gate));
    Some(move |what: &str, done: u64, total: u64| {
        let what = CString::new(what.replace('\0', "\u{fffd}")).unwrap_or_default();
        // SAFETY: whoever set the callback promised a function that may be called on any thread with this `user`; the string outlives the call.
        let answer = gate.call(|| unsafe { callback(user.get(), what.as_ptr(), done, total) });
        if answer.is_err() || answer.is_ok_and(|code| code != 0) {
            stop.set();
        }
    })
}

/// Sets `struct_size` and the defaults. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_dataset_options_init(options: *mut lw_dataset_options) {
    if !options.is_null() {
        // SAFETY: the caller promises that it is writable.
        unsafe { options.write(DEFAULTS) };
    }
}

/// Finds the shards, and takes or builds their indexes. `LW_DATA` names the file and what is wrong with it;
/// `LW_NOT_FOUND` the path that leads to none. An index that cannot be kept (a full disk) is built again next time,
/// which the log says. On success `*out` is the caller's: free it with `lw_dataset_free`. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_dataset_open(options: *const lw_dataset_options, out: *mut *mut lw_dataset) -> lw_status {
    guard(|| {
        let out = arg::out(out, "out")?;
        // SAFETY: the caller promises options that begin with their size.
        let options = unsafe { arg::versioned(options, DEFAULTS) }?;
        // SAFETY: the caller promises that what the options point to is readable during this call.
        let (spec, open) = unsafe { (spec(&options)?, open_options(&options)?) };
        let handle = Box::new(lw_dataset::new(Dataset::open(&spec, &open)?));
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(Box::into_raw(handle)) };
        Ok(())
    })
}

/// # Safety
/// The options' strings are NULL or readable, and `paths` has `path_count` of them.
unsafe fn spec(given: &lw_dataset_options) -> Result<DatasetSpec> {
    // SAFETY: the caller's promise.
    let text = |pointer, name| unsafe { arg::c_string(pointer, name) };
    // SAFETY: the caller's promise.
    let paths = unsafe { arg::slice(given.paths, given.path_count, "paths") }?;
    if paths.is_empty() {
        return Err(Error::invalid("path_count is 0; expected at least one path"));
    }
    let path = |(i, path): (usize, &*const c_char)| {
        let path = text(*path, "path").and_then(|p| p.ok_or_else(|| arg::null("path")));
        path.map(str::to_owned).map_err(|e| e.within(format_args!("paths[{i}]")))
    };
    let paths: Vec<String> = paths.iter().enumerate().map(path).collect::<Result<_>>()?;
    let mut spec = DatasetSpec::new(text(given.name, "name")?.unwrap_or("dataset"), paths);
    spec.format = text(given.format, "format")?.map(Format::from_name).transpose()?;
    if let Some(field) = text(given.text_field, "text_field")? {
        spec.text_field = field.into();
    }
    if let Some(unit) = text(given.text_unit, "text_unit")? {
        spec.text_unit = TextUnit::from_name(unit)?;
    }
    if let Some(policy) = text(given.on_error, "on_error")? {
        spec.on_error = ErrorPolicy::from_name(policy)?;
    }
    Ok(spec)
}

/// # Safety
/// As [`spec`].
unsafe fn open_options(given: &lw_dataset_options) -> Result<OpenOptions> {
    // SAFETY: the caller's promise.
    let cache_dir = unsafe { arg::c_string(given.cache_dir, "cache_dir") }?.map(PathBuf::from);
    let stop = Stop::default();
    let told = progress(given.progress, given.progress_user, stop.clone(), &Gate::new());
    Ok(OpenOptions {
        cache_dir,
        threads: usize::try_from(given.threads).unwrap_or(usize::MAX),
        memory_budget: given.memory_budget,
        progress: told.map(|told| Arc::new(move |p: Progress| told("index", p.done_bytes, p.total_bytes)) as crate::data::ProgressFn),
        stop,
    })
}

/// How many documents there are, those that will be skipped included; 0 for NULL. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_dataset_documents(dataset: *const lw_dataset) -> u64 {
    // SAFETY: the caller promises NULL or a valid handle.
    unsafe { dataset.as_ref() }.map_or(0, |d| d.dataset.documents())
}

/// A hash of names, sizes and contents of all shards in order: equal where the same documents have the same numbers. 0
/// for NULL. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_dataset_fingerprint(dataset: *const lw_dataset) -> u64 {
    // SAFETY: the caller promises NULL or a valid handle.
    unsafe { dataset.as_ref() }.map_or(0, |d| d.dataset.fingerprint())
}

/// Bytes of shards that were read for documents so far; what indexing read is not counted. 0 for NULL. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_dataset_bytes_read(dataset: *const lw_dataset) -> u64 {
    // SAFETY: the caller promises NULL or a valid handle.
    unsafe { dataset.as_ref() }.map_or(0, |d| guard_or(0, || d.dataset.bytes_read()))
}

/// How many shards there are; 0 for NULL. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_dataset_shard_count(dataset: *const lw_dataset) -> usize {
    // SAFETY: the caller promises NULL or a valid handle.
    unsafe { dataset.as_ref() }.map_or(0, |d| d.shards.len())
}

/// Describes shard `index`. Its strings are valid until `lw_dataset_free`. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_dataset_shard(dataset: *const lw_dataset, index: usize, shard: *mut lw_shard) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let dataset = unsafe { arg::object(dataset, "dataset") }?;
        let out = arg::out(shard, "shard")?;
        let count = dataset.shards.len();
        let text = dataset.shards.get(index).ok_or_else(|| Error::invalid(format!("shard {index}: the dataset has {count}, numbered from 0")))?;
        let shard = &dataset.dataset.shards()[index];
        let described = lw_shard {
            path: text.path.as_ptr(),
            name: text.name.as_ptr(),
            format: format_name(shard.format).as_ptr(),
            damage: text.damage.as_ref().map_or(ptr::null(), |d| d.as_ptr()),
            size: shard.size,
            fingerprint: shard.fingerprint,
            first_document: shard.first_document,
            documents: shard.documents,
        };
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(described) };
        Ok(())
    })
}

fn format_name(format: Format) -> &'static CStr {
    match format {
        Format::Jsonl => c"jsonl",
        Format::Parquet => c"parquet",
        Format::Text => c"text",
    }
}

fn reason_name(reason: SkipReason) -> &'static CStr {
    match reason {
        SkipReason::BadJson => c"bad_json",
        SkipReason::BadUtf8 => c"bad_utf8",
        SkipReason::MissingField => c"missing_field",
        SkipReason::NullText => c"null_text",
        SkipReason::NotText => c"not_text",
        SkipReason::LoneSurrogate => c"lone_surrogate",
        SkipReason::Damaged => c"damaged",
    }
}

/// Copies all groups, in order, to `groups`, which has room for `capacity`; `*count` becomes their number in any case.
/// `capacity` 0 only asks for it. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_dataset_groups(dataset: *const lw_dataset, groups: *mut lw_group, capacity: usize, count: *mut usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let dataset = unsafe { arg::object(dataset, "dataset") }?;
        let all = dataset.dataset.groups();
        let group = |g: &crate::data::Group| lw_group { first_document: g.first_document, bytes: g.bytes, documents: g.documents, shard: g.shard };
        // SAFETY: the caller promises room for `capacity` groups.
        unsafe { arg::put_items(all.len(), all.iter().map(group), groups, capacity, count, "groups") }
    })
}

/// Says which shard and line, or row, a document comes from. May read the part of the file before it in its group. Any
/// thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_dataset_locate(dataset: *const lw_dataset, document: u64, location: *mut lw_location) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let dataset = unsafe { arg::object(dataset, "dataset") }?;
        let out = arg::out(location, "location")?;
        dataset.home.check("dataset")?;
        let found = dataset.dataset.locate(document)?;
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(lw_location { number: found.number, shard: found.shard, is_row: i32::from(found.row) }) };
        Ok(())
    })
}

/// Reads a document's text (UTF-8, which may hold NULs), and a NUL, into `buffer`. `*len` becomes the text's length
/// without the NUL; `capacity` 0 only asks for it. `*skipped` (may be NULL) becomes NULL, or, if the document has no
/// text and `on_error` leaves such out, why: one of "bad_json", "bad_utf8", "missing_field", "null_text", "not_text",
/// "lone_surrogate", "damaged", a static string; the text is empty then. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_dataset_read(
    dataset: *const lw_dataset,
    document: u64,
    buffer: *mut c_char,
    capacity: usize,
    len: *mut usize,
    skipped: *mut *const c_char,
) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let dataset = unsafe { arg::object(dataset, "dataset") }?;
        dataset.read(document, |text, status| {
            // SAFETY: the caller promises a buffer of that capacity.
            unsafe { arg::put_text(text, buffer, capacity, len) }?;
            if !skipped.is_null() {
                let reason = match status {
                    DocStatus::Ok => ptr::null(),
                    DocStatus::Skipped(reason) => reason_name(reason).as_ptr(),
                };
                // SAFETY: not NULL; the caller promises that it is writable.
                unsafe { skipped.write(reason) };
            }
            Ok(())
        })
    })
}

/// Frees a dataset made by `lw_dataset_open`; NULL is allowed. Not while another thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_dataset_free(dataset: *mut lw_dataset) {
    if !dataset.is_null() {
        // SAFETY: the caller promises a handle of this library that is freed once.
        let dataset = unsafe { Box::from_raw(dataset) };
        match dataset.home.is_here() {
            true => guard_or((), || drop(dataset)),
            // Another thread of the parent may have been changing what lies inside.
            false => std::mem::forget(dataset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_rust_side() {
        for format in [Format::Jsonl, Format::Parquet, Format::Text] {
            assert_eq!(format_name(format).to_str(), Ok(format.name()));
        }
        for reason in SkipReason::ALL {
            assert_eq!(reason_name(reason).to_str(), Ok(reason.name()));
        }
    }
}
