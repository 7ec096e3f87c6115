//! Neither library was chosen at build time.

use std::convert::Infallible;
#[cfg(any(feature = "_records", feature = "redis-rs"))]
use std::io;

use super::TlsOptions;
use crate::error::Error;

/// There is none.
#[derive(Clone, Debug)]
pub(in crate::backend) struct Tls(Infallible);

/// An encrypted connection.
#[cfg(any(feature = "_records", feature = "redis-rs"))]
pub(in crate::backend) type Stream<S> = S;

impl Tls {
    pub(in crate::backend) fn new(_: &TlsOptions, store: &str) -> Result<Self, Error> {
        let reason =
            "TLS needs the feature `rustls` or `native-tls` of leasehold, and this build has neither";
        Err(Error::Unsupported { store: store.to_owned(), reason: reason.to_owned() })
    }

    #[cfg(feature = "etcd")]
    pub(in crate::backend) fn for_http2(options: &TlsOptions, store: &str) -> Result<Self, Error> {
        Self::new(options, store)
    }

    #[cfg(feature = "fred")]
    pub(in crate::backend) const fn add_to(&self, _: &mut ::fred::types::config::Config) {
        match self.0 {}
    }

    #[cfg(any(feature = "_records", feature = "redis-rs"))]
    pub(in crate::backend) async fn connect<S>(&self, _: &str, _: S) -> io::Result<Stream<S>> {
        match self.0 {}
    }
}
