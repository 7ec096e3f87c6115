//! Whether a runtime can be used for connections.

use std::net::UdpSocket;
use std::panic::catch_unwind;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::backend::BackendError;

/// Whether connections can be made from here. Tokio only says so by a panic, which would end a task of the client
/// library instead.
///
/// # Errors
///
/// [`BackendError::Unsupported`] outside a runtime, and in one without I/O or timers.
pub(super) fn check() -> Result<(), BackendError> {
    let lacks = |what: &str| {
        let reason =
            format!("{what}: connections need a tokio runtime with I/O and timers enabled (`enable_all`)");
        Err(BackendError::Unsupported { reason })
    };
    if Handle::try_current().is_err() {
        return lacks("a call outside a runtime");
    }
    if catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_err() {
        return lacks("a runtime without timers");
    }
    // If not even a socket can be made, connecting says why.
    let Ok(socket) = UdpSocket::bind(("127.0.0.1", 0)) else { return Ok(()) };
    let register = || socket.set_nonblocking(true).and_then(|()| tokio::net::UdpSocket::from_std(socket));
    if catch_unwind(register).is_err() { lacks("a runtime without I/O") } else { Ok(()) }
}

/// The same for a certain runtime.
pub(super) fn check_on(runtime: &Handle) -> Result<(), BackendError> {
    let _entered = runtime.enter();
    check()
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn what_a_runtime_lacks_is_named() {
        let lacks = |builder: &mut Builder| {
            let checked = builder.build().unwrap().block_on(async { check() });
            checked.err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(lacks(Builder::new_current_thread().enable_all()), "");
        assert!(lacks(Builder::new_current_thread().enable_time()).starts_with("a runtime without I/O: "));
        assert!(lacks(Builder::new_current_thread().enable_io()).starts_with("a runtime without timers: "));
        assert!(check().unwrap_err().to_string().starts_with("a call outside a runtime: "));
    }
}
