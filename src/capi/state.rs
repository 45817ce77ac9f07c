//! Where a loader stands, saved and loaded: what makes a run go on, on any number of ranks.

use super::arg;
use super::guard::guard;
use super::loader::lw_loader;
use super::status::lw_status;
use crate::base::{Error, Result, Status};
use crate::pipeline::Checkpoint;
use std::ffi::{c_char, c_void};

/// A state that was saved: the bytes of `lw_loader_save`, or the JSON text of `lw_loader_save_json`, which may be
/// several ranks' merged.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_state {
    /// Its bytes.
    pub data: *const c_void,
    /// How many.
    pub len: usize,
}

/// Saves where the loader stands after the last batch that `lw_loader_next` returned: entries, by lane, for this
/// rank's lanes. Changes nothing. Writes it into `buffer`; `*len` becomes its number of bytes in any case; `capacity`
/// 0 only asks for it. Its size does not depend on how far the run has come.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_save(loader: *const lw_loader, buffer: *mut c_void, capacity: usize, len: *mut usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let bytes = unsafe { arg::object(loader, "loader") }?.enter()?.loader().save()?.to_bytes();
        // SAFETY: the caller promises a buffer of that capacity.
        unsafe { arg::put_bytes(&bytes, buffer, capacity, len) }
    })
}

/// The same as one JSON object, `{"meta": …, "lanes": {"17": "<base64>", …}}`, NUL-terminated. `meta` is the same on
/// all ranks, and each lane is one rank's: merging the ranks' objects key by key gives the state of the whole run.
/// `*len` becomes its length without the NUL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_save_json(loader: *const lw_loader, buffer: *mut c_char, capacity: usize, len: *mut usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let text = unsafe { arg::object(loader, "loader") }?.enter()?.loader().save()?.to_json();
        // SAFETY: the caller promises a buffer of that capacity.
        unsafe { arg::put_text(&text, buffer, capacity, len) }
    })
}

/// Goes on from `count` states of one moment of one run, of any number of ranks, which together hold at least this
/// rank's lanes: `LW_NOT_FOUND` names the lane that is missing. What would give other rows (a changed recipe,
/// tokenizer or shard) is refused by its name (`LW_REFUSED`), and a damaged state is `LW_CORRUPT`; the loader then
/// stays where it was.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_load(loader: *const lw_loader, states: *const lw_state, count: usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle and `count` states.
        let (loader, states) = unsafe { (arg::object(loader, "loader")?, arg::slice(states, count, "states")?) };
        let mut whole: Option<Checkpoint> = None;
        for (i, state) in states.iter().enumerate() {
            // SAFETY: the caller promises `len` bytes at `data`.
            let bytes = unsafe { arg::slice(state.data.cast::<u8>(), state.len, "data") };
            let state = bytes.and_then(checkpoint).and_then(|state| match &mut whole {
                Some(whole) => whole.merge(state),
                None => {
                    whole = Some(state);
                    Ok(())
                }
            });
            state.map_err(|e| e.within(format_args!("states[{i}]")))?;
        }
        let whole = whole.ok_or_else(|| Error::invalid("count is 0; expected at least one state"))?;
        loader.enter()?.loader().load(&whole)
    })
}

/// Either form of a state.
fn checkpoint(bytes: &[u8]) -> Result<Checkpoint> {
    match bytes.iter().find(|b| !b.is_ascii_whitespace()) {
        Some(b'{') => {
            let text =
                std::str::from_utf8(bytes).map_err(|e| Error::new(Status::Corrupt, format!("this is not a checkpoint, or it is damaged: {e}")))?;
            Checkpoint::from_json(text)
        }
        _ => Checkpoint::from_bytes(bytes),
    }
}
