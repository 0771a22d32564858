//! A CUDA driver without a device: `libfake_cuda.so`, to be found as `libcuda.so` and `libcuda.so.1`.
//!
//! It keeps the rules of the driver API, so that code above it that breaks one sees what it would
//! see on a GPU: device memory that the host cannot touch, contexts for each thread, streams that
//! lag behind, and handles that open where the documentation says that they open. Names, types and
//! numbers are those of `cudarc::driver::sys`; the rules are those of NVIDIA's documentation of the
//! driver API (the comments of `cuda.h` 12.9), and where that leaves a choice, the harsher one.
//!
//! # How it is made
//!
//! Memory of a device is a memfd that the driver maps for itself (`backing`); the application gets
//! an address in a reservation that no code may touch (`space`), reused as soon as it is free.
//! A stream is a queue and a thread (`queue`). Peers find each other's memory through
//! `/proc/PID/fd`, so they must run as one user and in one PID namespace.
//!
//! # Environment
//!
//! | variable | what it sets |
//! |---|---|
//! | `FAKE_CUDA_DEVICES` | devices of the host, 1 by default; 0: `cuInit` finds none |
//! | `CUDA_VISIBLE_DEVICES` | which of these, by index or UUID, up to the first that is not there |
//! | `FAKE_CUDA_MEMORY_MIB` | memory of each device, for each process, 1024 by default |
//! | `FAKE_CUDA_DELAY_US` | how long each operation on a stream waits before it starts, 0 by default |
//! | `FAKE_CUDA_TURN_US` | how long a copy within a device waits besides, as where another process has it |
//! | `FAKE_CUDA_NO_PEER` | 1: no device reaches another's memory |
//! | `FAKE_CUDA_UNSEEN` | `open`: handles of devices that this process does not see open, as the documentation of `cudaIpcOpenMemHandle` says; they do not by default, as where a container isolates devices |
//! | `FAKE_CUDA_NO_IPC_FLAG` | 1: no memory says that handles can be had of it, as with drivers that have this fault |
//! | `FAKE_CUDA_VERSION` | what `cuDriverGetVersion` says, 12000 by default |
//! | `FAKE_CUDA_FAIL` | calls that fail, as `cuIpcGetMemHandle=801,cuMemAlloc_v2=2` |
//!
//! # What shows
//!
//! - Freed memory is overwritten with 0xDD where a peer or an operation under way could still see
//!   it, memory of a stream-ordered allocation with 0xCD once its turn comes.
//! - Addresses come back at once, buffer ids never.
//! - Host functions run one at a time, in a thread that may not call the driver.
//! - A synchronous copy from pageable memory returns once the bytes are staged, and one between
//!   device memory returns at once, as documented: other streams than the NULL stream's see old bytes.
//! - Asynchronous copies read and write host memory when their turn comes, never before.
//!
//! # What is chosen, since the documentation leaves it open
//!
//! - Which error says what, where it lists several: a handle of freed memory or of a dead process
//!   does not open with `MAP_FAILED`; one of the own process with `INVALID_CONTEXT`, which
//!   applications report; one of a device that is not seen with `INVALID_DEVICE`, and of one out of
//!   reach with `PEER_ACCESS_UNSUPPORTED`. Do not tell these apart.
//! - Every call that lists `INVALID_CONTEXT` needs a current context, though some drivers find it
//!   by the stream or the event.
//! - What a pointer is can be asked without a current context, but not its range, nor how it is
//!   shared; the range of managed memory is not told.
//! - `CU_POINTER_ATTRIBUTE_CONTEXT` is null for memory of pools and of `cuMemMap`; flags are written
//!   in four bytes; the default of an attribute of a pointer of the host is zero.
//! - A copy counts as made by the device of its stream, where memory asks who may touch it.
//! - A pool exports its pointers only once it is exported itself, and one that is imported twice has
//!   one address and goes with the first free, as drivers were seen to do.
//!
//! # What it cannot show
//!
//! The ordering and caches of real hardware; speed, overlap and the cost of any call; real
//! allocators, their fragmentation and what they share between allocations (here each `cuMemAlloc`
//! is memory of its own, while a driver may export its neighbours with it); real pages, migration of
//! managed memory and what pinning costs; kernels, graphs (only what spoils their capture), arrays,
//! sticky errors of a context; NVLink, RDMA, MPS, MIG; what the documentation calls undefined, beyond
//! the patterns above.

#![allow(non_snake_case, reason = "the names are NVIDIA's")]

mod alloc;
mod backing;
mod capture;
mod context;
mod copy;
mod device;
mod driver;
mod error;
mod event;
mod ffi;
mod for_ucx;
mod host;
mod ipc;
mod pointer;
mod pool;
mod pool_sharing;
mod props;
mod queue;
mod settings;
mod space;
mod stream;
mod vmm;
