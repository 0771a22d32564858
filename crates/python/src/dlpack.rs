//! DLPack: tensors that one library of Python hands to another. Only memory of CUDA is of interest here.
//!
//! Source: `dlpack.h`, version 0.8, whose unversioned tensors every library can still give and take.

#![allow(
    unsafe_code,
    reason = "structs of C behind capsules; see the module's doc"
)]

use std::ffi::{CStr, c_void};

use backhaul::DeviceMemory;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::device::{Interface, check_contiguous};

/// `DLDevice`
#[repr(C)]
#[derive(Clone, Copy)]
struct Device {
    kind: i32,
    ordinal: i32,
}

/// `DLTensor`
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    /// In elements; null if they are in C's order
    strides: *mut i64,
    offset_bytes: u64,
}

/// `DLManagedTensor`
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// A tensor of this module, and the values that its pointers point to
#[repr(C)]
struct Own {
    managed: Managed,
    shape: [i64; 1],
    /// Keeps the memory
    _memory: DeviceMemory,
}

/// Reads what an object says of its memory on a device; `None` if it says nothing
pub(crate) fn interface(object: &Bound<'_, PyAny>) -> PyResult<Option<Interface>> {
    let py = object.py();
    let Some(device) = object.getattr_opt(pyo3::intern!(py, "__dlpack_device__"))? else {
        return Ok(None);
    };
    let (kind, _): (i32, i64) = device.call0()?.extract()?;
    if kind != DEVICE_CUDA && kind != DEVICE_MANAGED {
        return Ok(None);
    }
    // The producer makes the stream of the argument wait for its own: the legacy default one.
    let options = pyo3::types::PyDict::new(py);
    options.set_item("stream", STREAM_LEGACY)?;
    let capsule = object.call_method("__dlpack__", (), Some(&options))?;
    // SAFETY: a capsule of this name holds a pointer to such a tensor, which lives as long as the
    // capsule does while no code renames it.
    let tensor = unsafe {
        let found = ffi::PyCapsule_GetPointer(capsule.as_ptr(), UNUSED.as_ptr());
        if found.is_null() {
            return Err(PyErr::fetch(py));
        }
        &(*found.cast::<Managed>()).tensor
    };
    let dimensions = usize::try_from(tensor.dimensions)
        .map_err(|_| PyTypeError::new_err("a tensor of fewer than no dimensions"))?;
    let numbers = |start: *mut i64| {
        (!start.is_null() && dimensions > 0)
            // SAFETY: shape and strides have so many entries, as long as the tensor lives.
            .then(|| unsafe { std::slice::from_raw_parts(start, dimensions) })
    };
    let shape = numbers(tensor.shape).unwrap_or_default();
    let shape: Vec<usize> = shape
        .iter()
        .map(|length| usize::try_from(*length))
        .collect::<Result<_, _>>()
        .map_err(|_| PyTypeError::new_err(format!("a tensor of shape {shape:?}")))?;
    let item_bytes = (usize::from(tensor.bits) * usize::from(tensor.lanes)).div_ceil(8);
    if let Some(strides) = numbers(tensor.strides) {
        let bytes = |stride: &i64| *stride as isize * item_bytes as isize;
        let strides: Vec<isize> = strides.iter().map(bytes).collect();
        check_contiguous(object, &shape, &strides, item_bytes)?;
    }
    Ok(Some(Interface {
        pointer: tensor.data as u64 + tensor.offset_bytes,
        bytes: shape.iter().product::<usize>() * item_bytes,
        is_readonly: false,
        stream: STREAM_LEGACY,
        speaks_of_streams: true,
        // Not renamed: when it goes, its own destructor frees the tensor.
        owner: Some(capsule.unbind()),
    }))
}

/// A capsule with a tensor of bytes over memory
pub(crate) fn capsule<'py>(
    object: &Bound<'py, PyAny>,
    memory: &DeviceMemory,
) -> PyResult<Bound<'py, PyAny>> {
    let own = Box::new(Own {
        managed: Managed {
            tensor: Tensor {
                data: memory.pointer() as usize as *mut c_void,
                device: Device {
                    kind: DEVICE_CUDA,
                    ordinal: i32::from(memory.device().ordinal),
                },
                dimensions: 1,
                code: CODE_UNSIGNED,
                bits: 8,
                lanes: 1,
                shape: std::ptr::null_mut(),
                strides: std::ptr::null_mut(),
                offset_bytes: 0,
            },
            context: std::ptr::null_mut(),
            deleter: Some(delete),
        },
        shape: [i64::try_from(memory.len()).unwrap_or(i64::MAX)],
        _memory: memory.clone(),
    });
    let own = Box::into_raw(own);
    // SAFETY: `own` was just made, and is freed once: by its deleter, which the consumer of the
    // tensor calls, or the destructor of a capsule whose tensor has no consumer.
    unsafe {
        (*own).managed.tensor.shape = (&raw mut (*own).shape).cast();
        let capsule = ffi::PyCapsule_New(own.cast(), UNUSED.as_ptr(), Some(destroy));
        if capsule.is_null() {
            drop(Box::from_raw(own));
        }
        Bound::from_owned_ptr_or_err(object.py(), capsule)
    }
}

/// The deleter of a tensor of this module
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: called once, with the first field of an `Own` that was boxed.
    drop(unsafe { Box::from_raw(managed.cast::<Own>()) });
}

/// The destructor of a capsule of this module
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter with the capsule. One that was taken has another name, and
    // then the tensor is no longer ours.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, UNUSED.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, UNUSED.as_ptr()).cast());
        }
    }
}

/// Name of a capsule whose tensor has not been taken
const UNUSED: &CStr = c"dltensor";

/// `kDLCUDA`
pub(crate) const DEVICE_CUDA: i32 = 2;

/// `kDLCUDAManaged`
const DEVICE_MANAGED: i32 = 13;

/// `kDLUInt`
const CODE_UNSIGNED: u8 = 1;

/// The legacy default stream, as Python's array standard counts
const STREAM_LEGACY: u64 = 1;
