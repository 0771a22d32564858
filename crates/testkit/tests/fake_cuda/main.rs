//! The fake CUDA driver keeps the rules of the real one: each that is broken there fails here.
//!
//! Every test runs in a process of its own, which finds the driver as it would find NVIDIA's.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![allow(
    clippy::macro_metavars_in_unsafe,
    reason = "every call of the driver is one: see the macro `cu`"
)]

mod allocators;
mod ipc;
mod memory;
mod pools;
mod process;
mod rules;
mod streams;
mod vmm;
mod wrap;

/// Makes a test of a function of the driver's environment, which runs in a process of its own
#[macro_export]
macro_rules! driver_tests {
    ($($(#[$meta:meta])* fn $name:ident($($key:ident = $value:expr),*) $body:block)*) => {$(
        $(#[$meta])*
        #[test]
        fn $name() {
            let path = concat!(module_path!(), "::", stringify!($name));
            let environment: &[(&str, &str)] = &[$((stringify!($key), $value)),*];
            if $crate::process::is_within(path, environment) {
                let body = || $body;
                body();
            }
        }
    )*};
}
