//! Copies and fills: which memory an address is, and when a call returns.
//!
//! When it returns is the driver API's "API synchronization behavior". Managed memory counts as what
//! is waited for, which that text said until 11.1 and leaves open since.

use std::ffi::c_void;

use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUcontext, CUdeviceptr, CUmemorytype, CUresult, CUstream,
};

use crate::driver::{Driver, State};
use crate::error::Outcome;
use crate::ffi::call;
use crate::props::{READ, READ_WRITE};
use crate::settings::settings;
use crate::space::{Allocation, Kind, Piece, Place};

/// Bytes of one sort, which may lie apart
#[derive(Debug)]
struct Span {
    pieces: Vec<Piece>,
    sort: Sort,
}

/// Kind of memory for a copy
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Sort {
    Device,
    Managed,
    Pinned,
    Pageable,
}

impl Sort {
    fn is_host(self) -> bool {
        matches!(self, Self::Pinned | Self::Pageable)
    }
}

/// Possible kinds of an address
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Side {
    /// Memory that the driver knows
    Device,
    /// Memory that the host may touch
    Host,
    /// Either: the driver finds out
    Any,
}

/// One end of a copy
#[derive(Clone, Copy, Debug)]
struct End {
    address: u64,
    side: Side,
    /// The device that touches it, if that is not the one of the stream
    by: Option<usize>,
}

impl End {
    fn after(self, bytes: u64) -> Self {
        Self {
            address: self.address + bytes,
            ..self
        }
    }
}

impl State {
    /// The memory behind a range of addresses, if a device may do with it what is wanted
    fn span(&self, end: End, bytes: usize, device: usize, wanted: u32) -> Outcome<Span> {
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        let End { address, side, by } = end;
        let device = by.unwrap_or(device);
        let Some(first) = self.space.find(address) else {
            let known = side == Side::Device || address == 0 || self.space.reserves(address);
            return if known {
                Err(invalid)
            } else {
                Ok(pageable(address, bytes))
            };
        };
        if side == Side::Host && !first.is_host() {
            return Err(invalid);
        }
        let sort = match first.kind {
            Kind::Managed => Sort::Managed,
            Kind::Pinned | Kind::Registered => Sort::Pinned,
            _ => Sort::Device,
        };
        let mut pieces = Vec::new();
        let (mut at, mut left) = (address, bytes);
        while left > 0 {
            let part = self.space.find(at).ok_or(invalid)?;
            // Only mappings side by side are one range.
            let joins = at == address || [first, part].iter().all(|it| is_mapped(it));
            if !joins || !self.allows(part, device, wanted) {
                return Err(invalid);
            }
            let piece = part.piece(at, left);
            at += piece.bytes as u64;
            left -= piece.bytes;
            pieces.push(piece);
        }
        Ok(Span { pieces, sort })
    }

    /// Returns whether a device may access memory as wanted
    ///
    /// Copies between devices go where no peer access is enabled; only memory that keeps a list
    /// asks for more.
    fn allows(&self, allocation: &Allocation, device: usize, wanted: u32) -> bool {
        match &allocation.kind {
            Kind::Mapped { access, .. } => access
                .get(&device)
                .is_some_and(|flags| flags & wanted == wanted),
            Kind::Pooled { pool, .. } => self.pools.allows(*pool, device, wanted),
            _ => true,
        }
    }
}

fn is_mapped(allocation: &Allocation) -> bool {
    matches!(allocation.kind, Kind::Mapped { .. })
}

fn pageable(address: u64, bytes: usize) -> Span {
    let address = usize::try_from(address).expect("addresses have 64 bits");
    let place = Place::Host(address);
    let pieces = vec![Piece { place, bytes }];
    let sort = Sort::Pageable;
    Span { pieces, sort }
}

impl Driver {
    /// Copies in the NULL stream, and waits for what the documentation says is waited for
    fn copy(&self, target: End, source: End, bytes: usize) -> Outcome {
        let device = self.current()?;
        if bytes == 0 {
            return Ok(());
        }
        let (target, mut source) = self.spans(target, source, bytes, device)?;
        let stream = self.stream(std::ptr::null_mut())?;
        let staged = source.sort == Sort::Pageable && target.sort == Sort::Device;
        let among_devices = source.sort == Sort::Device && target.sort == Sort::Device;
        let waits = !(staged || among_devices);
        // The bytes that a staged copy takes along
        let mut stage = Vec::new();
        if staged {
            self.synchronize(&stream);
            stage.resize(bytes, 0);
            let to = pageable(stage.as_mut_ptr().expose_provenance() as u64, bytes);
            transfer(&to.pieces, &source.pieces);
            source = to;
        }
        let mark = self.submit(&stream, move || {
            transfer(&target.pieces, &source.pieces);
            drop(stage);
        });
        if waits {
            mark.wait();
        }
        Ok(())
    }

    /// Copies in a stream; only between host memory does the call wait
    fn copy_async(&self, target: End, source: End, bytes: usize, stream: CUstream) -> Outcome {
        self.current()?;
        let stream = self.stream(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        let (target, source) = self.spans(target, source, bytes, stream.context)?;
        let waits = target.sort.is_host() && source.sort.is_host();
        let takes_turns = target.sort == Sort::Device && source.sort == Sort::Device;
        let mark = self.submit(&stream, move || {
            if takes_turns && !settings().turn.is_zero() {
                std::thread::sleep(settings().turn);
            }
            transfer(&target.pieces, &source.pieces);
        });
        if waits {
            mark.wait();
        }
        Ok(())
    }

    fn spans(
        &self,
        target: End,
        source: End,
        bytes: usize,
        device: usize,
    ) -> Outcome<(Span, Span)> {
        let state = self.state();
        let target = state.span(target, bytes, device, READ_WRITE)?;
        Ok((target, state.span(source, bytes, device, READ)?))
    }

    /// Fills; only memory of the host is waited for, and that only if the call is a synchronous one
    fn fill(&self, address: u64, value: u8, bytes: usize, stream: Option<CUstream>) -> Outcome {
        self.current()?;
        let waits = stream.is_none();
        let stream = self.stream(stream.unwrap_or(std::ptr::null_mut()))?;
        if bytes == 0 {
            return Ok(());
        }
        let target = self
            .state()
            .span(device(address), bytes, stream.context, READ_WRITE)?;
        let waits = waits && target.sort != Sort::Device;
        let mark = self.submit(&stream, move || {
            for piece in &target.pieces {
                // SAFETY: a piece is within an allocation, which it holds, or within what the
                // application has registered.
                unsafe {
                    piece.place.pointer().write_bytes(value, piece.bytes);
                }
            }
        });
        if waits {
            mark.wait();
        }
        Ok(())
    }
}

/// Copies pieces to pieces, both of as many bytes
fn transfer(target: &[Piece], source: &[Piece]) {
    let (mut targets, mut sources) = (target.iter(), source.iter());
    let (mut to, mut from) = (targets.next(), sources.next());
    let (mut written, mut read) = (0, 0);
    while let (Some(target), Some(source)) = (to, from) {
        let bytes = (target.bytes - written).min(source.bytes - read);
        // SAFETY: each piece is within an allocation, which it holds, or is what the application
        // gave for the copy; `bytes` more are in both. They may overlap.
        unsafe {
            let to = target.place.pointer().add(written);
            let from = source.place.pointer().add(read);
            std::ptr::copy(from, to, bytes);
        }
        (written, read) = (written + bytes, read + bytes);
        if written == target.bytes {
            (to, written) = (targets.next(), 0);
        }
        if read == source.bytes {
            (from, read) = (sources.next(), 0);
        }
    }
}

fn device(address: CUdeviceptr) -> End {
    End {
        address,
        side: Side::Device,
        by: None,
    }
}

fn any(address: CUdeviceptr) -> End {
    End {
        address,
        side: Side::Any,
        by: None,
    }
}

fn host<T>(pointer: *const T) -> End {
    End {
        address: pointer.expose_provenance() as u64,
        side: Side::Host,
        by: None,
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> CUresult {
    call("cuMemcpy", |driver| driver.copy(any(to), any(from), bytes))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyAsync(
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    call("cuMemcpyAsync", |driver| {
        driver.copy_async(any(to), any(from), bytes, stream)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyHtoD_v2(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
) -> CUresult {
    call("cuMemcpyHtoD_v2", |driver| {
        driver.copy(device(to), host(from), bytes)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    call("cuMemcpyHtoDAsync_v2", |driver| {
        driver.copy_async(device(to), host(from), bytes, stream)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyDtoH_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
) -> CUresult {
    call("cuMemcpyDtoH_v2", |driver| {
        driver.copy(host(to), device(from), bytes)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    call("cuMemcpyDtoHAsync_v2", |driver| {
        driver.copy_async(host(to), device(from), bytes, stream)
    })
}

/// Row by row: what a stream does is in order
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpy2DAsync_v2(
    copy: *const CUDA_MEMCPY2D,
    stream: CUstream,
) -> CUresult {
    call("cuMemcpy2DAsync_v2", |driver| {
        // SAFETY: a description that the application gives, to be read during the call.
        let copy = unsafe { copy.as_ref() }.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let at_start = [copy.srcXInBytes, copy.srcY, copy.dstXInBytes, copy.dstY] == [0; 4];
        let is_wide = copy.srcPitch >= copy.WidthInBytes && copy.dstPitch >= copy.WidthInBytes;
        if !at_start || !is_wide {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        for row in 0..copy.Height as u64 {
            let from = corner(copy.srcMemoryType, copy.srcHost, copy.srcDevice)?;
            let to = corner(copy.dstMemoryType, copy.dstHost, copy.dstDevice)?;
            let (from, to) = (
                from.after(row * copy.srcPitch as u64),
                to.after(row * copy.dstPitch as u64),
            );
            driver.copy_async(to, from, copy.WidthInBytes, stream)?;
        }
        Ok(())
    })
}

/// Where the first row begins
fn corner<T>(kind: CUmemorytype, on_host: *const T, on_device: CUdeviceptr) -> Outcome<End> {
    match kind {
        CUmemorytype::CU_MEMORYTYPE_HOST => Ok(host(on_host)),
        CUmemorytype::CU_MEMORYTYPE_DEVICE => Ok(device(on_device)),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyDtoD_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
) -> CUresult {
    call("cuMemcpyDtoD_v2", |driver| {
        driver.copy(device(to), device(from), bytes)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyDtoDAsync_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    call("cuMemcpyDtoDAsync_v2", |driver| {
        driver.copy_async(device(to), device(from), bytes, stream)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyPeerAsync(
    to: CUdeviceptr,
    to_context: CUcontext,
    from: CUdeviceptr,
    from_context: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    call("cuMemcpyPeerAsync", |driver| {
        let (mut to, mut from) = (device(to), device(from));
        to.by = Some(driver.context(to_context)?);
        from.by = Some(driver.context(from_context)?);
        driver.copy_async(to, from, bytes, stream)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemsetD8_v2(to: CUdeviceptr, value: u8, bytes: usize) -> CUresult {
    call("cuMemsetD8_v2", |driver| {
        driver.fill(to, value, bytes, None)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemsetD8Async(
    to: CUdeviceptr,
    value: u8,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    call("cuMemsetD8Async", |driver| {
        driver.fill(to, value, bytes, Some(stream))
    })
}
