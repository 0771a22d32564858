//! The functions of libucp that are used, found in the library by their names.
//!
//! All of them are in every version since 1.13, with the same prototypes up to 1.22.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;

use libloading::os::unix::Library as Dynamic;

use crate::abi::{
    ContextAttributes, ContextParams, EndpointParams, Handle, HandlerParam, RawStatus,
    RequestParam, WorkerParams,
};
use crate::error::LoadError;

macro_rules! functions {
    ($($name:ident: $symbol:literal ($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, as found in one library, which is never closed
        pub(crate) struct Api {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            /// Finds all of them, in a library or in those that it depends on
            pub(crate) fn find(library: &Dynamic, path: &Path) -> Result<Self, LoadError> {
                Ok(Self {
                    // SAFETY: the types are those of the headers, the same in each version that is
                    // accepted (see `library`); the caller never closes the library.
                    $($name: *unsafe { find(library, $symbol, path)? },)*
                })
            }
        }
    };
}

functions! {
    version: "ucp_get_version" (*mut c_uint, *mut c_uint, *mut c_uint);
    status_text: "ucs_status_string" (RawStatus) -> *const c_char;
    config_read: "ucp_config_read" (*const c_char, *const c_char, *mut Handle) -> RawStatus;
    config_modify: "ucp_config_modify" (Handle, *const c_char, *const c_char) -> RawStatus;
    config_release: "ucp_config_release" (Handle);
    init: "ucp_init_version"
        (c_uint, c_uint, *const ContextParams, Handle, *mut Handle) -> RawStatus;
    cleanup: "ucp_cleanup" (Handle);
    query: "ucp_context_query" (Handle, *mut ContextAttributes) -> RawStatus;
    worker_create: "ucp_worker_create" (Handle, *const WorkerParams, *mut Handle) -> RawStatus;
    worker_destroy: "ucp_worker_destroy" (Handle);
    worker_address: "ucp_worker_get_address" (Handle, *mut Handle, *mut usize) -> RawStatus;
    worker_release_address: "ucp_worker_release_address" (Handle, Handle);
    worker_event_fd: "ucp_worker_get_efd" (Handle, *mut c_int) -> RawStatus;
    worker_arm: "ucp_worker_arm" (Handle) -> RawStatus;
    worker_progress: "ucp_worker_progress" (Handle) -> c_uint;
    set_handler: "ucp_worker_set_am_recv_handler" (Handle, *const HandlerParam) -> RawStatus;
    endpoint_create: "ucp_ep_create" (Handle, *const EndpointParams, *mut Handle) -> RawStatus;
    endpoint_close: "ucp_ep_close_nbx" (Handle, *const RequestParam) -> Handle;
    endpoint_flush: "ucp_ep_flush_nbx" (Handle, *const RequestParam) -> Handle;
    send: "ucp_am_send_nbx"
        (Handle, c_uint, *const c_void, usize, *const c_void, usize, *const RequestParam) -> Handle;
    receive: "ucp_am_recv_data_nbx"
        (Handle, Handle, Handle, usize, *const RequestParam) -> Handle;
    release: "ucp_am_data_release" (Handle, Handle);
    request_free: "ucp_request_free" (Handle);
}

/// Finds a function
///
/// # Safety
///
/// `T` is the type of the function of that name.
unsafe fn find<T>(
    library: &Dynamic,
    symbol: &'static str,
    path: &Path,
) -> Result<libloading::os::unix::Symbol<T>, LoadError> {
    // SAFETY: as the caller says.
    unsafe { library.get(symbol.as_bytes()) }.map_err(|_| LoadError::MissingSymbol {
        path: path.to_owned(),
        symbol,
    })
}
