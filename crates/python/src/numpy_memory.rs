//! NumPy's arrays in an arena: a data allocator as of NEP 49. Only this module of the crate,
//! `buffer` and `memory_policy` may be unsafe.
//!
//! NumPy takes the memory of each array from the *handler* of the current context (a context
//! variable), and the array remembers it until it frees or resizes its memory. This module's
//! handler asks an arena first and NumPy's own handler for all that the arena refuses: small
//! blocks, and blocks past its bound. The address of a block shows which of the two has it.
//!
//! NumPy's functions are found at run time in the table that it publishes for extensions, so nothing is
//! linked and NumPy need not be there. Its places and layouts are part of NumPy's ABI; they are read from
//! `numpy/__multiarray_api.h` and `numpy/ndarraytypes.h`, and are the same in 1.22 to 2.4.
//!
//! What NumPy calls here runs no Python and needs no interpreter: any thread may, at any time. In a
//! forked child the arena refuses, so new arrays are NumPy's; inherited ones free nothing.

#![allow(
    unsafe_code,
    reason = "pointers of NumPy's allocator interface; see the module's doc"
)]

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::ptr::{self, NonNull};

use pyo3::exceptions::{PyImportError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyCapsule;
use pyo3::{Borrowed, ffi};
use rustix::param::page_size;

use crate::arena::Arena;

/// `PyDataMemAllocator`
#[repr(C)]
#[derive(Clone, Copy)]
struct Allocator {
    ctx: *mut c_void,
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
}

/// `PyDataMem_Handler`
#[repr(C)]
struct Handler {
    name: [c_char; 127],
    version: u8,
    allocator: Allocator,
}

/// State that this module's functions find behind `ctx`; its handler comes first, as NumPy reads it
/// there
///
/// Lives as long as its capsule, to which every array made with it has a reference.
#[repr(C)]
struct Policy {
    handler: Handler,
    arena: backhaul::Arena,
    /// NumPy's own, a static of it
    fallback: Allocator,
    /// The same arena, for Python
    object: Py<Arena>,
}

impl Policy {
    fn malloc(&self, bytes: usize) -> *mut c_void {
        match self.arena.allocate(bytes) {
            Some(start) => start.as_ptr().cast(),
            // SAFETY: NumPy's own function with its own context, called as NumPy called us.
            None => unsafe { (self.fallback.malloc)(self.fallback.ctx, bytes) },
        }
    }

    fn calloc(&self, count: usize, bytes: usize) -> *mut c_void {
        let block = count
            .checked_mul(bytes)
            .and_then(|bytes| self.arena.allocate_zeroed(bytes));
        match block {
            Some(start) => start.as_ptr().cast(),
            // SAFETY: as in `malloc`.
            None => unsafe { (self.fallback.calloc)(self.fallback.ctx, count, bytes) },
        }
    }

    fn realloc(&self, memory: *mut c_void, bytes: usize) -> *mut c_void {
        let Some(start) = may_be_block(memory) else {
            // SAFETY: as in `malloc`; the memory is not the arena's, so it came from there.
            return unsafe { (self.fallback.realloc)(self.fallback.ctx, memory, bytes) };
        };
        match self.arena.usable_bytes(start) {
            // It stays, unless that wastes half of it.
            Some(usable) if bytes <= usable && bytes > usable / 2 => memory,
            Some(usable) => {
                let target = self.malloc(bytes);
                if !target.is_null() {
                    // SAFETY: the block is `usable` bytes long, the new memory `bytes`; they are
                    // different blocks, and both the caller's alone.
                    unsafe {
                        ptr::copy_nonoverlapping(
                            memory.cast::<u8>(),
                            target.cast::<u8>(),
                            usable.min(bytes),
                        );
                    }
                    self.arena.free(start);
                }
                target
            }
            // It may be the arena's, which cannot tell: it was forked in the middle of something.
            None if self.arena.is_inherited() => ptr::null_mut(),
            // SAFETY: as above.
            None => unsafe { (self.fallback.realloc)(self.fallback.ctx, memory, bytes) },
        }
    }

    fn free(&self, memory: *mut c_void, bytes: usize) {
        if !may_be_block(memory).is_some_and(|start| self.arena.free(start)) {
            // SAFETY: as in `malloc`; the memory is not the arena's, so it came from there.
            unsafe { (self.fallback.free)(self.fallback.ctx, memory, bytes) };
        }
    }
}

/// A pointer as the arena knows its blocks, if it can be one of them: these are pages
///
/// Saves most arrays, which are small, the arena's lock.
fn may_be_block(memory: *mut c_void) -> Option<NonNull<u8>> {
    NonNull::new(memory.cast())
        .filter(|start: &NonNull<u8>| start.addr().get().is_multiple_of(page_size()))
}

/// The policy behind a `ctx` that NumPy hands us
///
/// # Safety
///
/// NumPy calls one of the functions below for an array, or for a context, that has our capsule.
unsafe fn policy<'a>(ctx: *mut c_void) -> &'a Policy {
    // SAFETY: `ctx` was set by `handler`, and the capsule keeps the policy during the call.
    unsafe { &*ctx.cast::<Policy>() }
}

/// # Safety
///
/// As for [`policy`].
unsafe extern "C" fn malloc(ctx: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { policy(ctx) }.malloc(bytes)
}

/// # Safety
///
/// As for [`policy`].
unsafe extern "C" fn calloc(ctx: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { policy(ctx) }.calloc(count, bytes)
}

/// # Safety
///
/// As for [`policy`], and `memory` came from one of these functions and is used no more if another
/// block is returned.
unsafe extern "C" fn realloc(ctx: *mut c_void, memory: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { policy(ctx) }.realloc(memory, bytes)
}

/// # Safety
///
/// As for [`policy`], and `memory` came from one of these functions and is used no more.
unsafe extern "C" fn free(ctx: *mut c_void, memory: *mut c_void, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { policy(ctx) }.free(memory, bytes);
}

#[doc = stub_doc!("numpy_handler")]
#[pyfunction]
pub(crate) fn numpy_handler<'py>(
    py: Python<'py>,
    arena: &Bound<'py, Arena>,
) -> PyResult<Bound<'py, PyAny>> {
    let fallback = NumPy::get(py)?.default_allocator(py)?;
    let policy = Box::into_raw(Box::new(Policy {
        handler: Handler {
            name: NAME,
            version: 1,
            allocator: Allocator {
                ctx: ptr::null_mut(),
                malloc,
                calloc,
                realloc,
                free,
            },
        },
        arena: arena.get().arena.clone(),
        fallback,
        object: arena.clone().unbind(),
    }));
    // SAFETY: just made, and not shared yet. The capsule owns it from here on, and its context
    // says that it is ours.
    unsafe {
        (*policy).handler.allocator.ctx = policy.cast();
        let capsule = ffi::PyCapsule_New(policy.cast(), CAPSULE_NAME.as_ptr(), Some(drop_policy));
        if capsule.is_null() {
            drop(Box::from_raw(policy));
            return Err(PyErr::fetch(py));
        }
        let capsule = Bound::from_owned_ptr(py, capsule);
        if ffi::PyCapsule_SetContext(capsule.as_ptr(), ours()) != 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(capsule)
    }
}

/// # Safety
///
/// Called by the interpreter when nothing refers to a capsule of [`numpy_handler`] any more.
unsafe extern "C" fn drop_policy(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule holds what `numpy_handler` put there; no array has a reference to it, so
    // its functions are not called again.
    unsafe {
        let policy = ffi::PyCapsule_GetPointer(capsule, CAPSULE_NAME.as_ptr()).cast::<Policy>();
        if !policy.is_null() {
            drop(Box::from_raw(policy));
        }
    }
}

#[doc = stub_doc!("current_numpy_handler")]
#[pyfunction]
pub(crate) fn current_numpy_handler(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    NumPy::get(py)?.handler(py)
}

#[doc = stub_doc!("set_numpy_handler")]
#[pyfunction]
#[pyo3(signature = (handler, /))]
pub(crate) fn set_numpy_handler<'py>(
    py: Python<'py>,
    handler: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    NumPy::get(py)?.set_handler(py, handler)
}

#[doc = stub_doc!("set_default_numpy_handler")]
#[pyfunction]
#[pyo3(signature = (handler, /))]
pub(crate) fn set_default_numpy_handler<'py>(
    py: Python<'py>,
    handler: Bound<'py, PyAny>,
) -> PyResult<bool> {
    let numpy = NumPy::get(py)?;
    if !numpy.handler(py)?.is(numpy.default_handler(py)?) {
        return Ok(false);
    }
    numpy.set_handler(py, Some(handler))?;
    Ok(true)
}

#[doc = stub_doc!("arena_of_numpy_handler")]
#[pyfunction]
#[pyo3(signature = (handler, /))]
pub(crate) fn arena_of_numpy_handler<'py>(
    py: Python<'py>,
    handler: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, Arena>>> {
    let capsule = handler.cast::<PyCapsule>()?.as_ptr();
    // SAFETY: asked of a capsule; with our context it is one of `numpy_handler`'s, which holds a
    // policy for as long as it lives.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, CAPSULE_NAME.as_ptr()) == 0 {
            return Err(PyTypeError::new_err("this is no handler of NumPy's"));
        }
        if ffi::PyCapsule_GetContext(capsule) != ours() {
            return Ok(None);
        }
        let policy = ffi::PyCapsule_GetPointer(capsule, CAPSULE_NAME.as_ptr()).cast::<Policy>();
        Ok(Some((*policy).object.bind(py).clone()))
    }
}

/// Functions of NumPy's table that are used here
struct NumPy {
    set_handler: unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject,
    handler: unsafe extern "C" fn() -> *mut ffi::PyObject,
    default_handler: *mut *mut ffi::PyObject,
}

// SAFETY: functions and a static of NumPy's, which is never unloaded; calls are made attached to
// the interpreter.
unsafe impl Send for NumPy {}
// SAFETY: as above.
unsafe impl Sync for NumPy {}

impl NumPy {
    fn get(py: Python<'_>) -> PyResult<&'static Self> {
        static NUMPY: PyOnceLock<NumPy> = PyOnceLock::new();
        NUMPY.get_or_try_init(py, || Self::find(py))
    }

    fn find(py: Python<'_>) -> PyResult<Self> {
        let module = py
            .import("numpy._core._multiarray_umath")
            // Before NumPy 2.
            .or_else(|_| py.import("numpy.core._multiarray_umath"))?;
        let table = module.getattr("_ARRAY_API")?;
        let table = table.cast::<PyCapsule>()?;
        // SAFETY: NumPy's capsule without a name holds its table, of which the first entry is the
        // function that tells the version of the table, and number 211 the one that tells how far
        // it reaches. These two, and what they promise, hold for every version of NumPy.
        unsafe {
            let table = ffi::PyCapsule_GetPointer(table.as_ptr(), ptr::null())
                .cast::<*const c_void>()
                .cast_const();
            if table.is_null() {
                return Err(PyErr::fetch(py));
            }
            type Version = unsafe extern "C" fn() -> c_uint;
            let abi = function::<Version>(table, ABI_VERSION)();
            let api = function::<Version>(table, API_VERSION)();
            if !ABIS.contains(&abi) || api < API_WITH_HANDLERS {
                return Err(PyImportError::new_err(format!(
                    "this NumPy has no data allocator that is known here: ABI {abi:#x}, API {api:#x}"
                )));
            }
            Ok(Self {
                set_handler: function(table, SET_HANDLER),
                handler: function(table, GET_HANDLER),
                default_handler: function(table, DEFAULT_HANDLER),
            })
        }
    }

    fn handler<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: attached; it returns a new reference, or null with an exception.
        unsafe { Bound::from_owned_ptr_or_err(py, (self.handler)()) }
    }

    fn set_handler<'py>(
        &self,
        py: Python<'py>,
        handler: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let handler = handler
            .as_ref()
            .map_or(ptr::null_mut(), |handler| handler.as_ptr());
        // SAFETY: as in `handler`. NumPy takes its own reference, checks the capsule's name, and
        // takes null for its default.
        unsafe { Bound::from_owned_ptr_or_err(py, (self.set_handler)(handler)) }
    }

    fn default_handler<'py>(&self, py: Python<'py>) -> PyResult<Borrowed<'_, 'py, PyAny>> {
        // SAFETY: a static of NumPy's, set once when it is imported.
        unsafe { Borrowed::from_ptr_or_err(py, *self.default_handler) }
    }

    fn default_allocator(&self, py: Python<'_>) -> PyResult<Allocator> {
        let capsule = self.default_handler(py)?;
        // SAFETY: the capsule holds a handler, a static of NumPy's; later versions of the struct
        // only add to it.
        unsafe {
            let handler = ffi::PyCapsule_GetPointer(capsule.as_ptr(), CAPSULE_NAME.as_ptr());
            if handler.is_null() {
                return Err(PyErr::fetch(py));
            }
            Ok((*handler.cast::<Handler>()).allocator)
        }
    }
}

/// An entry of NumPy's table
///
/// # Safety
///
/// The table has that entry, and it is a pointer of type `T`.
unsafe fn function<T: Copy>(table: *const *const c_void, number: usize) -> T {
    const { assert!(size_of::<T>() == size_of::<*const c_void>()) };
    // SAFETY: the caller's promise; all entries are pointers.
    unsafe { table.add(number).cast::<T>().read() }
}

/// Marks the capsules that are ours
fn ours() -> *mut c_void {
    // Not of size zero, so that it has an address of its own.
    static OURS: u8 = 0;
    (&raw const OURS).cast_mut().cast()
}

/// Name of NumPy's capsules of handlers
const CAPSULE_NAME: &CStr = c"mem_handler";

/// Answer of `numpy._core.multiarray.get_handler_name` for an array in an arena
const NAME: [c_char; 127] = {
    let text = b"backhaul_arena";
    let mut name = [0; 127];
    let mut index = 0;
    while index < text.len() {
        name[index] = text[index] as c_char;
        index += 1;
    }
    name
};

/// `PyArray_GetNDArrayCVersion`
const ABI_VERSION: usize = 0;
/// `PyArray_GetNDArrayCFeatureVersion`
const API_VERSION: usize = 211;
/// `PyDataMem_SetHandler`
const SET_HANDLER: usize = 304;
/// `PyDataMem_GetHandler`
const GET_HANDLER: usize = 305;
/// `PyDataMem_DefaultHandler`
const DEFAULT_HANDLER: usize = 306;
/// ABI versions of NumPy 1.x and 2.x
const ABIS: [c_uint; 2] = [0x0100_0009, 0x0200_0000];
/// `NPY_1_22_API_VERSION`
const API_WITH_HANDLERS: c_uint = 0xf;
