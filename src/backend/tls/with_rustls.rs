//! TLS with rustls.

#[cfg(any(feature = "_records", feature = "redis-rs"))]
use std::io;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::{TlsOptions, invalid};
use crate::error::Error;

/// How connections are opened.
#[derive(Clone, Debug)]
pub(in crate::backend) struct Tls(Arc<ClientConfig>);

/// An encrypted connection.
#[cfg(any(feature = "_records", feature = "redis-rs"))]
pub(in crate::backend) type Stream<S> = tokio_rustls::client::TlsStream<S>;

impl Tls {
    /// With an explicit provider: the process may not have chosen a default one.
    pub(in crate::backend) fn new(options: &TlsOptions, _: &str) -> Result<Self, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(error.to_string()))?
            .with_root_certificates(authorities(options)?);
        let Some(client) = &options.client else { return Ok(Self(builder.with_no_client_auth().into())) };
        let chain = certificates(&client.chain, "client certificate")?;
        let key = PrivateKeyDer::from_pem_slice(&client.key)
            .map_err(|error| invalid(format!("the client certificate's private key: {error}")))?;
        let config = builder.with_client_auth_cert(chain, key);
        let config =
            config.map_err(|error| invalid(format!("the client certificate and its key: {error}")))?;
        Ok(Self(config.into()))
    }

    /// The same, for connections that speak HTTP/2.
    #[cfg(feature = "etcd")]
    pub(in crate::backend) fn for_http2(options: &TlsOptions, store: &str) -> Result<Self, Error> {
        let mut tls = Self::new(options, store)?;
        Arc::make_mut(&mut tls.0).alpn_protocols = vec![b"h2".to_vec()];
        Ok(tls)
    }

    #[cfg(feature = "fred")]
    pub(in crate::backend) fn add_to(&self, config: &mut ::fred::types::config::Config) {
        let connector = tokio_rustls::TlsConnector::from(Arc::clone(&self.0));
        config.tls = Some(::fred::types::config::TlsConnector::from(connector).into());
    }

    /// Does the handshake with the server, whose certificate must match `host`.
    #[cfg(any(feature = "_records", feature = "redis-rs"))]
    pub(in crate::backend) async fn connect<S>(&self, host: &str, stream: S) -> io::Result<Stream<S>>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    {
        let name = rustls::pki_types::ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        tokio_rustls::TlsConnector::from(Arc::clone(&self.0)).connect(name, stream).await
    }
}

fn authorities(options: &TlsOptions) -> Result<RootCertStore, Error> {
    let mut store = RootCertStore::empty();
    for pem in &options.authorities {
        for certificate in certificates(pem, "CA certificate")? {
            store.add(certificate).map_err(|error| invalid(format!("the CA certificate: {error}")))?;
        }
    }
    if options.authorities.is_empty() {
        // Some of a system's certificates may be in a form that is not supported.
        let found = rustls_native_certs::load_native_certs();
        store.add_parsable_certificates(found.certs);
        if store.is_empty() {
            let why = found.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
            return Err(invalid(format!("this system has no CA certificates{why}")));
        }
    }
    Ok(store)
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err(invalid(format!("the {what}: no certificate in PEM"))),
        Ok(all) => Ok(all),
        Err(error) => Err(invalid(format!("the {what}: {error}"))),
    }
}
