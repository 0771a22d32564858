//! Structures that are passed to libucp, as of its versions 1.13 to 1.22.
//!
//! Written by hand from the public headers `ucp.h`, `ucp_def.h` and `status.h`. Structures only ever
//! grow at their end, so each is here at the size of 1.22, zeroed, with a mask that names fields which
//! every version since 1.13 knows: what a version does not know it does not look at.
//! The value of `UCS_MEMORY_TYPE_UNKNOWN` differs between versions, so it is never passed.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// A handle, a descriptor or a request of libucp
pub(crate) type Handle = *mut c_void;

/// The outcome of a call: 0, [`IN_PROGRESS`], or a negative error
pub(crate) type RawStatus = c_int;

pub(crate) const OK: RawStatus = 0;
pub(crate) const IN_PROGRESS: RawStatus = 1;
pub(crate) const BUSY: RawStatus = -15;
/// Errors lie between this and 0
pub(crate) const STATUS_LAST: RawStatus = -100;

/// `ucp_params_t`: 80 bytes until 1.20, 88 since
#[repr(C)]
pub(crate) struct ContextParams {
    pub(crate) field_mask: u64,
    pub(crate) features: u64,
    request_size: usize,
    request_init: Handle,
    request_cleanup: Handle,
    tag_sender_mask: u64,
    mt_workers_shared: c_int,
    estimated_num_eps: usize,
    estimated_num_ppn: usize,
    pub(crate) name: *const c_char,
    node_local_id: usize,
}

pub(crate) const CONTEXT_FEATURES: u64 = 1 << 0;
pub(crate) const CONTEXT_NAME: u64 = 1 << 8;
pub(crate) const FEATURE_WAKEUP: u64 = 1 << 4;
pub(crate) const FEATURE_AM: u64 = 1 << 6;

/// `ucp_context_attr_t`: 64 bytes until 1.20, 72 since
#[repr(C)]
pub(crate) struct ContextAttributes {
    pub(crate) field_mask: u64,
    request_size: usize,
    thread_mode: c_int,
    /// A bit for each type of memory
    pub(crate) memory_types: u64,
    name: [u8; 32],
    device_counter_size: usize,
}

pub(crate) const ATTRIBUTES_MEMORY_TYPES: u64 = 1 << 2;

/// `UCS_MEMORY_TYPE_CUDA`, the same in every version
pub(crate) const MEMORY_CUDA: c_int = 1;

/// `ucp_worker_params_t`
#[repr(C)]
pub(crate) struct WorkerParams {
    pub(crate) field_mask: u64,
    pub(crate) thread_mode: c_int,
    cpu_mask: [u64; 16],
    events: c_uint,
    user_data: Handle,
    event_fd: c_int,
    pub(crate) flags: u64,
    name: *const c_char,
    am_alignment: usize,
    client_id: u64,
}

pub(crate) const WORKER_THREAD_MODE: u64 = 1 << 0;
pub(crate) const WORKER_FLAGS: u64 = 1 << 5;
/// No complaint of what is under way when the worker goes
pub(crate) const WORKER_IGNORE_LEAKS: u64 = 1 << 0;
/// Any thread may call, one at a time
pub(crate) const THREAD_MODE_SERIALIZED: c_int = 1;

/// `ucp_ep_params_t`
#[repr(C)]
pub(crate) struct EndpointParams {
    pub(crate) field_mask: u64,
    pub(crate) address: *const c_void,
    pub(crate) err_mode: c_int,
    pub(crate) err_callback: Option<ErrorCallback>,
    pub(crate) err_argument: Handle,
    user_data: Handle,
    flags: c_uint,
    sockaddr: [usize; 2],
    conn_request: Handle,
    name: *const c_char,
    local_sockaddr: [usize; 2],
}

pub(crate) const ENDPOINT_ADDRESS: u64 = 1 << 0;
pub(crate) const ENDPOINT_ERR_MODE: u64 = 1 << 1;
pub(crate) const ENDPOINT_ERR_HANDLER: u64 = 1 << 2;
/// Sends to a peer that has died end with an error
pub(crate) const ERR_MODE_PEER: c_int = 1;

/// `ucp_request_param_t`: 72 bytes until 1.21, 96 in 1.22
#[repr(C)]
pub(crate) struct RequestParam {
    pub(crate) op_attr_mask: u32,
    pub(crate) flags: u32,
    request: Handle,
    /// A union of callbacks, of which each operation has its own
    pub(crate) callback: *const c_void,
    datatype: u64,
    pub(crate) user_data: Handle,
    reply_buffer: Handle,
    pub(crate) memory_type: c_int,
    receive_info: Handle,
    memory_handle: Handle,
    later: [u64; 3],
}

pub(crate) const REQUEST_CALLBACK: u32 = 1 << 1;
pub(crate) const REQUEST_USER_DATA: u32 = 1 << 2;
pub(crate) const REQUEST_FLAGS: u32 = 1 << 4;
pub(crate) const REQUEST_MEMORY_TYPE: u32 = 1 << 6;

pub(crate) const SEND_EAGER: u32 = 1 << 1;
pub(crate) const SEND_RENDEZVOUS: u32 = 1 << 2;
pub(crate) const CLOSE_FORCE: u32 = 1 << 0;

/// `ucp_am_handler_param_t`
#[repr(C)]
pub(crate) struct HandlerParam {
    pub(crate) field_mask: u64,
    pub(crate) id: c_uint,
    flags: u32,
    pub(crate) callback: Option<MessageCallback>,
    pub(crate) argument: Handle,
}

pub(crate) const HANDLER_ID: u64 = 1 << 0;
pub(crate) const HANDLER_CALLBACK: u64 = 1 << 2;
pub(crate) const HANDLER_ARGUMENT: u64 = 1 << 3;

/// `ucp_am_recv_param_t`
#[repr(C)]
pub(crate) struct MessageParam {
    pub(crate) attributes: u64,
    reply_endpoint: Handle,
}

/// The data has not come: it is to be fetched, or released
pub(crate) const MESSAGE_RENDEZVOUS: u64 = 1 << 17;

pub(crate) type ErrorCallback = unsafe extern "C" fn(Handle, Handle, RawStatus);
pub(crate) type SendCallback = unsafe extern "C" fn(Handle, RawStatus, Handle);
pub(crate) type ReceiveCallback = unsafe extern "C" fn(Handle, RawStatus, usize, Handle);
pub(crate) type MessageCallback = unsafe extern "C" fn(
    Handle,
    *const c_void,
    usize,
    Handle,
    usize,
    *const MessageParam,
) -> RawStatus;

/// A structure of which every field is zero
///
/// Those above, of numbers, pointers and optional functions, for all of which zero is a value.
macro_rules! zeroed {
    ($($type:ty),*) => {$(
        impl $type {
            pub(crate) fn zeroed() -> Self {
                // SAFETY: all fields are integers, raw pointers, arrays of them, or options of
                // function pointers, for which zero is `None`.
                unsafe { std::mem::zeroed() }
            }
        }
    )*};
}
zeroed!(
    ContextParams,
    ContextAttributes,
    WorkerParams,
    EndpointParams,
    RequestParam,
    HandlerParam
);

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_lie_where_the_headers_put_them() {
        assert_eq!(offset_of!(ContextParams, name), 72);
        assert_eq!(size_of::<ContextParams>(), 88);
        assert_eq!(offset_of!(ContextAttributes, memory_types), 24);
        assert_eq!(size_of::<ContextAttributes>(), 72);
        assert_eq!(offset_of!(WorkerParams, thread_mode), 8);
        assert_eq!(offset_of!(WorkerParams, client_id), 192);
        assert_eq!(size_of::<WorkerParams>(), 200);
        assert_eq!(offset_of!(EndpointParams, err_mode), 16);
        assert_eq!(offset_of!(EndpointParams, err_callback), 24);
        assert_eq!(offset_of!(EndpointParams, local_sockaddr), 88);
        assert_eq!(size_of::<EndpointParams>(), 104);
        assert_eq!(offset_of!(RequestParam, callback), 16);
        assert_eq!(offset_of!(RequestParam, user_data), 32);
        assert_eq!(offset_of!(RequestParam, memory_type), 48);
        assert_eq!(offset_of!(RequestParam, memory_handle), 64);
        assert_eq!(size_of::<RequestParam>(), 96);
        assert_eq!(offset_of!(HandlerParam, callback), 16);
        assert_eq!(size_of::<HandlerParam>(), 32);
        assert_eq!(size_of::<MessageParam>(), 16);
    }
}
