//! User functions written in C, as the pipeline knows them.

use super::arg::{self, User};
use super::guard::{set_message, take_message};
use super::loader::{lw_function_table, lw_text, no_function};
use crate::base::{Error, Result, Status};
use crate::pipeline::{Function, TextFunction};
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The functions of a loader that is being opened.
pub(super) struct Functions {
    /// In the recipe's order.
    pub(super) functions: Vec<Function>,
    owners: Vec<Arc<Owner>>,
}

impl Functions {
    /// From now on they are the loader's: each `drop` is called when the last that may call the function is gone.
    pub(super) fn keep(self) {
        self.owners.iter().for_each(|owner| owner.kept.store(true, Ordering::Relaxed));
    }
}

/// A table's `user` and `drop`. Not dropped unless the loader was opened.
struct Owner {
    user: User,
    drop: Option<unsafe extern "C" fn(user: *mut c_void)>,
    kept: AtomicBool,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if *self.kept.get_mut() {
            self.user.drop = self.drop;
        }
    }
}

/// The functions that a recipe names, in its order. Every name needs a table, and every table a name.
///
/// # Safety
/// Each pointer is NULL or leads to a table that begins with its size and whose name is NULL or NUL-terminated; its functions can be called as
/// their documentation says.
pub(super) unsafe fn functions(names: &[String], tables: &[*const lw_function_table]) -> Result<Functions> {
    let mut given: Vec<(Function, Arc<Owner>)> = Vec::with_capacity(tables.len());
    for (i, table) in tables.iter().enumerate() {
        // SAFETY: the caller's promise.
        let made = unsafe { function(*table) }.map_err(|e| e.within(format_args!("functions[{i}]")))?;
        if given.iter().any(|(f, _)| f.name == made.0.name) {
            return Err(Error::invalid(format!("functions[{i}]: '{}' is given twice", made.0.name)));
        }
        given.push(made);
    }
    if let Some((extra, _)) = given.iter().find(|(f, _)| !names.contains(&f.name)) {
        let named = if names.is_empty() { "none: put functions = [\"…\"] at its top".to_owned() } else { names.join(", ") };
        return Err(Error::invalid(format!("function '{}' is not in the recipe, which names {named}", extra.name)));
    }
    let of = |name: &String| {
        let found = given.iter().find(|(f, _)| f.name == *name).map(|(f, _)| f.clone());
        found.ok_or_else(|| Error::invalid(format!("the recipe names function '{name}', which is not among the {} given", tables.len())))
    };
    let functions = names.iter().map(of).collect::<Result<_>>()?;
    Ok(Functions { functions, owners: given.into_iter().map(|(_, owner)| owner).collect() })
}

/// # Safety
/// As [`functions`].
unsafe fn function(table: *const lw_function_table) -> Result<(Function, Arc<Owner>)> {
    // SAFETY: the caller promises a table that begins with its size.
    let table = unsafe { arg::versioned(table, no_function()) }?;
    // SAFETY: the caller promises NULL or a NUL-terminated name.
    let name = unsafe { arg::c_string(table.name, "name") }?.ok_or_else(|| arg::null("name"))?;
    if name.is_empty() {
        return Err(Error::invalid("name is empty"));
    }
    let owner = Arc::new(Owner { user: User { user: table.user, drop: None }, drop: table.drop, kept: AtomicBool::new(false) });
    let held = Arc::clone(&owner);
    let function = match (table.map, table.filter) {
        (Some(map), None) => TextFunction::Map(Arc::new(move |text, out| {
            let mut sink = lw_text { text: std::mem::take(out) };
            set_message("");
            // SAFETY: whoever filled the table promised a function that may be called on any thread with its `user` until `drop`, which `held` puts
            // off; `text` and `sink` outlive the call.
            let code = unsafe { map(held.user.get(), text.as_ptr().cast::<c_char>(), text.len(), &raw mut sink) };
            *out = sink.text;
            if code == 0 { Ok(()) } else { Err(failed(code)) }
        })),
        (None, Some(filter)) => TextFunction::Filter(Arc::new(move |text| {
            set_message("");
            // SAFETY: as above.
            match unsafe { filter(held.user.get(), text.as_ptr().cast::<c_char>(), text.len()) } {
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

fn failed(code: i32) -> Error {
    let said = take_message();
    Error::new(Status::Data, if said.is_empty() { format!("it returned {code} and gave no reason") } else { said })
}
