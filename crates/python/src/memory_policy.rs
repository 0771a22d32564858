//! The memory policy of the calling thread: which NUMA nodes its pages come from.
//!
//! Linux keeps it for each thread, and hands it on to threads and processes that the thread makes,
//! across `execve` (`set_mempolicy(2)`). Neither Python nor rustix has these two calls. Only this
//! module of the crate, `buffer` and `numpy_memory` may be unsafe.

#![allow(
    unsafe_code,
    reason = "two system calls that no safe wrapper has; see the module's doc"
)]

use std::io;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

/// Most NUMA nodes that a kernel can be built for (`CONFIG_NODES_SHIFT` is 10 at most)
const NODES_MAX: usize = 1024;
const WORD_BITS: usize = libc::c_ulong::BITS as usize;
/// The kernel takes one off the number of bits in its argument
const MASK_BITS: libc::c_ulong = NODES_MAX as libc::c_ulong + 1;

/// One bit for each NUMA node
type NodeMask = [libc::c_ulong; NODES_MAX / WORD_BITS];

#[doc = stub_doc!("memory_policy")]
#[pyfunction]
pub(crate) fn memory_policy() -> PyResult<(i32, Vec<u32>)> {
    let mut mode: libc::c_int = 0;
    let mut mask: NodeMask = [0; NODES_MAX / WORD_BITS];
    // SAFETY: `mode` and `mask` are ours and outlive the call; it writes an int, and at most
    // `MASK_BITS - 1` bits, which is the length of `mask`. Address 0 and no flags: the thread's own.
    let status = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            mask.as_mut_ptr(),
            MASK_BITS,
            0usize,
            0usize,
        )
    };
    if status != 0 {
        return Err(system_error());
    }
    let nodes = (0..NODES_MAX)
        .filter(|node| mask[node / WORD_BITS] >> (node % WORD_BITS) & 1 == 1)
        .map(|node| node as u32)
        .collect();
    Ok((mode, nodes))
}

#[doc = stub_doc!("set_memory_policy")]
#[pyfunction]
pub(crate) fn set_memory_policy(mode: i32, nodes: Vec<u32>) -> PyResult<()> {
    let mut mask: NodeMask = [0; NODES_MAX / WORD_BITS];
    for node in nodes {
        let bit = node as usize;
        if bit >= NODES_MAX {
            return Err(PyValueError::new_err(format!(
                "NUMA node {node} is out of range: the last one can be {}",
                NODES_MAX - 1
            )));
        }
        mask[bit / WORD_BITS] |= 1 << (bit % WORD_BITS);
    }
    // SAFETY: `mask` outlives the call, which reads `MASK_BITS - 1` bits of it, its length.
    let status = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask.as_ptr(), MASK_BITS) };
    if status != 0 {
        return Err(system_error());
    }
    Ok(())
}

/// The error of the last system call, with its number
fn system_error() -> PyErr {
    let error = io::Error::last_os_error();
    PyOSError::new_err((error.raw_os_error(), error.to_string()))
}
