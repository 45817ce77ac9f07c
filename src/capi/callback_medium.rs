//! Media that are tables of C functions: `lw_medium_table` as a [`Medium`], `lw_attach_table` as an [`Attach`].

use super::arg::{self, User};
use super::gate::Gate;
use super::guard::{set_message, take_message};
use super::medium::{empty_medium_table, lw_attach_table, lw_medium_table, read_medium_table};
use crate::base::{Error, Result, Status};
use crate::medium::{Attach, Medium};
use std::ffi::CString;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One medium. The functions of `table` are called with `user`, whose `drop` runs when this is dropped.
pub(super) struct CallbackMedium {
    table: lw_medium_table,
    kind: String,
    buf_name: String,
    user: User,
    gate: Arc<Gate>,
}

// SAFETY: the table's documentation requires functions that may run on any thread, several at once for different slots
// (which is how the exchange uses a medium); its string pointers are not used after `new`.
unsafe impl Send for CallbackMedium {}
// SAFETY: as above.
unsafe impl Sync for CallbackMedium {}

impl CallbackMedium {
    /// The student's side.
    ///
    /// # Safety
    /// The table's strings are NULL or NUL-terminated; its functions are what their documentation says.
    pub(super) unsafe fn new(table: &lw_medium_table) -> Result<CallbackMedium> {
        // SAFETY: the caller's promise.
        let (kind, buf_name) = unsafe { (kind_of(table.kind)?, arg::c_string(table.buf_name, "buf_name")?) };
        let buf_name = buf_name.ok_or_else(|| arg::null("buf_name"))?.to_owned();
        if table.slot_count == 0 || table.slot_stride == 0 {
            return Err(Error::invalid(format!("slot_count is {} and slot_stride is {}; neither may be 0", table.slot_count, table.slot_stride)));
        }
        CallbackMedium::checked(*table, kind, buf_name)
    }

    /// The functions that there must be, given that the rest is right.
    fn checked(table: lw_medium_table, kind: String, buf_name: String) -> Result<CallbackMedium> {
        for (present, name) in [(table.read.is_some(), "read"), (table.write.is_some(), "write")] {
            if !present {
                return Err(Error::invalid(format!("{name} is NULL; a medium of kind '{kind}' needs it")));
            }
        }
        Ok(CallbackMedium { table, kind, buf_name, user: User { user: table.user, drop: table.drop }, gate: Gate::new() })
    }

    /// Runs one function; its failure becomes an error that names the medium, what was done, and the reason that it gave.
    fn call(&self, what: &str, slot: Option<u32>, function: impl FnOnce(*mut std::ffi::c_void) -> i32) -> Result<()> {
        set_message("");
        match self.gate.call(|| function(self.user.get()))? {
            0 => Ok(()),
            code => Err(refused(&format!("medium '{}' ({}), {what}", self.kind, self.buf_name), slot, code)),
        }
    }
}

fn refused(who: &str, slot: Option<u32>, code: i32) -> Error {
    let slot = slot.map(|s| format!(" slot {s}")).unwrap_or_default();
    let reason = Some(take_message()).filter(|m| !m.is_empty()).unwrap_or_else(|| "no reason given".into());
    Error::new(Status::Io, format!("{who}{slot} returned {code}: {reason}"))
}

/// # Safety
/// NULL or NUL-terminated.
unsafe fn kind_of(kind: *const std::ffi::c_char) -> Result<String> {
    // SAFETY: the caller's promise.
    let kind = unsafe { arg::c_string(kind, "kind") }?.ok_or_else(|| arg::null("kind"))?;
    if kind.is_empty() || kind.len() > 31 || matches!(kind, "shm" | "file" | "cuda") {
        return Err(Error::invalid(format!("kind is '{kind}'; expected 1 to 31 bytes, and not 'shm', 'file' or 'cuda', which are built in")));
    }
    Ok(kind.to_owned())
}

/// A student's share of a custom medium; the other is the handle's, which may be freed before or after.
pub(super) struct Shared(pub(super) Arc<CallbackMedium>);

impl Medium for Shared {
    fn kind(&self) -> &str {
        &self.0.kind
    }

    fn buf_name(&self) -> &str {
        &self.0.buf_name
    }

    fn slot_count(&self) -> u32 {
        self.0.table.slot_count
    }

    fn slot_stride(&self) -> usize {
        self.0.table.slot_stride
    }

    fn slot(&self, slot: u32) -> Option<NonNull<u8>> {
        // SAFETY: the table's author promises that it may be called with this `user` on any thread.
        let address = self.0.table.slot.and_then(|f| self.0.gate.call(|| unsafe { f(self.0.user.get(), slot) }).ok())?;
        NonNull::new(address.cast())
    }

    fn reserve(&self, slots: u32) -> Result<()> {
        match self.0.table.reserve {
            None => Ok(()),
            // SAFETY: as in `slot`.
            Some(f) => self.0.call("reserve", None, |user| unsafe { f(user, slots) }),
        }
    }

    fn read(&self, slot: u32, out: &mut [u8]) -> Result<()> {
        let f = self.0.table.read.ok_or_else(|| arg::null("read"))?;
        // SAFETY: as in `slot`; `out` has that many writable bytes.
        self.0.call("read", Some(slot), |user| unsafe { f(user, slot, out.as_mut_ptr().cast(), out.len()) })
    }

    fn write(&self, slot: u32, data: &[u8]) -> Result<()> {
        let f = self.0.table.write.ok_or_else(|| arg::null("write"))?;
        // SAFETY: as in `slot`; `data` has that many readable bytes.
        self.0.call("write", Some(slot), |user| unsafe { f(user, slot, data.as_ptr().cast(), data.len()) })
    }

    fn share(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: as in `slot`.
        let fd = self.0.table.share.and_then(|f| self.0.gate.call(|| unsafe { f(self.0.user.get()) }).ok())?;
        // SAFETY: the table's author promises that the descriptor stays open for as long as the medium, which outlives the borrow.
        (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    fn unlink(&self) -> Result<()> {
        match self.0.table.unlink {
            None => Ok(()),
            // SAFETY: as in `slot`.
            Some(f) => self.0.call("unlink", None, |user| unsafe { f(user) }),
        }
    }
}

/// The worker's side of one kind of medium.
pub(super) struct CallbackAttach(Arc<Inner>);

struct Inner {
    attach: AttachFn,
    kind: String,
    user: User,
    /// Only once the worker is open does `user` become ours to drop.
    kept: AtomicBool,
}

type AttachFn = unsafe extern "C" fn(*mut std::ffi::c_void, *const std::ffi::c_char, i32, u32, usize, *mut lw_medium_table) -> i32;

impl Drop for Inner {
    fn drop(&mut self) {
        if !*self.kept.get_mut() {
            self.user.drop = None;
        }
    }
}

impl CallbackAttach {
    /// # Safety
    /// The table's string is NULL or NUL-terminated; its functions are what their documentation says.
    pub(super) unsafe fn new(table: &lw_attach_table) -> Result<CallbackAttach> {
        // SAFETY: the caller's promise.
        let kind = unsafe { kind_of(table.kind) }?;
        let attach = table.attach.ok_or_else(|| arg::null("attach"))?;
        let user = User { user: table.user, drop: table.drop };
        Ok(CallbackAttach(Arc::new(Inner { attach, kind, user, kept: AtomicBool::new(false) })))
    }

    /// Another handle on the same, for the worker's options.
    pub(super) fn shared(&self) -> Box<dyn Attach> {
        Box::new(CallbackAttach(Arc::clone(&self.0)))
    }

    /// The worker is open: from now on `drop` will be called.
    pub(super) fn keep(&self) {
        self.0.kept.store(true, Ordering::Relaxed);
    }
}

impl Attach for CallbackAttach {
    fn kind(&self) -> &str {
        &self.0.kind
    }

    fn attach(&self, buf_name: &str, fd: Option<OwnedFd>, slot_count: u32, slot_stride: usize) -> Result<Box<dyn Medium>> {
        let who = format!("medium '{}' ({buf_name}), attach", self.0.kind);
        let name = CString::new(buf_name).map_err(|_| Error::new(Status::Corrupt, format!("{who}: the name holds a NUL")))?;
        let fd = fd.map_or(-1, IntoRawFd::into_raw_fd);
        let mut table = empty_medium_table();
        set_message("");
        // SAFETY: the table's author promises a function that takes these arguments on this thread; `table` is writable.
        let code = Gate::new().call(|| unsafe { (self.0.attach)(self.0.user.get(), name.as_ptr(), fd, slot_count, slot_stride, &raw mut table) })?;
        if code != 0 {
            return Err(refused(&who, None, code));
        }
        // SAFETY: the callee filled a table that begins with its size.
        let mut table = unsafe { read_medium_table(&raw const table) }?;
        (table.slot_count, table.slot_stride) = (slot_count, slot_stride);
        Ok(Box::new(Shared(Arc::new(CallbackMedium::checked(table, self.0.kind.clone(), buf_name.to_owned())?))))
    }
}
