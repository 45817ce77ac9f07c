//! The border between Rust's errors and C's: a status that is returned, and a message that the thread keeps.

use super::status::lw_status;
use crate::base::{Error, Result, Status, log};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
    /// How many guards are on this thread's stack, and where the last panic inside them came from.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs the body of an exported function. An error or a panic becomes the thread's message and the returned status.
pub(super) fn guard(body: impl FnOnce() -> Result<()>) -> lw_status {
    match catch(body).and_then(|done| done) {
        Ok(()) => lw_status::LW_OK,
        Err(error) => fail(&error),
    }
}

/// For functions that return nothing or a plain value: a panic becomes the thread's message and `fallback` is returned.
pub(super) fn guard_or<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    catch(body).unwrap_or_else(|error| {
        fail(&error);
        fallback
    })
}

fn fail(error: &Error) -> lw_status {
    set_message(&error.message);
    error.status.into()
}

/// Makes `text` the thread's message. A NUL in it, from a path say, would end it early for C, so it is shown as U+FFFD.
pub(super) fn set_message(text: &str) {
    let text = c_text(text);
    // A thread that is being torn down has no message any more: there is nobody left to read it.
    let _ = MESSAGE.try_with(|m| m.replace(text));
}

/// A message as C has it: NULs, which would end it early, are replaced.
pub(super) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

/// The thread's message; it stays where it is until the next failure on this thread.
pub(super) fn message() -> *const c_char {
    MESSAGE.try_with(|m| m.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Takes the thread's message, so that an old one is not mistaken for the answer of a callback.
pub(super) fn take_message() -> String {
    MESSAGE.try_with(|m| m.take().to_string_lossy().into_owned()).unwrap_or_default()
}

fn catch<T>(body: impl FnOnce() -> T) -> Result<T> {
    first_call();
    let _ = DEPTH.try_with(|d| d.set(d.get() + 1));
    let outcome = catch_unwind(AssertUnwindSafe(body));
    let _ = DEPTH.try_with(|d| d.set(d.get() - 1));
    outcome.map_err(|panic| {
        let place = PLACE.try_with(RefCell::take).unwrap_or_default();
        Error::new(Status::Panic, format!("a fault in the library (please report it): panicked{place}: {}", text_of(&*panic)))
    })
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "no text",
    }
}

/// What a C program cannot set up by itself: warnings reach standard error although nobody asked for a log, and a panic that a guard catches is told
/// through the message, since printing it as well would only frighten. Panics anywhere else (the library's own threads, a Rust host) go to the
/// hook that was there before.
fn first_call() {
    static FIRST: Once = Once::new();
    FIRST.call_once(|| {
        log::install();
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if DEPTH.try_with(Cell::get).unwrap_or(0) == 0 {
                return before(info);
            }
            let place = info.location().map(|l| format!(" at {}:{}", l.file(), l.line())).unwrap_or_default();
            let _ = PLACE.try_with(|p| p.replace(place));
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn text() -> String {
        // SAFETY: `message` returns this thread's NUL-terminated string, which lives until the thread's next failure.
        unsafe { CStr::from_ptr(message()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_does_not_cross_and_says_where_it_was() {
        assert_eq!(guard(|| panic!("odd number {}", 3)), lw_status::LW_PANIC);
        assert!(text().contains("odd number 3") && text().contains("guard.rs"), "{}", text());
        assert_eq!(guard_or(7, || panic!("no")), 7);
    }

    #[test]
    fn an_error_gives_its_status_and_its_message_to_this_thread_alone() {
        assert_eq!(guard(|| Err(Error::invalid("slot_count is 0"))), lw_status::LW_INVALID_ARGUMENT);
        assert_eq!(text(), "slot_count is 0");
        std::thread::spawn(|| assert_eq!(text(), "")).join().unwrap();
        assert_eq!(guard(|| Ok(())), lw_status::LW_OK);
        assert_eq!(text(), "slot_count is 0", "success leaves the message alone");
    }

    #[test]
    fn a_nul_does_not_cut_a_message_short() {
        set_message("one\0two");
        assert_eq!(text(), "one\u{fffd}two");
    }
}
