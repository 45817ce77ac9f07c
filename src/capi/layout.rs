//! The tensors of one sample: their names, shapes and dtypes, and where each lies in the sample's bytes. Tensors lie in
//! the order given, each starts at a multiple of 64 bytes, row-major without strides; the tail is not padded.
//!
//! A *ragged* dimension has its own length in every sample, up to a maximum that slots have room for. In JSON it is written `"seq<=2048"`;
//! all dimensions of one name have one length. A ragged tensor starts where it would with all dimensions at their maximum, and lies there
//! row-major in its true shape; the rest of its place is zero. Behind the last tensor, at a multiple of 64 bytes, lie the true shapes of
//! the ragged tensors in order: `ndim` little-endian `int64_t` each. For a sample on a device they are kept beside it, in host memory:
//! `lw_student_read` and `lw_worker_write` know the sample as a whole, and the bytes behind the tensors on the device mean nothing.

use super::guard::{guard, guard_or};
use super::status::lw_status;
use super::{arg, dlpack};
use crate::base::{DType, Dim, Error, Layout, MAX_RANK, Result, Shape, Status, TensorSpec};
use crate::medium::Place;
use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::Arc;

/// Element types.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum lw_dtype {
    /// IEEE 754 binary64.
    LW_FLOAT64 = 1,
    /// IEEE 754 binary32.
    LW_FLOAT32 = 2,
    /// IEEE 754 binary16.
    LW_FLOAT16 = 3,
    /// The upper half of a binary32.
    LW_BFLOAT16 = 4,
    /// Two's complement, 64 bits.
    LW_INT64 = 5,
    /// Two's complement, 32 bits.
    LW_INT32 = 6,
    /// Two's complement, 16 bits.
    LW_INT16 = 7,
    /// Two's complement, 8 bits.
    LW_INT8 = 8,
    /// Unsigned, 8 bits.
    LW_UINT8 = 9,
    /// One byte, 0 or 1.
    LW_BOOL = 10,
}

/// Where memory is, with DLPack's numbers.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum lw_device {
    /// Memory that this process can read and write.
    LW_DEVICE_CPU = 1,
    /// Memory of a CUDA device: its address is for the device and its driver only.
    LW_DEVICE_CUDA = 2,
}

/// What a tensor is. Everything it points to is the caller's and is copied by whoever takes one.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_tensor_spec {
    /// NUL-terminated UTF-8, unique in its layout, not empty.
    pub name: *const c_char,
    /// `ndim` sizes, outermost first; none may be negative. May be NULL if `ndim` is 0.
    pub shape: *const i64,
    /// Number of dimensions, 0 to 32.
    pub ndim: i32,
    /// One of `lw_dtype`.
    pub dtype: i32,
}

/// A tensor in memory, contiguous and row-major.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_tensor {
    /// The first element.
    pub data: *mut c_void,
    /// `ndim` sizes, outermost first; of a ragged tensor in a sample the true ones.
    pub shape: *const i64,
    /// NUL-terminated UTF-8.
    pub name: *const c_char,
    /// Bytes at `data`: those of the shape.
    pub nbytes: u64,
    /// Number of dimensions.
    pub ndim: i32,
    /// One of `lw_dtype`.
    pub dtype: i32,
    /// One of `lw_device`.
    pub device_type: i32,
    /// 0 for the CPU; the CUDA device's number in this process.
    pub device_id: i32,
}

impl lw_tensor {
    /// Says where the tensor's data is.
    pub(super) fn placed(mut self, place: Place) -> lw_tensor {
        (self.device_type, self.device_id) = dlpack::device(place);
        self
    }
}

/// The layout of a sample. Never changes after it was made, so any number of threads may use it at once.
pub struct lw_layout {
    pub(super) layout: Arc<Layout>,
    shapes: Vec<Vec<i64>>,
    names: Vec<CString>,
}

impl lw_layout {
    pub(super) fn new(layout: Arc<Layout>) -> Result<lw_layout> {
        let dimension = |d: u64| i64::try_from(d).map_err(|_| Error::invalid(format!("a dimension of {d} does not fit int64_t")));
        let shapes = layout.specs().iter().map(|s| s.shape.iter().map(|d| dimension(d.max())).collect()).collect::<Result<_>>()?;
        let name = |s: &TensorSpec| CString::new(s.name.as_str()).map_err(|_| Error::invalid("a tensor's name holds a NUL"));
        let names = layout.specs().iter().map(name).collect::<Result<_>>()?;
        Ok(lw_layout { layout, shapes, names })
    }

    /// Tensor `i` without data, at its greatest shape, with its offset.
    pub(super) fn describe(&self, i: usize) -> Result<(lw_tensor, usize)> {
        let count = self.names.len();
        let spec = self.layout.specs().get(i).ok_or_else(|| Error::invalid(format!("tensor {i}: the layout has {count}, numbered from 0")))?;
        let tensor = lw_tensor {
            data: ptr::null_mut(),
            shape: self.shapes[i].as_ptr(),
            name: self.names[i].as_ptr(),
            nbytes: spec.nbytes()? as u64,
            ndim: self.shapes[i].len() as i32,
            dtype: spec.dtype as i32,
            device_type: lw_device::LW_DEVICE_CPU as i32,
            device_id: 0,
        };
        Ok((tensor, self.layout.offset(i)))
    }

    /// Tensor `i` of a sample of `len` bytes that begin at `base`, in its true shape. Fails if there is no such tensor, if it does not lie
    /// within the sample, or if the sample's shapes are wrong (`status` says what that is).
    ///
    /// # Safety
    /// If the layout is ragged, `len` bytes can be read at `base`. (Otherwise it is only counted from, and may be NULL, or on a device.)
    pub(super) unsafe fn view(&self, i: usize, base: *mut u8, len: usize, status: Status) -> Result<lw_tensor> {
        let start = self.layout.shapes_start();
        let shapes = match self.layout.is_ragged() && len >= self.layout.nbytes() {
            // SAFETY: the caller's promise, since the layout is ragged; the shapes are the last of the `len` bytes.
            true => unsafe { std::slice::from_raw_parts(base.add(start), self.layout.shapes_bytes()) },
            false => &[],
        };
        self.view_with(i, base, len, shapes, status)
    }

    /// As [`lw_layout::view`], with shapes that lie elsewhere, in host memory; `base` is only counted from. Of a ragged tensor, the view's shape is among them.
    pub(super) fn view_with(&self, i: usize, base: *mut u8, len: usize, shapes: &[u8], status: Status) -> Result<lw_tensor> {
        let (mut tensor, offset) = self.describe(i)?;
        let spec = &self.layout.specs()[i];
        let shape_at = self.layout.shape_at(i);
        let end = if shape_at.is_some() { self.layout.nbytes() } else { offset + tensor.nbytes as usize };
        if end > len {
            return Err(Error::invalid(format!("tensor '{}' ends at byte {end}, but the sample has {len} bytes", spec.name)));
        }
        if let Some(at) = shape_at {
            let shape = self.layout.shape(shapes, i).map_err(|e| Error::new(status, e.message))?;
            tensor.nbytes = spec.nbytes_of(&shape) as u64;
            tensor.shape = shapes[at - self.layout.shapes_start()..].as_ptr().cast();
            if !tensor.shape.is_aligned() {
                return Err(Error::invalid("data is not aligned to 8 bytes, as the sample of a layout with ragged dimensions must be"));
            }
        }
        tensor.data = if base.is_null() { ptr::null_mut() } else { base.wrapping_add(offset).cast() };
        Ok(tensor)
    }
}

/// Makes a layout of `count` tensors of fixed shape, of whose values nothing is asked; `lw_layout_from_json` makes the others. On success
/// `*out` is the caller's: free it with `lw_layout_free`. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_layout_new(specs: *const lw_tensor_spec, count: usize, out: *mut *mut lw_layout) -> lw_status {
    guard(|| {
        let out = arg::out(out, "out")?;
        // SAFETY: the caller promises `count` specs at `specs`.
        let specs = unsafe { arg::slice(specs, count, "specs") }?;
        let specs = specs.iter().enumerate().map(|(i, spec)| {
            // SAFETY: the caller promises that what a spec points to is readable during the call.
            unsafe { spec_from_c(spec) }.map_err(|e| e.within(format_args!("specs[{i}]")))
        });
        let layout = Layout::new(specs.collect::<Result<_>>()?)?;
        let handle = Box::new(lw_layout::new(Arc::new(layout))?);
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(Box::into_raw(handle)) };
        Ok(())
    })
}

/// # Safety
/// The spec's pointers are NULL or readable as its documentation says.
unsafe fn spec_from_c(spec: &lw_tensor_spec) -> Result<TensorSpec> {
    // SAFETY: the caller's promise.
    let name = unsafe { arg::c_string(spec.name, "name") }?.ok_or_else(|| arg::null("name"))?;
    let ndim = usize::try_from(spec.ndim).ok().filter(|n| *n <= MAX_RANK);
    let ndim = ndim.ok_or_else(|| Error::invalid(format!("tensor '{name}' has {} dimensions; expected 0 to {MAX_RANK}", spec.ndim)))?;
    // SAFETY: the caller's promise.
    let shape = unsafe { arg::slice(spec.shape, ndim, "shape") }.map_err(|e| e.within(format_args!("tensor '{name}'")))?;
    let size = |d: &i64| u64::try_from(*d).map_err(|_| Error::invalid(format!("tensor '{name}': dimension {d} is negative")));
    let shape = shape.iter().map(size).collect::<Result<Vec<u64>>>()?;
    let dtype = DType::from_number(spec.dtype);
    let dtype = dtype.ok_or_else(|| Error::invalid(format!("tensor '{name}': dtype {} is not one of lw_dtype", spec.dtype)))?;
    Ok(TensorSpec::new(name, shape, dtype))
}

/// Makes a layout from `{"specs": [{"name": "x", "shape": [3, 224], "dtype": "float32"}, …]}`: `len` bytes of UTF-8. A size may be a name
/// and a maximum, `"seq<=2048"`: a ragged dimension. `"finite": true` asks for finite values of a float type, `"min"` and `"max"` for
/// values of an integer type from one to the other: what a worker commits is checked. Unknown fields are errors. On success `*out` is the
/// caller's: free it with `lw_layout_free`. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_layout_from_json(text: *const c_char, len: usize, out: *mut *mut lw_layout) -> lw_status {
    guard(|| {
        let out = arg::out(out, "out")?;
        // SAFETY: the caller promises `len` bytes at `text`.
        let text = unsafe { arg::text(text, len, "text") }?;
        let handle = Box::new(lw_layout::new(Arc::new(Layout::from_json(text)?))?);
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(Box::into_raw(handle)) };
        Ok(())
    })
}

/// Writes the layout as `lw_layout_from_json` reads it, NUL-terminated, into `buffer`; equal layouts give equal text.
/// `*len` becomes the text's length without the NUL; `capacity` 0 only asks for it. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_layout_to_json(layout: *const lw_layout, buffer: *mut c_char, capacity: usize, len: *mut usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle, and a buffer of that capacity.
        unsafe { arg::put_text(&arg::object(layout, "layout")?.layout.to_json(), buffer, capacity, len) }
    })
}

/// Bytes of one sample; 0 if `layout` is NULL. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_layout_nbytes(layout: *const lw_layout) -> u64 {
    // SAFETY: the caller promises NULL or a valid handle.
    unsafe { layout.as_ref() }.map_or(0, |l| l.layout.nbytes() as u64)
}

/// Number of tensors; 0 if `layout` is NULL. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_layout_count(layout: *const lw_layout) -> usize {
    // SAFETY: the caller promises NULL or a valid handle.
    unsafe { layout.as_ref() }.map_or(0, |l| l.names.len())
}

/// Describes tensor `index`: `*tensor` with `data` NULL, ragged dimensions at their maximum, and its byte offset in a sample (`offset` may
/// be NULL). The shape and name belong to the layout and are valid until it is freed. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_layout_tensor(layout: *const lw_layout, index: usize, tensor: *mut lw_tensor, offset: *mut u64) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let layout = unsafe { arg::object(layout, "layout") }?;
        let tensor = arg::out(tensor, "tensor")?;
        let (view, at) = layout.describe(index)?;
        // SAFETY: `tensor` is not NULL, `offset` is checked; the caller promises that both are writable.
        unsafe {
            tensor.write(view);
            if !offset.is_null() {
                offset.write(at as u64);
            }
        }
        Ok(())
    })
}

/// Finds the tensor of that NUL-terminated name; `LW_NOT_FOUND` if there is none. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_layout_find(layout: *const lw_layout, name: *const c_char, index: *mut usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle and a NUL-terminated name.
        let (layout, name) = unsafe { (arg::object(layout, "layout")?, arg::c_string(name, "name")?) };
        let (name, index) = (name.ok_or_else(|| arg::null("name"))?, arg::out(index, "index")?);
        let found = layout.layout.find(name).ok_or_else(|| {
            let known: Vec<_> = layout.layout.specs().iter().map(|s| s.name.as_str()).collect();
            Error::new(Status::NotFound, format!("no tensor is called '{name}'; the layout has {}", known.join(", ")))
        })?;
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { index.write(found) };
        Ok(())
    })
}

/// Copies tensors into a sample of `lw_layout_nbytes` bytes at `out` (`capacity` must be at least that); bytes between tensors become 0.
/// `tensors` holds each tensor of the layout once, matched by name, or, where `name` is NULL, by position. Dtype, shape and `nbytes` must
/// be the layout's; the shapes of ragged tensors give the sample its lengths. Values are not looked at: a worker's commit does that.
/// Tensors must not overlap `out`. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_layout_encode(
    layout: *const lw_layout,
    tensors: *const lw_tensor,
    count: usize,
    out: *mut c_void,
    capacity: usize,
) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle and `count` tensors.
        let (layout, tensors) = unsafe { (arg::object(layout, "layout")?, arg::slice(tensors, count, "tensors")?) };
        let need = layout.layout.nbytes();
        if capacity < need {
            return Err(Error::invalid(format!("capacity is {capacity} bytes, but a sample has {need}")));
        }
        let out = if need == 0 { ptr::null_mut() } else { arg::out(out, "out")?.cast::<u8>() };
        // SAFETY: the caller promises that names and shapes are readable.
        let sources = unsafe { match_tensors(layout, tensors) }?;
        let mut end = 0;
        for (i, source) in sources.iter().enumerate() {
            let (start, len) = (layout.layout.offset(i), source.nbytes as usize);
            // SAFETY: `end` ≤ `start`, and `start + len` ≤ `need` ≤ `capacity` writable bytes at `out` (`match_tensors` checked that `len`
            // is within the tensor's place), `len` readable ones at the source, which does not overlap `out`.
            unsafe {
                if start > end {
                    ptr::write_bytes(out.add(end), 0, start - end);
                }
                if len > 0 {
                    ptr::copy_nonoverlapping(source.data.cast::<u8>(), out.add(start), len);
                }
            }
            end = start + len;
        }
        if need > end {
            // SAFETY: as above.
            unsafe { ptr::write_bytes(out.add(end), 0, need - end) };
        }
        if layout.layout.is_ragged() {
            // SAFETY: as above; the slice is the only access meanwhile.
            let shapes = unsafe { std::slice::from_raw_parts_mut(out.add(layout.layout.shapes_start()), layout.layout.shapes_bytes()) };
            layout.layout.begin(shapes);
            for (spec, source) in layout.layout.specs().iter().zip(&sources).filter(|(spec, _)| spec.is_ragged()) {
                // SAFETY: `check_tensor` found it readable.
                let shape = unsafe { arg::slice(source.shape, spec.shape.len(), "shape") }?;
                for (dim, size) in spec.shape.iter().zip(shape) {
                    if let Some(name) = dim.name() {
                        layout.layout.set_length(shapes, name, *size as u64)?;
                    }
                }
            }
        }
        Ok(())
    })
}

/// The given tensors in the layout's order, each checked.
///
/// # Safety
/// Names and shapes of `tensors` are NULL or readable.
unsafe fn match_tensors<'a>(layout: &lw_layout, tensors: &'a [lw_tensor]) -> Result<Vec<&'a lw_tensor>> {
    let specs = layout.layout.specs();
    let mut sources: Vec<Option<&lw_tensor>> = vec![None; specs.len()];
    for (position, tensor) in tensors.iter().enumerate() {
        // SAFETY: the caller's promise.
        let name = unsafe { arg::c_string(tensor.name, "name") }.map_err(|e| e.within(format_args!("tensors[{position}]")))?;
        let i = match name {
            Some(name) => {
                layout.layout.find(name).ok_or_else(|| Error::invalid(format!("tensors[{position}]: the layout has no tensor '{name}'")))?
            }
            None if position < specs.len() => position,
            None => return Err(Error::invalid(format!("tensors[{position}] has no name, and the layout has {} tensors", specs.len()))),
        };
        if sources[i].replace(tensor).is_some() {
            return Err(Error::invalid(format!("tensor '{}' is given twice", specs[i].name)));
        }
        // SAFETY: the caller's promise.
        unsafe { check_tensor(layout, i, tensor) }.map_err(|e| e.within(format_args!("tensor '{}'", specs[i].name)))?;
    }
    let missing = |i: usize| Error::invalid(format!("tensor '{}' is missing", specs[i].name));
    let sources: Vec<&lw_tensor> = sources.iter().enumerate().map(|(i, s)| s.ok_or_else(|| missing(i))).collect::<Result<_>>()?;
    // SAFETY: each shape was read by `check_tensor`.
    unsafe { check_lengths(specs, &sources) }?;
    Ok(sources)
}

/// Dimensions of one name have one length.
///
/// # Safety
/// The tensors' shapes are readable and as long as those of `specs`.
unsafe fn check_lengths(specs: &[TensorSpec], sources: &[&lw_tensor]) -> Result<()> {
    let mut lengths: Vec<(&str, i64, &str)> = Vec::new();
    for (spec, source) in specs.iter().zip(sources).filter(|(spec, _)| spec.is_ragged()) {
        // SAFETY: the caller's promise.
        let shape = unsafe { arg::slice(source.shape, spec.shape.len(), "shape") }?;
        for (name, length) in spec.shape.iter().zip(shape).filter_map(|(dim, length)| Some((dim.name()?, *length))) {
            match lengths.iter().find(|(known, ..)| *known == name) {
                Some((_, first, of)) if *first != length => {
                    let what = format!("dimension '{name}' is {first} in tensor '{of}' and {length} in tensor '{}'; expected one length", spec.name);
                    return Err(Error::new(Status::LayoutMismatch, what));
                }
                Some(_) => {}
                None => lengths.push((name, length, &spec.name)),
            }
        }
    }
    Ok(())
}

/// # Safety
/// The tensor's shape is NULL or readable.
unsafe fn check_tensor(layout: &lw_layout, i: usize, tensor: &lw_tensor) -> Result<()> {
    let spec = &layout.layout.specs()[i];
    let shape = Shape(&spec.shape);
    let differs = |what: String| Err(Error::new(Status::LayoutMismatch, what));
    if tensor.dtype != spec.dtype as i32 {
        let given = DType::from_number(tensor.dtype).map_or("unknown", DType::name);
        return differs(format!("dtype is {given} ({}), but the layout has {}", tensor.dtype, spec.dtype.name()));
    }
    if tensor.device_type != lw_device::LW_DEVICE_CPU as i32 {
        return Err(Error::new(Status::Unsupported, format!("device_type is {}; only LW_DEVICE_CPU can be copied from", tensor.device_type)));
    }
    let ndim = usize::try_from(tensor.ndim).unwrap_or(usize::MAX);
    if ndim != spec.shape.len() {
        return differs(format!("it has {} dimensions, but the layout has shape {shape}", tensor.ndim));
    }
    // SAFETY: the caller's promise; `ndim` is small: it equals the layout's.
    let given = unsafe { arg::slice(tensor.shape, ndim, "shape") }?;
    let fits = |(dim, size): (&Dim, &i64)| match (dim, u64::try_from(*size)) {
        (Dim::Fixed(expected), Ok(size)) => size == *expected,
        (Dim::Ragged { max, .. }, Ok(size)) => size <= *max,
        (_, Err(_)) => false,
    };
    if !spec.shape.iter().zip(given).all(fits) {
        return differs(format!("shape is {given:?}, but the layout has {shape}"));
    }
    let sizes: Vec<u64> = given.iter().map(|size| *size as u64).collect();
    let need = spec.nbytes_of(&sizes) as u64;
    if tensor.nbytes != need {
        return Err(Error::invalid(format!("nbytes is {}, but shape and dtype make {need}", tensor.nbytes)));
    }
    if need > 0 && tensor.data.is_null() {
        return Err(arg::null("data"));
    }
    Ok(())
}

/// Fills `tensors[0 … count-1]`, where `count` is that of the layout, with views of the sample of `len` bytes at `data`. Nothing is copied:
/// the views are as long-lived and as writable as `data`. Names belong to the layout, and shapes too, but those of ragged tensors, which
/// are the sample's own and lie in `data` (which must then be aligned to 8 bytes); `LW_CORRUPT` if they are wrong. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_layout_decode(
    layout: *const lw_layout,
    data: *const c_void,
    len: usize,
    tensors: *mut lw_tensor,
    count: usize,
) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let layout = unsafe { arg::object(layout, "layout") }?;
        let (have, need) = (layout.names.len(), layout.layout.nbytes());
        if count != have {
            return Err(Error::invalid(format!("count is {count}, but the layout has {have} tensors")));
        }
        if len != need {
            return Err(Error::invalid(format!("len is {len} bytes, but a sample has {need}")));
        }
        if data.is_null() && need > 0 {
            return Err(arg::null("data"));
        }
        let tensors = arg::out(tensors, "tensors")?;
        for i in 0..count {
            // SAFETY: the caller promises `len` readable bytes at `data`.
            let view = unsafe { layout.view(i, data.cast_mut().cast(), len, Status::Corrupt) }?;
            // SAFETY: the caller promises `count` writable tensors, and `i` < `count`.
            unsafe { tensors.add(i).write(view) };
        }
        Ok(())
    })
}

/// Frees a layout made by `lw_layout_new` or `lw_layout_from_json`; NULL is allowed. Students and workers that were
/// opened with it have their own copy. Not while another thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_layout_free(layout: *mut lw_layout) {
    if !layout.is_null() {
        // SAFETY: the caller promises a handle of this library that is freed once.
        let layout = unsafe { Box::from_raw(layout) };
        guard_or((), || drop(layout));
    }
}
