//! Operators of the user's between documents and rows: they drop, cut, hold back, repeat or reorder documents, with a
//! state, in the order of each lane. `lw_loader_options` takes them; they run one behind the other.
//!
//! An operator decides; it makes no tokens. A *piece* is consecutive tokens of one document: an operator is given pieces,
//! at first whole documents, and hands on pieces of them. So whatever it holds is written into a checkpoint as pointers,
//! and is made again from the data after a load.
//!
//! Each lane has a state of its own, which `open` makes. The functions of one state are called by one thread at a time,
//! and by any; those of several lanes at once. They must not throw, and of the functions of their loader they may
//! call `lw_loader_close`. One that fails (it returns anything but 0) may say why with `lw_set_last_error`; the run fails at the
//! row that needed it.

use super::arg::{self, Sized_};
use super::function::{Owner, failed};
use super::gate::Gate;
use super::guard::{guard, set_message};
use super::status::lw_status;
use crate::base::{Error, Result, Status};
use crate::pipeline::{Ids, Operator, OperatorMaker, Piece};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;

/// Consecutive tokens of one document.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_piece {
    /// By which this lane's operator calls it, while it is held. A load gives new numbers, from 0, in the old order.
    pub number: u64,
    /// The document's number in its dataset.
    pub document: u64,
    /// Which of the recipe's datasets, from 0.
    pub dataset: u32,
    /// The lane.
    pub lane: u32,
    /// The place of its first token in the document's tokens, from 0.
    pub start: u32,
    /// How many tokens; at least 1.
    pub length: u32,
    /// The tokens, until the call returns; NULL in `load`, when they are not made yet.
    pub tokens: *const u32,
}

/// The pieces that an operator holds in a lane, and what it hands on: an argument of its functions, for use during the
/// call, on its thread.
pub struct lw_pieces {
    lane: u32,
    held: BTreeMap<u64, Piece>,
    next: u64,
    /// The piece that is pushed: let go after the call, unless it is held.
    pushed: Option<u64>,
    emitted: Vec<Piece>,
    /// Pieces that a load gave have no tokens before it has returned.
    loading: bool,
}

/// An operator. Fill it after `lw_operator_table_init`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_operator_table {
    /// `sizeof(lw_operator_table)`.
    pub struct_size: usize,
    /// Handed to each function.
    pub user: *mut c_void,
    /// Called once when the operator is no longer used, on any thread, after the last `close`. May be NULL.
    pub drop: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// As in the recipe's list `functions`, behind the functions' names, NUL-terminated UTF-8: a name with a version,
    /// "dedupe 2" say, that its author changes whenever it would do anything else than before. Copied.
    pub name: *const c_char,
    /// Makes the state of a lane, at its beginning, and writes it to `*state`. Called before the first of the functions
    /// below. May be NULL: `state` is then NULL.
    pub open: Option<unsafe extern "C" fn(user: *mut c_void, lane: u32, state: *mut *mut c_void) -> i32>,
    /// Frees a state. May be NULL.
    pub close: Option<unsafe extern "C" fn(user: *mut c_void, state: *mut c_void)>,
    /// Takes a piece, which is dropped unless this call hands it on (`lw_pieces_emit`) or holds it (`lw_pieces_hold`); held
    /// ones may be handed on as well. It must do the same whenever it sees the same pieces.
    pub push: Option<unsafe extern "C" fn(user: *mut c_void, state: *mut c_void, piece: *const lw_piece, pieces: *mut lw_pieces) -> i32>,
    /// The lane's stream ends: hands on what is still to go. May be NULL.
    pub flush: Option<unsafe extern "C" fn(user: *mut c_void, state: *mut c_void, pieces: *mut lw_pieces) -> i32>,
    /// Writes down what is remembered beside the pieces held, in a form that never changes: `*bytes` and `*len`, read
    /// before the state's next call. At most 64 KiB; it is called often, and every lane's part of a checkpoint has them. Nothing,
    /// and no piece held, says that the state is as `open` made it. May be NULL: there is nothing to remember.
    pub save: Option<
        unsafe extern "C" fn(user: *mut c_void, state: *mut c_void, pieces: *mut lw_pieces, bytes: *mut *const c_void, len: *mut usize) -> i32,
    >,
    /// Takes up what `save` wrote, in a state that `open` has made, and the `count` pieces held then. May be NULL for an operator that
    /// holds and remembers nothing.
    pub load: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            state: *mut c_void,
            bytes: *const c_void,
            len: usize,
            held: *const lw_piece,
            count: usize,
            pieces: *mut lw_pieces,
        ) -> i32,
    >,
}

/// A table without a function.
const fn no_operator() -> lw_operator_table {
    lw_operator_table {
        struct_size: size_of::<lw_operator_table>(),
        user: ptr::null_mut(),
        drop: None,
        name: ptr::null(),
        open: None,
        close: None,
        push: None,
        flush: None,
        save: None,
        load: None,
    }
}

// SAFETY: `repr(C)`, begins with a `usize`, without padding, and every field is a raw pointer or a function that may be NULL.
unsafe impl Sized_ for lw_operator_table {
    const NAME: &'static str = "lw_operator_table";
    const LEAST: usize = 80;
}

/// Sets `struct_size` and makes everything else empty. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_operator_table_init(table: *mut lw_operator_table) {
    if !table.is_null() {
        // SAFETY: the caller promises that it is writable.
        unsafe { table.write(no_operator()) };
    }
}

/// Hands on tokens `start .. start + length` of a piece, counted from its own first. In `push` and `flush`.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_pieces_emit(pieces: *mut lw_pieces, number: u64, start: u32, length: u32) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises the pointer that its function was given, during that call.
        let pieces = unsafe { pieces.as_mut() }.ok_or_else(|| arg::null("pieces"))?;
        let piece = pieces.find(number)?;
        let end = start.checked_add(length).filter(|end| *end <= piece.len && length > 0);
        let end =
            end.ok_or_else(|| Error::invalid(format!("{length} tokens from {start} on are no part of piece {number}, which has {}", piece.len)))?;
        let part = piece.part(start..end);
        pieces.emitted.push(part);
        Ok(())
    })
}

/// Holds the piece that is pushed beyond this call: it stays, with its tokens, until it is released, and is part of what
/// is saved.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_pieces_hold(pieces: *mut lw_pieces, number: u64) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises the pointer that its function was given, during that call.
        let pieces = unsafe { pieces.as_mut() }.ok_or_else(|| arg::null("pieces"))?;
        pieces.find(number)?;
        pieces.pushed = pieces.pushed.filter(|pushed| *pushed != number);
        Ok(())
    })
}

/// Lets go of a piece that was held.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_pieces_release(pieces: *mut lw_pieces, number: u64) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises the pointer that its function was given, during that call.
        let pieces = unsafe { pieces.as_mut() }.ok_or_else(|| arg::null("pieces"))?;
        pieces.find(number)?;
        if pieces.pushed != Some(number) {
            pieces.held.remove(&number);
        }
        Ok(())
    })
}

/// Describes a piece that is pushed or held; its tokens are valid until the call returns or releases it.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_pieces_get(pieces: *const lw_pieces, number: u64, piece: *mut lw_piece) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises the pointer that its function was given, during that call.
        let pieces = unsafe { arg::object(pieces, "pieces") }?;
        let out = arg::out(piece, "piece")?;
        let described = pieces.describe(number, pieces.find(number)?);
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(described) };
        Ok(())
    })
}

impl lw_pieces {
    fn find(&self, number: u64) -> Result<&Piece> {
        self.held.get(&number).ok_or_else(|| Error::new(Status::NotFound, format!("piece {number} is not held: hold it in the call that pushes it")))
    }

    fn describe(&self, number: u64, piece: &Piece) -> lw_piece {
        lw_piece {
            number,
            document: piece.document,
            dataset: piece.source.into(),
            lane: self.lane,
            start: piece.start,
            length: piece.len,
            tokens: match piece.tokens() {
                _ if self.loading => ptr::null(),
                Ids::Wide(ids) => ids.as_ptr(),
                Ids::Narrow(_) => unreachable!("where there are operators, tokens lie in four bytes"),
            },
        }
    }
}

/// The operators of a loader that is being opened.
pub(super) struct Operators {
    pub(super) makers: Vec<OperatorMaker>,
    owners: Vec<Arc<Owner>>,
}

impl Operators {
    /// From now on they are the loader's: each `drop` is called when the last that may call the operator is gone.
    pub(super) fn keep(self) {
        self.owners.iter().for_each(|owner| owner.keep());
    }
}

/// The operators of these tables, in their order.
///
/// # Safety
/// Each pointer is NULL or leads to a table that begins with its size and whose name is NULL or NUL-terminated; its functions can be called as
/// their documentation says.
pub(super) unsafe fn operators(tables: &[*const lw_operator_table], gate: &Arc<Gate>) -> Result<Operators> {
    let mut given = Operators { makers: Vec::with_capacity(tables.len()), owners: Vec::with_capacity(tables.len()) };
    for (i, table) in tables.iter().enumerate() {
        // SAFETY: the caller's promise.
        let (maker, owner) = unsafe { operator(*table, gate) }.map_err(|e| e.within(format_args!("operators[{i}]")))?;
        if given.makers.iter().any(|m| m.name == maker.name) {
            return Err(Error::invalid(format!("operators[{i}]: '{}' is given twice", maker.name)));
        }
        given.makers.push(maker);
        given.owners.push(owner);
    }
    Ok(given)
}

/// # Safety
/// As [`operators`].
unsafe fn operator(table: *const lw_operator_table, gate: &Arc<Gate>) -> Result<(OperatorMaker, Arc<Owner>)> {
    // SAFETY: the caller promises a table that begins with its size.
    let table = unsafe { arg::versioned(table, no_operator()) }?;
    // SAFETY: the caller promises NULL or a NUL-terminated name.
    let name = unsafe { arg::c_string(table.name, "name") }?.ok_or_else(|| arg::null("name"))?;
    if name.is_empty() {
        return Err(Error::invalid("name is empty"));
    }
    if table.push.is_none() {
        return Err(Error::invalid(format!("operator '{name}' has no push")));
    }
    if table.save.is_some() != table.load.is_some() {
        let (has, lacks) = if table.save.is_some() { ("save", "load") } else { ("load", "save") };
        return Err(Error::invalid(format!("operator '{name}' has {has} and no {lacks}; set both, or neither if it remembers nothing")));
    }
    let owner = Owner::new(table.user, table.drop, gate);
    let calls = Arc::new(Calls { table, owner: Arc::clone(&owner) });
    let make = move |lane| Box::new(InC::new(Arc::clone(&calls), lane)) as Box<dyn Operator>;
    Ok((OperatorMaker { name: name.to_owned(), make: Arc::new(make) }, owner))
}

/// A table whose functions may be called while this lives.
struct Calls {
    table: lw_operator_table,
    owner: Arc<Owner>,
}

// SAFETY: the table's pointers are never followed here; the header says that its functions are called on any thread, by several at once for
// different lanes, with `user`.
unsafe impl Send for Calls {}
// SAFETY: as above; shared access only reads the table.
unsafe impl Sync for Calls {}

/// A state in C.
struct State(*mut c_void);

// SAFETY: the pointer is never followed here; the header says that the functions of a state are called by any thread, one at a time, and
// `InC` hands it out only through `&mut self`.
unsafe impl Send for State {}

/// One lane's state of an operator written in C.
struct InC {
    calls: Arc<Calls>,
    /// `None` before the first call.
    state: Option<State>,
    pieces: lw_pieces,
}

impl InC {
    fn new(calls: Arc<Calls>, lane: u32) -> InC {
        let pieces = lw_pieces { lane, held: BTreeMap::new(), next: 0, pushed: None, emitted: Vec::new(), loading: false };
        InC { calls, state: None, pieces }
    }

    /// The state, made now if this is the first call.
    fn state(&mut self) -> Result<*mut c_void> {
        if self.state.is_none() {
            let mut state = ptr::null_mut();
            if let Some(open) = self.calls.table.open {
                set_message("");
                // SAFETY: whoever filled the table promised a function that may be called on any thread with its `user` until `drop`, which
                // `calls` puts off; `state` is writable.
                let code = self.calls.owner.call(|user| unsafe { open(user, self.pieces.lane, &raw mut state) })?;
                done(code)?;
            }
            self.state = Some(State(state));
        }
        Ok(self.state.as_ref().map_or(ptr::null_mut(), |s| s.0))
    }
}

fn done(code: i32) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(failed(code)) }
}

impl Operator for InC {
    fn push(&mut self, piece: Piece, out: &mut Vec<Piece>) -> Result<()> {
        let state = self.state()?;
        let push = self.calls.table.push.ok_or_else(|| arg::null("push"))?;
        let pieces = &mut self.pieces;
        let number = pieces.next;
        pieces.next += 1;
        pieces.pushed = Some(number);
        let described = pieces.describe(number, &piece);
        pieces.held.insert(number, piece);
        set_message("");
        // SAFETY: as in `state`; the state is this lane's and `&mut self` keeps other calls of it away; `described` and `pieces` outlive the
        // call, and its tokens are those of the piece that `pieces` holds.
        let code = self.calls.owner.call(|user| unsafe { push(user, state, &raw const described, &raw mut *pieces) })?;
        if let Some(number) = pieces.pushed.take() {
            pieces.held.remove(&number);
        }
        out.append(&mut pieces.emitted);
        done(code)
    }

    fn flush(&mut self, out: &mut Vec<Piece>) -> Result<()> {
        let Some(flush) = self.calls.table.flush else { return Ok(()) };
        let state = self.state()?;
        set_message("");
        // SAFETY: as in `push`.
        let code = self.calls.owner.call(|user| unsafe { flush(user, state, &raw mut self.pieces) })?;
        out.append(&mut self.pieces.emitted);
        done(code)
    }

    fn held(&mut self) -> Vec<&mut Piece> {
        self.pieces.held.values_mut().collect()
    }

    fn save(&mut self) -> Result<Vec<u8>> {
        let (Some(State(state)), Some(save)) = (&self.state, self.calls.table.save) else {
            return match self.pieces.held.is_empty() {
                true => Ok(Vec::new()),
                false => Err(Error::new(Status::Unsupported, "it holds pieces and has no save and load")),
            };
        };
        let (state, mut bytes, mut len) = (*state, ptr::null(), 0);
        set_message("");
        // SAFETY: as in `push`; `bytes` and `len` are writable.
        let code = self.calls.owner.call(|user| unsafe { save(user, state, &raw mut self.pieces, &raw mut bytes, &raw mut len) })?;
        done(code)?;
        if !std::mem::take(&mut self.pieces.emitted).is_empty() {
            return Err(Error::invalid("save must not hand on pieces; push and flush do"));
        }
        // SAFETY: whoever filled the table promised `len` bytes there until the state's next call, which `&mut self` keeps away.
        Ok(unsafe { arg::slice(bytes.cast::<u8>(), len, "bytes") }?.to_vec())
    }

    fn load(&mut self, saved: &[u8], held: Vec<Piece>) -> Result<()> {
        if saved.is_empty() && held.is_empty() {
            return Ok(());
        }
        let Some(load) = self.calls.table.load else {
            return Err(Error::new(Status::Unsupported, "the checkpoint has a state of it, and it has no load"));
        };
        let state = self.state()?;
        let pieces = &mut self.pieces;
        pieces.next = held.len() as u64;
        pieces.held = (0..).zip(held).collect();
        pieces.loading = true;
        let described: Vec<lw_piece> = pieces.held.iter().map(|(number, piece)| pieces.describe(*number, piece)).collect();
        let before: BTreeSet<u64> = pieces.held.keys().copied().collect();
        set_message("");
        // SAFETY: as in `push`; `saved` and `described` outlive the call.
        let code = self.calls.owner.call(|user| unsafe {
            load(user, state, saved.as_ptr().cast::<c_void>(), saved.len(), described.as_ptr(), described.len(), &raw mut *pieces)
        })?;
        pieces.loading = false;
        done(code)?;
        match pieces.emitted.is_empty() && pieces.held.keys().copied().eq(before) {
            true => Ok(()),
            false => Err(Error::invalid("load must neither hand on nor release pieces; push and flush do")),
        }
    }
}

impl Drop for InC {
    fn drop(&mut self) {
        if let (Some(State(state)), Some(close)) = (self.state.take(), self.calls.table.close) {
            // SAFETY: as in `push`; the state is this value's alone, and this is its last call.
            // Not if the loader was closed from one of its functions: then none is called any more.
            let _ = self.calls.owner.call(|user| unsafe { close(user, state) });
        }
    }
}
