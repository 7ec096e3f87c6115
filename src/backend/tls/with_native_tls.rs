//! TLS with the system's library.

#[cfg(any(feature = "_records", feature = "redis-rs"))]
use std::io;

use native_tls::{Certificate, Identity, TlsConnector};

use super::{TlsOptions, invalid};
use crate::error::Error;

/// How connections are opened.
#[derive(Clone, Debug)]
pub(in crate::backend) struct Tls(TlsConnector);

/// An encrypted connection.
#[cfg(any(feature = "_records", feature = "redis-rs"))]
pub(in crate::backend) type Stream<S> = tokio_native_tls::TlsStream<S>;

impl Tls {
    pub(in crate::backend) fn new(options: &TlsOptions, _: &str) -> Result<Self, Error> {
        Self::build(options, |_| {})
    }

    /// The same, for connections that speak HTTP/2.
    #[cfg(feature = "etcd")]
    pub(in crate::backend) fn for_http2(options: &TlsOptions, _: &str) -> Result<Self, Error> {
        Self::build(options, |builder| {
            builder.request_alpns(&["h2"]);
        })
    }

    fn build(
        options: &TlsOptions,
        adapt: impl FnOnce(&mut native_tls::TlsConnectorBuilder),
    ) -> Result<Self, Error> {
        let mut builder = TlsConnector::builder();
        builder.disable_built_in_roots(!options.authorities.is_empty());
        for pem in &options.authorities {
            let certificates = Certificate::stack_from_pem(pem)
                .map_err(|error| invalid(format!("the CA certificate: {error}")))?;
            if certificates.is_empty() {
                return Err(invalid("the CA certificate: no certificate in PEM"));
            }
            for certificate in certificates {
                builder.add_root_certificate(certificate);
            }
        }
        if let Some(client) = &options.client {
            let identity = Identity::from_pkcs8(&client.chain, &client.key)
                .map_err(|error| invalid(format!("the client certificate and its key: {error}")))?;
            builder.identity(identity);
        }
        adapt(&mut builder);
        let what = if options.client.is_some() { "the client certificate and its key: " } else { "" };
        builder.build().map(Self).map_err(|error| invalid(format!("{what}{error}")))
    }

    #[cfg(feature = "fred")]
    pub(in crate::backend) fn add_to(&self, config: &mut ::fred::types::config::Config) {
        let connector = self.0.clone();
        config.tls = Some(::fred::types::config::TlsConnector::from(connector).into());
    }

    /// Does the handshake with the server, whose certificate must match `host`.
    #[cfg(any(feature = "_records", feature = "redis-rs"))]
    pub(in crate::backend) async fn connect<S>(&self, host: &str, stream: S) -> io::Result<Stream<S>>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    {
        let connector = tokio_native_tls::TlsConnector::from(self.0.clone());
        connector.connect(host, stream).await.map_err(io::Error::other)
    }
}
