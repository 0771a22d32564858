//! Byte ring

use std::io::{IoSlice, IoSliceMut};

use thiserror::Error;

/// Writing end of a ring
#[derive(Debug)]
pub struct Producer {}

impl Producer {
    /// Copies as much as fits, returning how many bytes; 0 if the ring is full
    ///
    /// # Errors
    ///
    /// [`RingError::Corrupt`]
    pub fn write(&mut self, _bytes: &[u8]) -> Result<usize, RingError> {
        todo!()
    }

    /// Copies as much as fits of several slices, in order
    ///
    /// # Errors
    ///
    /// [`RingError::Corrupt`]
    pub fn write_vectored(&mut self, _slices: &[IoSlice<'_>]) -> Result<usize, RingError> {
        todo!()
    }

    /// Bytes that a write would take now
    ///
    /// # Errors
    ///
    /// [`RingError::Corrupt`]
    pub fn free_bytes(&mut self) -> Result<usize, RingError> {
        todo!()
    }

    /// Takes the consumer's waiting flag: true means ring its doorbell
    pub fn take_peer_waiting(&mut self) -> bool {
        todo!()
    }

    /// Announces sleep: true if the ring is still full and sleeping is safe
    ///
    /// # Errors
    ///
    /// [`RingError::Corrupt`]
    pub fn arm(&mut self) -> Result<bool, RingError> {
        todo!()
    }

    /// Withdraws the announcement
    pub fn disarm(&mut self) {
        todo!()
    }

    /// Capacity of the ring, in bytes
    pub fn capacity_bytes(&self) -> usize {
        todo!()
    }
}

/// Reading end of a ring
#[derive(Debug)]
pub struct Consumer {}

impl Consumer {
    /// Copies what is there, returning how many bytes; 0 if the ring is empty
    ///
    /// # Errors
    ///
    /// [`RingError::Corrupt`]
    pub fn read(&mut self, _buffer: &mut [u8]) -> Result<usize, RingError> {
        todo!()
    }

    /// Copies what is there into several buffers, in order
    ///
    /// # Errors
    ///
    /// [`RingError::Corrupt`]
    pub fn read_vectored(&mut self, _buffers: &mut [IoSliceMut<'_>]) -> Result<usize, RingError> {
        todo!()
    }

    /// Bytes that a read would give now
    ///
    /// # Errors
    ///
    /// [`RingError::Corrupt`]
    pub fn available(&mut self) -> Result<usize, RingError> {
        todo!()
    }

    /// Takes the producer's waiting flag: true means ring its doorbell
    pub fn take_peer_waiting(&mut self) -> bool {
        todo!()
    }

    /// Announces sleep: true if the ring is still empty and sleeping is safe
    ///
    /// # Errors
    ///
    /// [`RingError::Corrupt`]
    pub fn arm(&mut self) -> Result<bool, RingError> {
        todo!()
    }

    /// Withdraws the announcement
    pub fn disarm(&mut self) {
        todo!()
    }

    /// Capacity of the ring, in bytes
    pub fn capacity_bytes(&self) -> usize {
        todo!()
    }
}

/// Why a ring cannot be used any more
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum RingError {
    /// The peer published an index that no honest peer could have
    #[error("peer corrupted the ring: head {head}, tail {tail}, capacity {capacity} bytes")]
    Corrupt {
        /// Bytes ever written
        head: u64,
        /// Bytes ever read
        tail: u64,
        /// Capacity, in bytes
        capacity: u64,
    },
}
