//! Functions of the user's on documents' texts, before they become tokens. `lw_loader_options` takes them.

use super::arg::{self, Sized_, User};
use super::gate::Gate;
use super::guard::{guard, set_message, take_message};
use super::status::lw_status;
use crate::base::{Error, Result, Status};
use crate::pipeline::{Function, TextFunction};
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The text that a map function makes; it exists during the call.
pub struct lw_text {
    text: String,
}

/// A function of the user's on a document's text, before it becomes tokens: a `map` or a `filter`. Fill it after
/// `lw_function_table_init`.
///
/// Functions run on any thread, on several at once, in any order, and again after a load: they must be pure, giving
/// the same for the same text. `text` is `len` bytes of UTF-8 without a NUL behind, valid during the call. One that
/// fails may say why with `lw_set_last_error`; the run fails at the row that needs the document. They must not throw,
/// and of the functions of their loader they may call `lw_loader_close`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_function_table {
    /// `sizeof(lw_function_table)`.
    pub struct_size: usize,
    /// Handed to the function.
    pub user: *mut c_void,
    /// Called once when the function is no longer used, on any thread. May be NULL.
    pub drop: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// As in the recipe's list `functions`, NUL-terminated UTF-8: a name with a version, "clean 2" say, that its
    /// author changes whenever it would do anything else than before. Copied.
    pub name: *const c_char,
    /// Appends the new text to `out`, which is empty, with `lw_text_append`. Returns 0 for success and anything else
    /// for failure.
    pub map: Option<unsafe extern "C" fn(user: *mut c_void, text: *const c_char, len: usize, out: *mut lw_text) -> i32>,
    /// Returns 1 if the document is kept, 0 if it is left out, and anything else for failure.
    pub filter: Option<unsafe extern "C" fn(user: *mut c_void, text: *const c_char, len: usize) -> i32>,
}

/// A table without a function.
const fn no_function() -> lw_function_table {
    lw_function_table { struct_size: size_of::<lw_function_table>(), user: ptr::null_mut(), drop: None, name: ptr::null(), map: None, filter: None }
}

// SAFETY: `repr(C)`, begins with a `usize`, without padding, and every field is a raw pointer or a function that may be NULL.
unsafe impl Sized_ for lw_function_table {
    const NAME: &'static str = "lw_function_table";
    const LEAST: usize = 48;
}

/// Sets `struct_size` and makes everything else empty. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_function_table_init(table: *mut lw_function_table) {
    if !table.is_null() {
        // SAFETY: the caller promises that it is writable.
        unsafe { table.write(no_function()) };
    }
}

/// Appends `len` bytes of UTF-8 to the text that a map function makes. They are copied. On the thread of that call
/// only.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_text_append(out: *mut lw_text, text: *const c_char, len: usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises the pointer that its map function was given, during that call, and `len` bytes at `text`.
        let (out, text) = unsafe { (out.as_mut().ok_or_else(|| arg::null("out"))?, arg::text(text, len, "text")?) };
        out.text.push_str(text);
        Ok(())
    })
}

/// The functions of a loader that is being opened.
pub(super) struct Functions {
    pub(super) functions: Vec<Function>,
    owners: Vec<Arc<Owner>>,
}

impl Functions {
    /// From now on they are the loader's: each `drop` is called when the last that may call the function is gone.
    pub(super) fn keep(self) {
        self.owners.iter().for_each(|owner| owner.keep());
    }
}

/// A table's `user` and `drop`. Not dropped unless the loader was opened.
pub(super) struct Owner {
    user: User,
    drop: Option<unsafe extern "C" fn(user: *mut c_void)>,
    kept: AtomicBool,
    gate: Arc<Gate>,
}

impl Owner {
    pub(super) fn new(user: *mut c_void, drop: Option<unsafe extern "C" fn(user: *mut c_void)>, gate: &Arc<Gate>) -> Arc<Owner> {
        Arc::new(Owner { user: User { user, drop: None }, drop, kept: AtomicBool::new(false), gate: Arc::clone(gate) })
    }

    /// Calls one of the table's functions with its `user`.
    pub(super) fn call<T>(&self, call: impl FnOnce(*mut c_void) -> T) -> Result<T> {
        self.gate.call(|| call(self.user.get()))
    }

    pub(super) fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let (true, Some(drop)) = (*self.kept.get_mut(), self.drop) {
            // SAFETY: the caller gave `drop` for `user`, to be called once when nobody calls the functions any more; this is the last owner.
            let _ = self.gate.call(|| unsafe { drop(self.user.get()) });
        }
    }
}

/// The functions of these tables, in their order. Whether they are those that the recipe names is the loader's to say.
///
/// # Safety
/// Each pointer is NULL or leads to a table that begins with its size and whose name is NULL or NUL-terminated; its functions can be called as
/// their documentation says.
pub(super) unsafe fn functions(tables: &[*const lw_function_table], gate: &Arc<Gate>) -> Result<Functions> {
    let mut given = Functions { functions: Vec::with_capacity(tables.len()), owners: Vec::with_capacity(tables.len()) };
    for (i, table) in tables.iter().enumerate() {
        // SAFETY: the caller's promise.
        let (function, owner) = unsafe { function(*table, gate) }.map_err(|e| e.within(format_args!("functions[{i}]")))?;
        if given.functions.iter().any(|f| f.name == function.name) {
            return Err(Error::invalid(format!("functions[{i}]: '{}' is given twice", function.name)));
        }
        given.functions.push(function);
        given.owners.push(owner);
    }
    Ok(given)
}

/// # Safety
/// As [`functions`].
unsafe fn function(table: *const lw_function_table, gate: &Arc<Gate>) -> Result<(Function, Arc<Owner>)> {
    // SAFETY: the caller promises a table that begins with its size.
    let table = unsafe { arg::versioned(table, no_function()) }?;
    // SAFETY: the caller promises NULL or a NUL-terminated name.
    let name = unsafe { arg::c_string(table.name, "name") }?.ok_or_else(|| arg::null("name"))?;
    if name.is_empty() {
        return Err(Error::invalid("name is empty"));
    }
    let owner = Owner::new(table.user, table.drop, gate);
    let held = Arc::clone(&owner);
    let function = match (table.map, table.filter) {
        (Some(map), None) => TextFunction::Map(Arc::new(move |text, out| {
            let mut sink = lw_text { text: std::mem::take(out) };
            set_message("");
            // SAFETY: whoever filled the table promised a function that may be called on any thread with its `user` until `drop`, which `held` puts
            // off; `text` and `sink` outlive the call.
            let code = held.call(|user| unsafe { map(user, text.as_ptr().cast::<c_char>(), text.len(), &raw mut sink) })?;
            *out = sink.text;
            if code == 0 { Ok(()) } else { Err(failed(code)) }
        })),
        (None, Some(filter)) => TextFunction::Filter(Arc::new(move |text| {
            set_message("");
            // SAFETY: as above.
            match held.call(|user| unsafe { filter(user, text.as_ptr().cast::<c_char>(), text.len()) })? {
                0 => Ok(false),
                1 => Ok(true),
                code => Err(failed(code)),
            }
        })),
        (None, None) => return Err(Error::invalid(format!("function '{name}' has neither map nor filter; set one"))),
        (Some(_), Some(_)) => {
            return Err(Error::invalid(format!("function '{name}' has both map and filter; set one, and give the other a name of its own")));
        }
    };
    Ok((Function { name: name.to_owned(), function }, owner))
}

/// What a callback that returned `code` said with `lw_set_last_error`.
pub(super) fn failed(code: i32) -> Error {
    let said = take_message();
    Error::new(Status::Data, if said.is_empty() { format!("it returned {code} and gave no reason") } else { said })
}
