//! TLS, by the client's own means, as far as this build has them.

use mysql_async::Opts;

use crate::backend::records::Failure;
use crate::backend::tls::{Tls, TlsOptions, explain};
use crate::error::Error;

/// A failure to connect, with what it means.
pub(super) fn explained(opts: &Opts, failure: Failure) -> Failure {
    if opts.ssl_opts().is_none() {
        return failure;
    }
    Failure { why: explain(failure.why), ..failure }
}

/// The same server, over TLS.
#[cfg(feature = "rustls")]
pub(super) fn with_tls(opts: Opts, options: &TlsOptions, address: &str) -> Result<Opts, Error> {
    use mysql_async::{ClientIdentity, OptsBuilder, SslOpts};

    // Invalid certificates are reported before anything is opened.
    Tls::new(options, address)?;
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // The client takes what the process has chosen, or panics if that is undecided. An error means that it has been
        // decided meanwhile.
        drop(rustls::crypto::ring::default_provider().install_default());
    }
    let identity = options
        .client
        .as_ref()
        .map(|client| ClientIdentity::new(client.chain.clone().into(), client.key.clone().into()));
    let ssl = SslOpts::default()
        .with_disable_built_in_roots(true)
        .with_root_certs(authorities(options).into_iter().map(Into::into).collect())
        .with_client_identity(identity);
    Ok(OptsBuilder::from_opts(opts).ssl_opts(ssl).into())
}

/// Those given, or those that the system trusts, if they are of a form that is supported.
#[cfg(feature = "rustls")]
fn authorities(options: &TlsOptions) -> Vec<Vec<u8>> {
    if !options.authorities.is_empty() {
        return options.authorities.clone();
    }
    let found = rustls_native_certs::load_native_certs().certs;
    let mut known = rustls::RootCertStore::empty();
    let supported = found.into_iter().filter(|certificate| known.add(certificate.clone()).is_ok());
    supported.map(|certificate| certificate.to_vec()).collect()
}

#[cfg(not(feature = "rustls"))]
pub(super) fn with_tls(_: Opts, options: &TlsOptions, address: &str) -> Result<Opts, Error> {
    // A build without any TLS says so in the same words for every store.
    Tls::new(options, address)?;
    let reason = "TLS to MySQL needs the feature `rustls` of leasehold, and this build lacks it";
    Err(Error::Unsupported { store: address.to_owned(), reason: reason.to_owned() })
}
