//! Small libraries that are loaded before libc, to show a process another clock or other host names. Only on Linux, and
//! with a C compiler, which Rust needs to link in any case.

use std::env;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use super::redis::REQUIRE;

/// Beside the program: files for a short time may be where no library can be loaded from.
fn dir() -> PathBuf {
    let mut program = env::current_exe().expect("a process knows its program");
    program.pop();
    program
}

/// Compiles the library `name`; once per test process, and without regard to what others compile meanwhile.
pub fn compile(name: &str, source_code: &str) -> Result<PathBuf, String> {
    if !cfg!(target_os = "linux") {
        return Err("libraries are loaded before libc on Linux only".to_owned());
    }
    let (source, new) = (new_path(name, "c"), new_path(name, "so"));
    fs::write(&source, source_code).expect("files can be written beside the program");
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-o"])
        .args([&new, &source])
        .arg("-ldl")
        .output()
        .map_err(|error| format!("no C compiler: cc: {error}"))?;
    assert!(output.status.success(), "{name}.c: {}", String::from_utf8_lossy(&output.stderr));
    let library = dir().join(format!("lib{name}.so"));
    let _ = fs::remove_file(&source);
    fs::rename(&new, &library).expect("files can be renamed within a directory");
    Ok(library)
}

/// Says on standard error that a test was left out. With `LEASEHOLD_REQUIRE_SERVERS=1` it fails instead.
#[track_caller]
pub fn leave_out(left_out: &str, why: &str) {
    assert!(env::var_os(REQUIRE).is_none_or(|value| value != "1"), "nothing to load for: {left_out}: {why}");
    let notice = format!("\nLEFT OUT: {left_out}: {why}\n");
    std::io::stderr().write_all(notice.as_bytes()).expect("standard error is open");
}

/// A path that nobody else uses.
pub fn new_path(name: &str, extension: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    dir().join(format!("{name}-{}-{number}.{extension}", process::id()))
}
