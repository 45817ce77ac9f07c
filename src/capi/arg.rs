//! Checks of what C hands in, each giving an error that names the argument.

use super::gate::Gate;
use crate::base::{Error, Result, Status};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;

/// The object behind a pointer, or "`name` is NULL".
///
/// # Safety
/// `pointer` is NULL or points to a valid `T` that nobody changes or frees during `'a`.
pub(super) unsafe fn object<'a, T>(pointer: *const T, name: &str) -> Result<&'a T> {
    // SAFETY: the caller's promise is that of `as_ref`.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(name))
}

/// Checks that a result can be written there. Its old content is never read.
pub(super) fn out<T>(pointer: *mut T, name: &str) -> Result<*mut T> {
    if pointer.is_null() { Err(null(name)) } else { Ok(pointer) }
}

/// The `len` elements at `pointer`, to be written; NULL is allowed when `len` is 0.
///
/// # Safety
/// Unless NULL, `pointer` points to `len` valid `T`s that nobody else reads or writes during `'a`.
pub(super) unsafe fn slice_mut<'a, T>(pointer: *mut T, len: usize, name: &str) -> Result<&'a mut [T]> {
    // SAFETY: the caller's promise, which is a stronger one.
    unsafe { slice(pointer, len, name) }?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: checked above to be neither NULL, nor unaligned, nor too long; the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, len) })
}

/// The `len` elements at `pointer`; NULL is allowed when `len` is 0.
///
/// # Safety
/// Unless NULL, `pointer` points to `len` valid `T`s that nobody changes during `'a`.
pub(super) unsafe fn slice<'a, T>(pointer: *const T, len: usize, name: &str) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(null(name));
    }
    if len > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Error::invalid(format!("{name}: {len} elements do not fit into memory")));
    }
    if !pointer.is_aligned() {
        return Err(Error::invalid(format!("{name} is not aligned to {} bytes", align_of::<T>())));
    }
    // SAFETY: not NULL, aligned, and not longer than an allocation can be; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
}

/// The bytes at `pointer`, none if it is NULL.
///
/// # Safety
/// Unless NULL, `pointer` points to `len` bytes that nobody changes during `'a`.
pub(super) unsafe fn bytes_or_empty<'a>(pointer: *const u8, len: usize) -> &'a [u8] {
    // SAFETY: the caller's promise is that of `slice`.
    unsafe { slice(pointer, if pointer.is_null() { 0 } else { len }, "text") }.unwrap_or(&[])
}

/// UTF-8 text of `len` bytes, copied by whoever keeps it.
///
/// # Safety
/// As [`slice()`].
pub(super) unsafe fn text<'a>(pointer: *const c_char, len: usize, name: &str) -> Result<&'a str> {
    // SAFETY: the caller's promise is that of `slice`; c_char and u8 have the same size and alignment.
    let bytes = unsafe { slice(pointer.cast::<u8>(), len, name) }?;
    utf8(bytes, name)
}

/// A NUL-terminated string, `None` if NULL.
///
/// # Safety
/// Unless NULL, `pointer` points to a NUL-terminated string that nobody changes during `'a`.
pub(super) unsafe fn c_string<'a>(pointer: *const c_char, name: &str) -> Result<Option<&'a str>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL, and NUL-terminated by the caller's promise.
    utf8(unsafe { CStr::from_ptr(pointer) }.to_bytes(), name).map(Some)
}

fn utf8<'a>(bytes: &'a [u8], name: &str) -> Result<&'a str> {
    std::str::from_utf8(bytes).map_err(|e| Error::invalid(format!("{name} is not UTF-8: {e}")))
}

/// Copies a text and its NUL into the caller's buffer; `*len` becomes the text's length without the NUL in any case. A
/// buffer of capacity 0 only asks for the length.
///
/// # Safety
/// `buffer` points to `capacity` writable bytes unless `capacity` is 0, and `len` to a writable `usize` or is NULL.
pub(super) unsafe fn put_text(text: &str, buffer: *mut c_char, capacity: usize, len: *mut usize) -> Result<()> {
    // SAFETY: the caller's promise, after the check for NULL.
    unsafe { out(len, "len")?.write(text.len()) };
    if capacity == 0 {
        return Ok(());
    }
    if capacity <= text.len() {
        let need = text.len() + 1;
        return Err(Error::invalid(format!("capacity is {capacity} bytes, but the text and its NUL need {need}")));
    }
    let buffer = out(buffer, "buffer")?.cast::<u8>();
    // SAFETY: `capacity` > `text.len()` bytes are writable at `buffer`, and a Rust string does not overlap C's buffer.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), buffer, text.len());
        buffer.add(text.len()).write(0);
    }
    Ok(())
}

/// Copies bytes into the caller's buffer; `*len` becomes their number in any case. A buffer of capacity 0 only asks for it.
///
/// # Safety
/// `buffer` points to `capacity` writable bytes unless `capacity` is 0, and `len` to a writable `usize` or is NULL.
pub(super) unsafe fn put_bytes(bytes: &[u8], buffer: *mut c_void, capacity: usize, len: *mut usize) -> Result<()> {
    // SAFETY: the caller's promise; bytes have no alignment.
    unsafe { put_items(bytes.len(), bytes.iter().copied(), buffer.cast::<u8>(), capacity, len, "buffer") }
}

/// Copies `items`, of which there are `n`, into the caller's array of that name; `*count` becomes `n` in any case. An array of capacity 0
/// only asks for it.
///
/// # Safety
/// `array` points to room for `capacity` items unless `capacity` is 0, and `count` to a writable `usize` or is NULL.
pub(super) unsafe fn put_items<T>(
    n: usize,
    items: impl Iterator<Item = T>,
    array: *mut T,
    capacity: usize,
    count: *mut usize,
    name: &str,
) -> Result<()> {
    // SAFETY: the caller's promise, after the check for NULL.
    unsafe { out(count, "count")?.write(n) };
    if capacity == 0 || n == 0 {
        return Ok(());
    }
    if capacity < n {
        return Err(Error::invalid(format!("capacity is {capacity}, but there are {n} to put into {name}")));
    }
    let array = out(array, name)?;
    for (i, item) in items.take(n).enumerate() {
        // SAFETY: `i` < `n` ≤ `capacity`, for which the caller promises room.
        unsafe { array.add(i).write(item) };
    }
    Ok(())
}

/// The largest `struct_size` that is believed: more can only be an uninitialised field.
const MOST: usize = 4096;

/// Marks structs that begin with `size_t struct_size` and that all-zero bytes are a valid value of.
///
/// # Safety
/// The type is `repr(C)`, its first field is a `usize`, it has no padding, and every bit pattern is a valid value.
pub(super) unsafe trait Sized_: Copy {
    /// Its name in C.
    const NAME: &'static str;
    /// Its size in the first version that had it: the least that a program can have been compiled with.
    const LEAST: usize;
}

/// Reads a struct that the caller's header may have known shorter or longer than this library does: what is not there
/// keeps the value of `defaults`; what this library does not know must be zero.
///
/// # Safety
/// `pointer` is NULL or points to a `usize` n and, counted from there, n initialised bytes.
pub(super) unsafe fn versioned<T: Sized_>(pointer: *const T, defaults: T) -> Result<T> {
    const { assert!(T::LEAST <= size_of::<T>()) };
    let name = T::NAME;
    if pointer.is_null() {
        return Err(null(name));
    }
    let mismatch = |what: String| Err(Error::new(Status::AbiMismatch, format!("{name}.struct_size is {what}")));
    // SAFETY: not NULL, and by `Sized_` the first field is a `usize`.
    let size = unsafe { pointer.cast::<usize>().read_unaligned() };
    if size < T::LEAST || size > MOST {
        return mismatch(format!("{size}, but it is at least {}; call its _init function first", T::LEAST));
    }
    let mut value = defaults;
    let known = size.min(size_of::<T>());
    // SAFETY: `size` bytes are readable by the caller's promise, `known` of them fit into `value`, and by `Sized_` any
    // bytes are a valid `T`. The two do not overlap: `value` is a local.
    unsafe { ptr::copy_nonoverlapping(pointer.cast::<u8>(), (&raw mut value).cast::<u8>(), known) };
    // SAFETY: bytes `known..size` are readable by the caller's promise.
    let unknown = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>().add(known), size - known) };
    if unknown.iter().any(|b| *b != 0) {
        return mismatch(format!("{size}: the header is newer than the library, which knows {known} bytes, and a field beyond is set"));
    }
    Ok(value)
}

/// "`name` is NULL".
pub(super) fn null(name: &str) -> Error {
    Error::invalid(format!("{name} is NULL"))
}

/// A truth value that came as an `int32_t`.
pub(super) fn flag(value: i32, name: &str) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Error::invalid(format!("{name} is {other}; expected 0 or 1"))),
    }
}

/// The `user` pointer of a callback together with its destructor, which runs exactly once, unless `lw_callbacks_end` came before.
pub(super) struct User {
    pub(super) user: *mut c_void,
    pub(super) drop: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

impl User {
    pub(super) fn get(&self) -> *mut c_void {
        self.user
    }
}

// SAFETY: the pointer is never dereferenced here; every callback type of the header says on which threads it and its
// `drop` run, and passing it there is all that this type does.
unsafe impl Send for User {}
// SAFETY: as above; shared access only hands the pointer out.
unsafe impl Sync for User {}

impl Drop for User {
    fn drop(&mut self) {
        if let Some(drop) = self.drop {
            // SAFETY: the caller gave `drop` for `user`; this value is the only owner, so it runs once.
            let _ = Gate::new().call(|| unsafe { drop(self.user) });
        }
    }
}
