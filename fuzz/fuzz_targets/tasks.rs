#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| backhaul_fuzz::run("tasks", data));
