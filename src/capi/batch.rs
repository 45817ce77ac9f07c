//! Some rows of one step, as tensors, and which documents they are made of.
//!
//! Tensors, by name; `rows` × `row_length` unless said otherwise:
//!
//! | name | dtype | what it holds |
//! |---|---|---|
//! | `input_ids` | int64 | token ids, rows filled up with the padding token |
//! | `labels` | int64 | the token to be predicted at each position, shifted already: the next one of the same document, else −100 |
//! | `positions` | int64 | the place of each token in its document, which goes on counting where a document goes on in another row; 0 in padding |
//! | `segment_ids` | int32 | which document of its row each token belongs to, from 1; 0 in padding |
//! | `loss_mask` | bool | 1 where the label counts |
//! | `cu_seqlens` | int32 | `[segments + 1]`: where segments start in the batch laid out as one sequence, and its end; a row's padding is a segment of its own |
//!
//! Where teachers made samples of its rows (`[generate]` in the recipe), it also has their tensors, by name: `lw_batch_layout`
//! describes those of a row, and each is `[rows, …]`, zero in rows that are padding. `lw_batch_tensor` says what becomes of ragged ones.
//!
//! A tensor is written when it is first asked for. A batch is counted: `lw_batch_retain`, `lw_batch_release`.

use super::arg;
use super::dlpack::{self, DLManagedTensorVersioned};
use super::guard::{guard, guard_or};
use super::home::Home;
use super::layout::{lw_device, lw_layout, lw_tensor};
use super::opened::Opened;
use super::status::lw_status;
use crate::base::{DType, Error, Result, Status};
use crate::data::Dataset;
use crate::pipeline::{Batch, global_hash};
use crate::plan::BatchSchedule;
use std::ffi::{CStr, CString, c_char};
use std::mem::ManuallyDrop;
use std::sync::{Arc, OnceLock};

/// In `lane` of an `lw_row`: the row is no part of the global batch; it only fills up a rank that has fewer lanes than
/// others.
pub const LW_NO_LANE: u32 = u32::MAX;

/// What a batch is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_batch_info {
    /// The step that it belongs to, from 0.
    pub step: u64,
    /// Which microbatch of the rank's step it is, from 0.
    pub microbatch: u64,
    /// Microbatches of the step: the same on every rank.
    pub microbatches: u64,
    /// Rows.
    pub rows: u64,
    /// Tokens of a row.
    pub row_length: u64,
    /// Segments of all rows, padding not counted.
    pub segments: u64,
    /// Tokens of documents, without padding.
    pub num_tokens: u64,
    /// Labels that count. Divide a loss by their sum over all ranks and microbatches of the step.
    pub num_valid_tokens: u64,
    /// The longest segment, padding included: what attention over `cu_seqlens` takes.
    pub max_seqlen: i64,
}

/// One row of a batch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_row {
    /// Its number in its lane, from 0.
    pub number: u64,
    /// Its place in the step's global batch, from 0; `UINT64_MAX` for a row that is no part of it.
    pub position: u64,
    /// The lane that it belongs to, or `LW_NO_LANE`.
    pub lane: u32,
    /// How many segments it has; none if all of it is padding.
    pub segments: u32,
}

/// A piece of a document in a row.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_segment {
    /// The document's number in its dataset.
    pub document: u64,
    /// Which of the recipe's datasets, from 0.
    pub dataset: u32,
    /// Which of its shards, from 0.
    pub shard: u32,
    /// The row of the batch, from 0.
    pub row: u32,
    /// Position of its first token in the row.
    pub offset: u32,
    /// The place of its first token in the document's tokens, from 0.
    pub start: u32,
    /// How many tokens.
    pub length: u32,
}

/// A batch; it never changes. Any number of threads may use it at once.
pub struct lw_batch {
    batch: ManuallyDrop<Batch>,
    matrix: [i64; 2],
    seqlens: OnceLock<[i64; 1]>,
    opened: Arc<Opened>,
    /// The teachers' tensors of a row.
    taught: Option<lw_layout>,
    /// Names of the teachers' tensors of the batch.
    names: Vec<CString>,
    schedule: BatchSchedule,
    home: Home,
}

impl lw_batch {
    /// A handle with one reference.
    pub(super) fn hand_out(batch: Batch, schedule: &BatchSchedule, opened: Arc<Opened>) -> *mut lw_batch {
        let matrix = [batch.num_rows() as i64, batch.length() as i64];
        // Its names were checked when the recipe was read.
        let taught = batch.taught().and_then(|t| lw_layout::new(Arc::clone(t.layout())).ok());
        let named = batch.taught().map_or(&[][..], |t| t.columns()).iter();
        let names = named.map(|column| CString::new(column.name.as_str()).unwrap_or_default()).collect();
        let (schedule, home) = (schedule.clone(), Home::here());
        let handle = lw_batch { batch: ManuallyDrop::new(batch), matrix, seqlens: OnceLock::new(), opened, taught, names, schedule, home };
        Arc::into_raw(Arc::new(handle)).cast_mut()
    }

    fn tensor(&self, name: &str) -> Result<(lw_tensor, &[i64])> {
        self.home.check("batch")?;
        let batch = &self.batch;
        let Some((name, dtype)) = FIELDS.iter().find(|(n, _)| n.to_bytes() == name.as_bytes()).copied() else { return self.taught(name) };
        let (data, count) = match name.to_bytes() {
            b"input_ids" => raw(batch.input_ids()),
            b"labels" => raw(batch.labels()),
            b"positions" => raw(batch.positions()),
            b"segment_ids" => raw(batch.segment_ids()),
            b"loss_mask" => raw(batch.loss_mask()),
            _ => raw(batch.cu_seqlens()),
        };
        let shape: &[i64] = if name == c"cu_seqlens" { self.seqlens.get_or_init(|| [count as i64]) } else { &self.matrix };
        Ok((view(data, shape, name.as_ptr(), count * dtype.size(), dtype as i32), shape))
    }

    /// A tensor that teachers made.
    fn taught(&self, name: &str) -> Result<(lw_tensor, &[i64])> {
        let columns = self.batch.taught().map_or(&[][..], |t| t.columns());
        let Some((i, taught)) = columns.iter().position(|c| c.name == name).zip(self.batch.taught()) else {
            let own = FIELDS.iter().map(|(n, _)| n.to_string_lossy().into_owned());
            let names: Vec<String> = own.chain(columns.iter().map(|c| c.name.clone())).collect();
            return Err(Error::new(Status::NotFound, format!("a batch has no tensor '{name}'; this one has {}", names.join(", "))));
        };
        let (start, column) = (taught.start(i).cast_mut().cast(), &columns[i]);
        Ok((view(start, &column.shape, self.names[i].as_ptr(), column.nbytes(), column.dtype as i32), &column.shape))
    }

    fn info(&self) -> lw_batch_info {
        let batch = &self.batch;
        lw_batch_info {
            step: batch.step(),
            microbatch: batch.microbatch(),
            microbatches: batch.microbatches(),
            rows: self.matrix[0] as u64,
            row_length: self.matrix[1] as u64,
            segments: batch.num_segments(),
            num_tokens: batch.num_tokens(),
            num_valid_tokens: batch.num_valid_tokens(),
            max_seqlen: i64::from(batch.max_seqlen()),
        }
    }

    fn rows(&self) -> impl Iterator<Item = lw_row> {
        self.batch.rows().iter().map(|row| {
            let (lane, number) = row.of.unwrap_or((LW_NO_LANE, u64::MAX));
            let place = |(lane, number)| {
                let step = self.schedule.step_of_row(number);
                u64::from(lane) * self.schedule.rows_at(step) + (number - self.schedule.rows_before(step))
            };
            let position = row.of.map_or(u64::MAX, place);
            lw_row { number, position, lane, segments: row.pieces.len() as u32 }
        })
    }

    fn segments(&self) -> Result<impl Iterator<Item = lw_segment>> {
        let datasets = self.opened.shared()?;
        Ok(self.batch.rows().iter().enumerate().flat_map(move |(row, r)| {
            let mut offset = 0;
            r.pieces.iter().map(move |piece| {
                let source = usize::from(piece.source);
                let shard = datasets.get(source).map_or(0, |d| shard_of(d, piece.document));
                let segment = lw_segment {
                    document: piece.document,
                    dataset: source as u32,
                    shard,
                    row: row as u32,
                    offset,
                    start: piece.start,
                    length: piece.len,
                };
                offset += piece.len;
                segment
            })
        }))
    }
}

/// Name and dtype of each tensor.
const FIELDS: [(&CStr, DType); 6] = [
    (c"input_ids", DType::Int64),
    (c"labels", DType::Int64),
    (c"positions", DType::Int64),
    (c"segment_ids", DType::Int32),
    (c"loss_mask", DType::Bool),
    (c"cu_seqlens", DType::Int32),
];

fn view(data: *mut std::ffi::c_void, shape: &[i64], name: *const c_char, nbytes: usize, dtype: i32) -> lw_tensor {
    lw_tensor {
        data,
        shape: shape.as_ptr(),
        name,
        nbytes: nbytes as u64,
        ndim: shape.len() as i32,
        dtype,
        device_type: lw_device::LW_DEVICE_CPU as i32,
        device_id: 0,
    }
}

fn raw<T>(elements: &[T]) -> (*mut std::ffi::c_void, usize) {
    (elements.as_ptr().cast_mut().cast(), elements.len())
}

fn shard_of(dataset: &Dataset, document: u64) -> u32 {
    // Shards without documents begin where the next one does, so the last that begins there is the one.
    (dataset.shards().partition_point(|s| s.first_document <= document) - 1) as u32
}

impl Drop for lw_batch {
    fn drop(&mut self) {
        if self.home.is_here() {
            // SAFETY: this is the only drop of the field, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.batch) };
        }
        // Elsewhere its buffers cannot go back: whoever held their lock at the fork is not there.
    }
}

/// Describes the batch. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_batch_describe(batch: *const lw_batch, info: *mut lw_batch_info) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a batch of which it holds a reference.
        let batch = unsafe { arg::object(batch, "batch") }?;
        let out = arg::out(info, "info")?;
        batch.home.check("batch")?;
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(batch.info()) };
        Ok(())
    })
}

/// Describes the tensor of that NUL-terminated name: a view, not to be written, valid until the batch's last reference
/// is released, like its name and shape. `LW_NOT_FOUND` lists the names. Any thread.
///
/// A batch that teachers made a ragged tensor of, `"seq<=2048"` in the recipe, has it in the size that the recipe's `pad_to` says, zero behind each
/// row's data, and for each such dimension two tensors more: `seq_lengths`, `int64` of `[rows]`, and `seq_mask`, `bool` of `[rows, size]`, true
/// where there is data.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_batch_tensor(batch: *const lw_batch, name: *const c_char, tensor: *mut lw_tensor) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a batch of which it holds a reference, and a NUL-terminated name.
        let (batch, name) = unsafe { (arg::object(batch, "batch")?, arg::c_string(name, "name")?) };
        let (name, out) = (name.ok_or_else(|| arg::null("name"))?, arg::out(tensor, "tensor")?);
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(batch.tensor(name)?.0) };
        Ok(())
    })
}

/// The tensors that teachers made of each row; NULL if they made none, and for NULL. It belongs to the batch: valid until its last
/// reference is released, not to be freed. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_batch_layout(batch: *const lw_batch) -> *const lw_layout {
    // SAFETY: the caller promises NULL or a batch of which it holds a reference.
    unsafe { batch.as_ref() }.and_then(|b| b.taught.as_ref()).map_or(std::ptr::null(), std::ptr::from_ref)
}

/// What a DLPack tensor holds: a reference that a forked child does not give back.
struct Held(ManuallyDrop<Arc<lw_batch>>);

impl Drop for Held {
    fn drop(&mut self) {
        if self.0.home.is_here() {
            // SAFETY: this is the only drop of the field, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

/// Exports the tensor of that name as a DLPack (1.0) tensor, flagged read-only, that holds a reference of its own. Its
/// consumer calls its `deleter` once, on any thread, also while the process ends; in a forked child that does nothing.
/// `*out` is the caller's. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_batch_dlpack(batch: *const lw_batch, name: *const c_char, out: *mut *mut DLManagedTensorVersioned) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a batch of which it holds a reference, and a NUL-terminated name.
        let (found, name) = unsafe { (arg::object(batch, "batch")?, arg::c_string(name, "name")?) };
        let (name, out) = (name.ok_or_else(|| arg::null("name"))?, arg::out(out, "out")?);
        let (view, shape) = found.tensor(name)?;
        // SAFETY: `batch` came from `Arc::into_raw`, and the caller's reference keeps the count above 0 while this one is added.
        let held = unsafe {
            Arc::increment_strong_count(batch);
            Held(ManuallyDrop::new(Arc::from_raw(batch)))
        };
        let tensor = dlpack::export(Box::new(held), view.data, shape, view.dtype)?;
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(tensor) };
        Ok(())
    })
}

/// Describes each row: `rows` has room for `capacity`; `*count` becomes their number in any case. `capacity` 0 only
/// asks for it. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_batch_rows(batch: *const lw_batch, rows: *mut lw_row, capacity: usize, count: *mut usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a batch of which it holds a reference.
        let batch = unsafe { arg::object(batch, "batch") }?;
        batch.home.check("batch")?;
        // SAFETY: the caller promises room for `capacity` rows.
        unsafe { arg::put_items(batch.batch.num_rows(), batch.rows(), rows, capacity, count, "rows") }
    })
}

/// Which documents the batch is made of: each segment of each row, in order, padding left out. `segments` has room for
/// `capacity`; `*count` becomes their number in any case. `capacity` 0 only asks for it. `lw_loader_dataset` has the
/// datasets and their shards. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_batch_segments(batch: *const lw_batch, segments: *mut lw_segment, capacity: usize, count: *mut usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a batch of which it holds a reference.
        let batch = unsafe { arg::object(batch, "batch") }?;
        batch.home.check("batch")?;
        let n = batch.batch.num_segments() as usize;
        // SAFETY: the caller promises room for `capacity` segments.
        unsafe { arg::put_items(n, batch.segments()?, segments, capacity, count, "segments") }
    })
}

/// Hashes of `input_ids`, `labels`, `positions`, `segment_ids` and of what teachers made, of each row that is part of the global batch, in
/// order. `hashes` has room for `capacity`; `*count` becomes their number in any case. `capacity` 0 only asks for it.
/// Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_batch_row_hashes(batch: *const lw_batch, hashes: *mut u64, capacity: usize, count: *mut usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a batch of which it holds a reference.
        let batch = unsafe { arg::object(batch, "batch") }?;
        batch.home.check("batch")?;
        let n = batch.batch.rows().iter().filter(|r| r.of.is_some()).count();
        let all = if capacity < n { Vec::new() } else { batch.batch.row_hashes() };
        // SAFETY: the caller promises room for `capacity` hashes.
        unsafe { arg::put_items(n, all.into_iter(), hashes, capacity, count, "hashes") }
    })
}

/// The hash of a global batch, from the hashes of its rows in order (all ranks' and microbatches' one after the
/// other): the same however ranks and microbatches cut it. 0 if `row_hashes` is NULL and `count` is not 0. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_batch_global_hash(row_hashes: *const u64, count: usize) -> u64 {
    guard_or(0, || {
        // SAFETY: the caller promises `count` hashes.
        unsafe { arg::slice(row_hashes, count, "row_hashes") }.map_or(0, |hashes| global_hash(hashes.iter().copied()))
    })
}

/// Takes one more reference. NULL is allowed. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_batch_retain(batch: *const lw_batch) {
    if !batch.is_null() {
        // SAFETY: a batch is only ever made by `Arc::into_raw`, and the caller holds a reference, so the count is above 0.
        unsafe { Arc::increment_strong_count(batch) };
    }
}

/// Releases one reference; with the last, the batch and its tensors go. NULL is allowed. Any thread, also after the
/// loader was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_batch_release(batch: *const lw_batch) {
    if !batch.is_null() {
        // SAFETY: a batch is only ever made by `Arc::into_raw`, and the caller gives up a reference that it holds.
        guard_or((), || drop(unsafe { Arc::from_raw(batch) }));
    }
}
