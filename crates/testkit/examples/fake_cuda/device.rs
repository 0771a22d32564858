//! Devices, and what is asked about them.

use std::ffi::c_char;

use cudarc::driver::sys::{CUdevice, CUdevice_attribute, CUresult, CUuuid};

use crate::ffi::{Out, call, call_any_time};
use crate::settings::{settings, uuid};

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDriverGetVersion(version: Out<i32>) -> CUresult {
    call_any_time("cuDriverGetVersion", || version.put(settings().version))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetCount(count: Out<i32>) -> CUresult {
    call("cuDeviceGetCount", |driver| {
        count.put(i32::try_from(driver.count()).expect("a handful"))
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGet(device: Out<CUdevice>, ordinal: i32) -> CUresult {
    call("cuDeviceGet", |driver| {
        driver.device(ordinal)?;
        device.put(ordinal)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetName(
    name: Out<c_char>,
    length: i32,
    device: CUdevice,
) -> CUresult {
    call("cuDeviceGetName", |driver| {
        driver.device(device)?;
        put_text(name, length, "Fake CUDA device (memfd)")
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetPCIBusId(
    name: Out<c_char>,
    length: i32,
    device: CUdevice,
) -> CUresult {
    call("cuDeviceGetPCIBusId", |driver| {
        let physical = driver.physical(driver.device(device)?);
        put_text(
            name,
            length,
            &format!("0000:{:02x}:00.0", PCI_BUS + physical),
        )
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetUuid(to: Out<CUuuid>, device: CUdevice) -> CUresult {
    call("cuDeviceGetUuid", |driver| {
        let physical = driver.physical(driver.device(device)?);
        put_uuid(to, physical)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetUuid_v2(to: Out<CUuuid>, device: CUdevice) -> CUresult {
    call("cuDeviceGetUuid_v2", |driver| {
        let physical = driver.physical(driver.device(device)?);
        put_uuid(to, physical)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: CUdevice) -> CUresult {
    call("cuDeviceTotalMem_v2", |driver| {
        driver.device(device)?;
        bytes.put(settings().memory_bytes)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> CUresult {
    call("cuMemGetInfo_v2", |driver| {
        let device = driver.current()?;
        let used_bytes = driver.state().used_bytes[device];
        free.put(settings().memory_bytes - used_bytes)?;
        total.put(settings().memory_bytes)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetAttribute(
    value: Out<i32>,
    attribute: u32,
    device: CUdevice,
) -> CUresult {
    use CUdevice_attribute as A;
    call("cuDeviceGetAttribute", |driver| {
        let physical = driver.physical(driver.device(device)?);
        let is = |known: A| known as u32 == attribute;
        let yes = [
            A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
            A::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY,
            A::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
            A::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
            A::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS,
            A::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
            A::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED,
            A::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED,
            A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
            A::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
            // A bit mask, of the one type of handle: a file descriptor
            A::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES,
        ];
        value.put(
            if yes.into_iter().any(is) || attribute == IPC_EVENT_SUPPORTED {
                1
            } else if is(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) {
                9
            } else if is(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) {
                132
            } else if is(A::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT) {
                3
            } else if is(A::CU_DEVICE_ATTRIBUTE_WARP_SIZE) {
                32
            } else if is(A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) {
                i32::try_from(PCI_BUS + physical).expect("a handful")
            } else if (1..LAST_ATTRIBUTE).contains(&attribute) {
                0
            } else {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            },
        )
    })
}

/// Gives a text, shortened to fit, with its NUL
fn put_text(to: Out<c_char>, length: i32, text: &str) -> crate::error::Outcome {
    let length = usize::try_from(length).unwrap_or(0);
    let room = length
        .checked_sub(1)
        .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let text = text.bytes().take(room).chain([0]);
    to.cast::<u8>().put_all(text)
}

fn put_uuid(to: Out<CUuuid>, physical: usize) -> crate::error::Outcome {
    to.cast::<[u8; 16]>().put(uuid(physical))
}

/// The bus of the first device of the host
const PCI_BUS: usize = 0x10;
/// `CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED`, which the headers have from 12.1 on
const IPC_EVENT_SUPPORTED: u32 = 125;
/// Above those that drivers know
const LAST_ATTRIBUTE: u32 = 150;
