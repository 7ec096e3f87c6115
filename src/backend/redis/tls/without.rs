//! Neither library was chosen at build time.

use std::convert::Infallible;
#[cfg(feature = "redis-rs")]
use std::io;

use super::TlsOptions;
use crate::backend::redis::target::Target;
use crate::error::Error;

/// There is none.
#[derive(Clone, Debug)]
pub(in super::super) struct Tls(Infallible);

impl Tls {
    pub(super) fn new(_: &TlsOptions, target: &Target) -> Result<Self, Error> {
        let reason =
            "TLS needs the feature `rustls` or `native-tls` of leasehold, and this build has neither";
        Err(Error::Unsupported { store: target.to_string(), reason: reason.to_owned() })
    }

    #[cfg(feature = "redis")]
    pub(in super::super) const fn add_to(&self, _: &mut ::fred::types::config::Config) {
        match self.0 {}
    }

    #[cfg(feature = "redis-rs")]
    pub(in super::super) async fn connect<S>(&self, _: &str, _: S) -> io::Result<S> {
        match self.0 {}
    }
}
