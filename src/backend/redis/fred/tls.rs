//! TLS with fred, by the library that was chosen at build time.

use ::fred::types::config::Config;

use super::super::target::Target;
use super::super::tls::TlsOptions;
use crate::error::Error;

/// Adds TLS to a configuration if the target needs it.
pub(in super::super) fn with_tls(
    config: Config,
    target: &Target,
    options: Option<&TlsOptions>,
) -> Result<Config, Error> {
    match options {
        Some(_) if !target.tls => {
            Err(invalid("the scheme of the URL does not ask for TLS: it has to be `rediss://` or similar"))
        }
        None if !target.tls || config.uses_tls() => Ok(config),
        _ => library::add(config, target, &options.cloned().unwrap_or_default()),
    }
}

fn invalid(reason: impl Into<String>) -> Error {
    Error::invalid("tls", reason)
}

#[cfg(feature = "rustls")]
mod library {
    use std::sync::Arc;

    use ::fred::types::config::{Config, TlsConnector};
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ClientConfig, RootCertStore};

    use super::super::super::target::Target;
    use super::super::super::tls::TlsOptions;
    use super::invalid;
    use crate::error::Error;

    pub(super) fn add(mut config: Config, _: &Target, options: &TlsOptions) -> Result<Config, Error> {
        config.tls = Some(TlsConnector::from(client(options)?).into());
        Ok(config)
    }

    /// With a provider of its own: which one is the process's may be undecided.
    fn client(options: &TlsOptions) -> Result<ClientConfig, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(error.to_string()))?
            .with_root_certificates(authorities(options)?);
        let Some(client) = &options.client else { return Ok(builder.with_no_client_auth()) };
        let chain = certificates(&client.chain, "client certificate")?;
        let key = PrivateKeyDer::from_pem_slice(&client.key)
            .map_err(|error| invalid(format!("the client certificate's private key: {error}")))?;
        builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| invalid(format!("the client certificate and its key: {error}")))
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
                return Err(invalid(format!("this system has no certificates of authorities{why}")));
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
}

#[cfg(all(feature = "native-tls", not(feature = "rustls")))]
mod library {
    use ::fred::types::config::{Config, TlsConnector};
    use native_tls::{Certificate, Identity};

    use super::super::super::target::Target;
    use super::super::super::tls::TlsOptions;
    use super::invalid;
    use crate::error::Error;

    pub(super) fn add(mut config: Config, _: &Target, options: &TlsOptions) -> Result<Config, Error> {
        config.tls = Some(TlsConnector::from(client(options)?).into());
        Ok(config)
    }

    fn client(options: &TlsOptions) -> Result<native_tls::TlsConnector, Error> {
        let mut builder = native_tls::TlsConnector::builder();
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
        let what = if options.client.is_some() { "the client certificate and its key: " } else { "" };
        builder.build().map_err(|error| invalid(format!("{what}{error}")))
    }
}

#[cfg(not(any(feature = "rustls", feature = "native-tls")))]
mod library {
    use ::fred::types::config::Config;

    use super::super::super::target::Target;
    use super::super::super::tls::TlsOptions;
    use crate::error::Error;

    pub(super) fn add(_: Config, target: &Target, _: &TlsOptions) -> Result<Config, Error> {
        let reason =
            "TLS needs the feature `rustls` or `native-tls` of leasehold, and this build has neither";
        Err(Error::Unsupported { store: target.to_string(), reason: reason.to_owned() })
    }
}
