//! Copies within a device that take their way through memory of the host.
//!
//! A device copies its own memory with the engine that runs kernels, which belongs to one process at a time:
//! where two use a device in turn, each copy waits until the engine has been handed over (H100: 150 us,
//! whatever the size). A copy to or from pinned memory of the host goes by other engines,
//! which go from process to process within a few microseconds. So a small copy is sooner there by a detour.
//!
//! The driver may write small copies from the host into its stream of commands, which the first engine
//! reads (16 KiB and less, and not 64 KiB, as measured there with 580.159); those of several rows it does
//! not.

use std::any::Any;
use std::ffi::c_void;

use cudarc::driver::sys::{CUDA_MEMCPY2D, CUmemorytype, CUstream};

use crate::driver::{Device, Driver};
use crate::error::CudaError;
use crate::place::Place;
use crate::stage::{STAGE_BYTES, Stage};
use crate::transfer::Transfer;

/// Most bytes that go by the host: more would be later there (H100, 4 MiB: 136 us)
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Detour {
    bytes: usize,
}

/// Two rows of bytes, side by side on a device and apart on the host
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Rows {
    /// Where they begin, on the device and on the host
    at: usize,
    host_at: usize,
    width: usize,
    host_pitch: usize,
}

/// Ends of a copy, and the memory between them
#[derive(Clone, Copy)]
struct Ends {
    from: u64,
    to: u64,
    host: *mut u8,
}

impl Detour {
    /// That of so many bytes; `None` if it is not worth it, or not possible
    #[must_use]
    pub fn of(bytes: u64) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok()?;
        // A single byte makes no two rows.
        (2..=STAGE_BYTES).contains(&bytes).then_some(Self { bytes })
    }

    /// The rows as which it is copied; none if it is large enough to be copied as it is
    fn rows(self) -> [Option<Rows>; 2] {
        if self.bytes >= ROWS_BELOW {
            return [None; 2];
        }
        let rows = |at, host_at, width: usize| Rows {
            at,
            host_at,
            width,
            // Not what is between the rows on the device: that would be one row.
            host_pitch: width.next_multiple_of(ROW_ALIGNMENT) + ROW_ALIGNMENT,
        };
        let most = rows(0, 0, self.bytes / 2);
        // The last byte, with the one before it.
        let host_at = 2 * most.host_pitch;
        let last = (self.bytes % 2 == 1).then(|| rows(self.bytes - 2, host_at, 1));
        [Some(most), last]
    }

    /// The pieces as which it is copied else, so that one leaves the host while the next arrives there
    fn pieces(self) -> impl Iterator<Item = (usize, usize)> {
        let count = (self.bytes / PIECE_BYTES).clamp(1, PIECES_MAX);
        let size = self.bytes.div_ceil(count);
        (0..count).map(move |index| {
            let at = index * size;
            (at, size.min(self.bytes - at))
        })
    }
}

impl Transfer {
    /// Copies between places of one device that may be touched now, by way of the host
    ///
    /// The rest is as of [`copy`](Self::copy).
    ///
    /// # Errors
    ///
    /// Errors that the driver reports. Nothing has begun then.
    ///
    /// # Panics
    ///
    /// If either place is shorter than what is copied.
    pub fn by_host(
        driver: &'static Driver,
        from: &Place,
        to: &Place,
        detour: Detour,
        stage: Stage,
        keep: impl Any + Send,
    ) -> Result<Self, CudaError> {
        let bytes = from.memory.bytes.min(to.memory.bytes);
        assert!(bytes >= detour.bytes as u64, "{bytes} bytes for {detour:?}");
        let device = to.device(driver);
        let ends = Ends {
            from: from.memory.address,
            to: to.memory.address,
            host: stage.address(),
        };
        Self::begin(driver, device, &[], (stage, keep), |stream| {
            // SAFETY: both were looked at, are of the device, and are kept, as is the stage, until what
            // is on the stream is over.
            unsafe {
                let copied = if detour.bytes < ROWS_BELOW {
                    ends.copy_rows(driver, detour, stream)
                } else {
                    ends.copy_pieces(driver, device, detour, stream)
                };
                if copied.is_err() {
                    // The memory may be used in another way now.
                    let _ = driver.api.cuStreamSynchronize(stream);
                }
                copied
            }
        })
    }
}

impl Ends {
    /// Copies small ones
    ///
    /// # Safety
    ///
    /// As many bytes are there at both ends, and a stage for them between, until the stream is through.
    unsafe fn copy_rows(
        self,
        driver: &Driver,
        detour: Detour,
        stream: CUstream,
    ) -> Result<(), CudaError> {
        for rows in detour.rows().into_iter().flatten() {
            // SAFETY: numbers, and pointers that may be null; 0 is no type of memory, but is replaced.
            let mut copy = CUDA_MEMCPY2D {
                srcXInBytes: 0,
                srcY: 0,
                srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
                srcHost: std::ptr::null(),
                srcDevice: self.from + rows.at as u64,
                srcArray: std::ptr::null_mut(),
                srcPitch: rows.width,
                dstXInBytes: 0,
                dstY: 0,
                dstMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
                dstHost: self.host_at(rows.host_at),
                dstDevice: 0,
                dstArray: std::ptr::null_mut(),
                dstPitch: rows.host_pitch,
                WidthInBytes: rows.width,
                Height: 2,
            };
            // SAFETY: as the caller says; the rows are within.
            unsafe { driver.api.cuMemcpy2DAsync_v2(&raw const copy, stream) }?;
            copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_HOST;
            copy.srcHost = self.host_at(rows.host_at);
            copy.srcPitch = rows.host_pitch;
            copy.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
            copy.dstDevice = self.to + rows.at as u64;
            copy.dstPitch = rows.width;
            // SAFETY: as above.
            unsafe { driver.api.cuMemcpy2DAsync_v2(&raw const copy, stream) }?;
        }
        Ok(())
    }

    /// Copies larger ones, on two streams: one to the host, and the given one from there
    ///
    /// # Safety
    ///
    /// As many bytes are there at both ends, and a stage for them between, until the stream is through.
    unsafe fn copy_pieces(
        self,
        driver: &'static Driver,
        device: &Device,
        detour: Detour,
        stream: CUstream,
    ) -> Result<(), CudaError> {
        let front = device.streams.take(driver, device)?;
        let api = &driver.api;
        let copied = detour.pieces().try_for_each(|(at, bytes)| {
            let (from, to) = (self.from + at as u64, self.to + at as u64);
            let host = self.host_at(at);
            // SAFETY: as the caller says, the piece is within; a stream and an event of this crate.
            // The event may be recorded again at once: what waits for it waits for what was
            // recorded before.
            unsafe {
                api.cuMemcpyDtoHAsync_v2(host, from, bytes, front.stream)?;
                api.cuEventRecord(front.before, front.stream)?;
                api.cuStreamWaitEvent(stream, front.before, 0)?;
                api.cuMemcpyHtoDAsync_v2(to, host, bytes, stream)
            }
        });
        if copied.is_err() {
            // The given stream may not wait for all that is on this one.
            // SAFETY: a stream of this crate.
            let _ = unsafe { api.cuStreamSynchronize(front.stream) };
        }
        // Work that is put on it next comes behind.
        device.streams.put_back(front);
        copied
    }

    fn host_at(self, at: usize) -> *mut c_void {
        self.host.wrapping_add(at).cast()
    }
}

/// A shorter copy goes as rows
const ROWS_BELOW: usize = 64 << 10;

/// Distance of rows on the host
const ROW_ALIGNMENT: usize = 512;

/// Pieces of 1 MiB: one takes 56 us, two 49, four 53
const PIECE_BYTES: usize = 512 << 10;

/// Most pieces: each takes the driver 10 us
const PIECES_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_cover_each_byte_and_lie_apart_on_the_host() {
        for bytes in (2..600).chain([4096, 4097, ROWS_BELOW - 2, ROWS_BELOW - 1]) {
            let detour = Detour { bytes };
            let mut covered = vec![false; bytes];
            let mut on_host = Vec::new();
            for rows in detour.rows().into_iter().flatten() {
                assert!(rows.host_pitch > rows.width);
                for row in 0..2 {
                    let at = rows.at + row * rows.width;
                    covered[at..at + rows.width].fill(true);
                    let at = rows.host_at + row * rows.host_pitch;
                    on_host.push(at..at + rows.width);
                }
            }
            assert!(covered.iter().all(|it| *it), "{bytes}");
            on_host.sort_by_key(|row| row.start);
            assert!(on_host.windows(2).all(|two| two[0].end <= two[1].start));
            assert!(on_host.last().is_some_and(|row| row.end <= STAGE_BYTES));
        }
    }

    #[test]
    fn pieces_cover_each_byte_once() {
        for bytes in [
            ROWS_BELOW,
            PIECE_BYTES,
            (1 << 20) + 1,
            STAGE_BYTES - 1,
            STAGE_BYTES,
        ] {
            let detour = Detour { bytes };
            let end = detour.pieces().fold(0, |end, (at, size)| {
                assert_eq!(at, end);
                at + size
            });
            assert_eq!(end, bytes);
        }
    }

    #[test]
    fn what_is_short_or_long_takes_no_detour() {
        assert_eq!([0, 1, (2 << 20) + 1].map(Detour::of), [None; 3]);
    }
}
