//! Attributes of pointers: `cuPointerGetAttribute` and its plural.

use std::ffi::c_void;

use cudarc::driver::sys::{CUdeviceptr, CUpointer_attribute as A, CUresult};

use crate::context::handle_of;
use crate::driver::{Driver, State};
use crate::error::Outcome;
use crate::ffi::{In, Out, call};
use crate::settings::settings;
use crate::space::{Allocation, Kind};

/// A value of an attribute, by how many bytes the caller has room for
///
/// The documentation says "boolean" of some and a bit mask of one: four bytes, as callers have them.
#[derive(Clone, Copy, Debug)]
enum Value {
    Four(u32),
    Eight(u64),
}

impl Value {
    fn put(self, to: Out<c_void>) -> Outcome {
        match self {
            Self::Four(value) => to.cast().put(value),
            Self::Eight(value) => to.cast().put(value),
        }
    }
}

/// An attribute that the driver answers for
fn known(attribute: u32) -> Outcome<A> {
    let known = [
        A::CU_POINTER_ATTRIBUTE_CONTEXT,
        A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        A::CU_POINTER_ATTRIBUTE_HOST_POINTER,
        A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
        A::CU_POINTER_ATTRIBUTE_BUFFER_ID,
        A::CU_POINTER_ATTRIBUTE_IS_MANAGED,
        A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        A::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        A::CU_POINTER_ATTRIBUTE_MAPPED,
        A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
        A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
    ];
    known
        .into_iter()
        .find(|&known| known as u32 == attribute)
        .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// An attribute of memory that the driver knows
fn value(
    state: &State,
    attribute: A,
    address: u64,
    it: &Allocation,
    current: Outcome<usize>,
) -> Outcome<Value> {
    // Of a mapping, the reservation is asked for; `cuMemGetAddressRange` tells the mapping itself.
    let (base, bytes) = match it.kind {
        Kind::Mapped { .. } => state
            .vmm
            .reservation(address)
            .expect("mapped where reserved"),
        _ => (it.base, it.bytes),
    };
    if !matches!(
        attribute,
        A::CU_POINTER_ATTRIBUTE_CONTEXT
            | A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE
            | A::CU_POINTER_ATTRIBUTE_HOST_POINTER
            | A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
            | A::CU_POINTER_ATTRIBUTE_IS_MANAGED
            | A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    ) {
        current?;
    }
    let flag = |flag| Value::Four(u32::from(flag));
    Ok(match attribute {
        A::CU_POINTER_ATTRIBUTE_CONTEXT => {
            Value::Eight(it.context().map_or(0, |device| handle_of(device).addr()) as u64)
        }
        A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
            Value::Four(if it.is_device() { DEVICE } else { HOST })
        }
        A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER => Value::Eight(address),
        A::CU_POINTER_ATTRIBUTE_HOST_POINTER if it.is_host() => Value::Eight(address),
        A::CU_POINTER_ATTRIBUTE_HOST_POINTER => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        A::CU_POINTER_ATTRIBUTE_BUFFER_ID => Value::Eight(it.buffer_id),
        A::CU_POINTER_ATTRIBUTE_IS_MANAGED => flag(matches!(it.kind, Kind::Managed)),
        A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => {
            Value::Four(u32::try_from(it.device).expect("a handful"))
        }
        A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
            flag(settings().ipc_flag && matches!(it.kind, Kind::Device { .. }))
        }
        A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR | A::CU_POINTER_ATTRIBUTE_RANGE_SIZE
            if matches!(it.kind, Kind::Managed) =>
        {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => Value::Eight(base),
        A::CU_POINTER_ATTRIBUTE_RANGE_SIZE => Value::Eight(bytes as u64),
        A::CU_POINTER_ATTRIBUTE_MAPPED => flag(true),
        A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => Value::Eight(match it.kind {
            Kind::Pooled { pool, .. } => pool as u64,
            _ => 0,
        }),
        A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => Value::Four(match it.kind {
            Kind::Mapped { handle, .. } => state.vmm.handle_types(handle),
            Kind::Pooled { pool, .. } => state.pools.handle_types(pool),
            _ => 0,
        }),
        // The one that is left, `SYNC_MEMOPS`, is never set.
        _ => Value::Four(0),
    })
}

/// An attribute of memory that the driver does not know
fn nothing(attribute: A) -> Value {
    match attribute {
        A::CU_POINTER_ATTRIBUTE_CONTEXT
        | A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER
        | A::CU_POINTER_ATTRIBUTE_HOST_POINTER
        | A::CU_POINTER_ATTRIBUTE_BUFFER_ID
        | A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
        | A::CU_POINTER_ATTRIBUTE_RANGE_SIZE
        | A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => Value::Eight(0),
        _ => Value::Four(0),
    }
}

/// An attribute of any address
fn answer(driver: &Driver, attribute: A, address: u64) -> Outcome<Value> {
    let current = driver.current();
    let state = driver.state();
    if let Some(allocation) = state.space.find(address) {
        return value(&state, attribute, address, allocation, current);
    }
    // A reserved address is a range, and nothing else.
    let reserved = state.vmm.reservation(address);
    let (base, bytes) = reserved.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    match attribute {
        A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => Ok(Value::Eight(base)),
        A::CU_POINTER_ATTRIBUTE_RANGE_SIZE => Ok(Value::Eight(bytes as u64)),
        A::CU_POINTER_ATTRIBUTE_MAPPED => Ok(Value::Four(0)),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuPointerGetAttribute(
    to: Out<c_void>,
    attribute: u32,
    address: CUdeviceptr,
) -> CUresult {
    call("cuPointerGetAttribute", |driver| {
        answer(driver, known(attribute)?, address)?.put(to)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuPointerGetAttributes(
    count: u32,
    attributes: In<u32>,
    to: In<Out<c_void>>,
    address: CUdeviceptr,
) -> CUresult {
    call("cuPointerGetAttributes", |driver| {
        let attributes = attributes.read_all(count as usize)?;
        let to = to.read_all(count as usize)?;
        for (attribute, to) in attributes.into_iter().zip(to) {
            let attribute = known(attribute)?;
            let value = answer(driver, attribute, address);
            value.unwrap_or_else(|_| nothing(attribute)).put(to)?;
        }
        Ok(())
    })
}

/// `CU_MEMORYTYPE_HOST`
const HOST: u32 = 1;
/// `CU_MEMORYTYPE_DEVICE`
const DEVICE: u32 = 2;
