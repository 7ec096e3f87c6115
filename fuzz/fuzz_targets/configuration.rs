#![no_main]

#[path = "../configuration.rs"]
mod read;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| read::configuration(bytes));
