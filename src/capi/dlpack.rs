//! Tensors of samples and batches as DLPack tensors (<https://dmlc.github.io/dlpack/latest/c_api.html>, version 1.0), which NumPy, torch and JAX
//! take without a copy.

use crate::base::{DType, Error, Result};
use crate::medium::Place;
use std::ffi::c_void;

#[repr(C)]
struct DLPackVersion {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct DLDevice {
    device_type: i32,
    device_id: i32,
}

#[repr(C)]
struct DLDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DLTensor {
    data: *mut c_void,
    device: DLDevice,
    ndim: i32,
    dtype: DLDataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensorVersioned` of dlpack.h.
#[repr(C)]
pub struct DLManagedTensorVersioned {
    version: DLPackVersion,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    flags: u64,
    dl_tensor: DLTensor,
}

/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
const READ_ONLY: u64 = 1;
/// `kDLCPU` and `kDLCUDA`.
const CPU: i32 = 1;
const CUDA: i32 = 2;

/// Whether who takes the tensor may write to it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// A place's `DLDeviceType` and device number.
pub(super) fn device(place: Place) -> (i32, i32) {
    match place {
        Place::Host => (CPU, 0),
        Place::Cuda(ordinal) => (CUDA, ordinal),
    }
}

/// The tensor together with what it points to, at one address until its deleter runs.
struct Exported {
    tensor: DLManagedTensorVersioned,
    shape: Vec<i64>,
    strides: Vec<i64>,
    _hold: Box<dyn Send>,
}

/// A tensor in host memory, as [`export_at`], not to be written.
pub(super) fn export(hold: Box<dyn Send>, data: *mut c_void, shape: &[i64], dtype: i32) -> Result<*mut DLManagedTensorVersioned> {
    export_at(hold, data, shape, dtype, Place::Host, Access::Read)
}

/// A tensor of `shape` at `data` that keeps `hold` until its deleter is called. Its bytes are there: who takes it need not wait for any stream.
pub(super) fn export_at(
    hold: Box<dyn Send>,
    data: *mut c_void,
    shape: &[i64],
    dtype: i32,
    place: Place,
    access: Access,
) -> Result<*mut DLManagedTensorVersioned> {
    let (device_type, device_id) = device(place);
    let dtype = data_type(dtype).ok_or_else(|| Error::invalid(format!("dtype {dtype} is not one of lw_dtype")))?;
    let exported = Box::into_raw(Box::new(Exported {
        tensor: DLManagedTensorVersioned {
            version: DLPackVersion { major: 1, minor: 0 },
            manager_ctx: std::ptr::null_mut(),
            deleter: Some(delete),
            flags: if access == Access::Read { READ_ONLY } else { 0 },
            dl_tensor: DLTensor {
                data,
                device: DLDevice { device_type, device_id },
                ndim: shape.len() as i32,
                dtype,
                shape: std::ptr::null_mut(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
            },
        },
        shape: shape.to_vec(),
        strides: row_major(shape),
        _hold: hold,
    }));
    // SAFETY: `exported` was just made by `Box::into_raw`, so it is valid and nobody else has it.
    unsafe {
        (*exported).tensor.manager_ctx = exported.cast();
        (*exported).tensor.dl_tensor.shape = (*exported).shape.as_mut_ptr();
        (*exported).tensor.dl_tensor.strides = (*exported).strides.as_mut_ptr();
        Ok(&raw mut (*exported).tensor)
    }
}

/// # Safety
/// Called once, with a tensor that [`export`] made.
unsafe extern "C" fn delete(tensor: *mut DLManagedTensorVersioned) {
    super::guard::guard_or((), || {
        if !tensor.is_null() {
            // SAFETY: by the caller's promise `manager_ctx` is the pointer that `export` got from `Box::into_raw`, and this is its only use.
            drop(unsafe { Box::from_raw((*tensor).manager_ctx.cast::<Exported>()) });
        }
    });
}

/// Strides in elements of a contiguous tensor.
fn row_major(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i].max(1);
    }
    strides
}

/// `DLDataTypeCode`, bits and lanes of a dtype.
fn data_type(dtype: i32) -> Option<DLDataType> {
    const INT: u8 = 0;
    const UINT: u8 = 1;
    const FLOAT: u8 = 2;
    const BFLOAT: u8 = 4;
    const BOOL: u8 = 6;
    let dtype = DType::from_number(dtype)?;
    let code = match dtype {
        DType::Float64 | DType::Float32 | DType::Float16 => FLOAT,
        DType::BFloat16 => BFLOAT,
        DType::Int64 | DType::Int32 | DType::Int16 | DType::Int8 => INT,
        DType::UInt8 => UINT,
        DType::Bool => BOOL,
    };
    Some(DLDataType { code, bits: 8 * dtype.size() as u8, lanes: 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_the_sizes_of_dlpack_h() {
        assert_eq!(size_of::<DLTensor>(), 48);
        assert_eq!(size_of::<DLManagedTensorVersioned>(), 80);
        assert_eq!(std::mem::offset_of!(DLManagedTensorVersioned, dl_tensor), 32);
    }

    #[test]
    fn strides_are_row_major() {
        assert_eq!(row_major(&[2, 3, 5]), [15, 5, 1]);
        assert_eq!(row_major(&[2, 0, 5]), [5, 5, 1]);
        assert!(row_major(&[]).is_empty());
    }

    #[test]
    fn every_dtype_has_its_dlpack_type() {
        for dtype in DType::ALL {
            let found = data_type(dtype as i32).unwrap();
            assert_eq!(usize::from(found.bits), 8 * dtype.size());
        }
        assert!(data_type(0).is_none());
    }
}
