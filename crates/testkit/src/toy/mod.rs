//! A device, a lane and a carrier made outside the fabric, which shows that its seams are seams.

pub mod device;

pub use device::ToyDevice;
