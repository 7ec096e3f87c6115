//! TLS options, and what TLS errors mean, independently of the library.

#![cfg_attr(
    not(feature = "all-stores"),
    allow(dead_code, unused_imports, reason = "each store uses a part of it")
)]

use std::fmt;

use crate::error::Error;

#[cfg(all(feature = "native-tls", not(feature = "rustls")))]
#[path = "with_native_tls.rs"]
mod library;
#[cfg(feature = "rustls")]
#[path = "with_rustls.rs"]
mod library;
#[cfg(not(any(feature = "rustls", feature = "native-tls")))]
#[path = "without.rs"]
mod library;

#[cfg(feature = "postgres")]
pub(super) use library::Stream;
pub(super) use library::Tls;

/// Certificates for a store whose URL requires TLS (`rediss://`, `valkeys://`, `postgres://...?sslmode=require`,
/// `etcds://`, and so on): see `tls` of each store's builder.
///
/// The server's certificate is always verified: it must be signed by a known authority, be currently valid, and match
/// the host that the URL names (in a cluster and with sentinels, also the addresses that the servers name). There is no
/// way to turn this off.
///
/// What is passed in is checked when connecting to the store, not before.
///
#[cfg_attr(feature = "_redis", doc = "```no_run")]
#[cfg_attr(not(feature = "_redis"), doc = "```ignore")]
/// # async fn connect() -> Result<leasehold::Client, Box<dyn std::error::Error>> {
/// use std::fs;
/// use std::sync::Arc;
///
/// use leasehold::{Client, TlsOptions};
/// use leasehold::redis::RedisBackend;
///
/// let tls = TlsOptions::new()
///     .ca_certificate_pem(fs::read("ca.pem")?)
///     .client_certificate_pem(fs::read("client.pem")?, fs::read("client.key")?); // if the server wants one
/// let backend = RedisBackend::builder("rediss://db.example:6380")?.tls(tls).connect().await?;
/// let client = Client::with_backend(Arc::new(backend));
/// # Ok(client) }
/// ```
#[derive(Clone, Default)]
#[must_use = "options do nothing until they are passed to a builder"]
pub struct TlsOptions {
    pub(super) authorities: Vec<Vec<u8>>,
    pub(super) client: Option<ClientCertificate>,
}

/// The client's certificate and key, in PEM.
#[derive(Clone)]
#[cfg_attr(not(any(feature = "rustls", feature = "native-tls")), allow(dead_code))]
pub(super) struct ClientCertificate {
    pub(super) chain: Vec<u8>,
    pub(super) key: Vec<u8>,
}

impl TlsOptions {
    /// The system's trusted authorities, no client certificate.
    ///
    /// ```
    /// let options = leasehold::TlsOptions::new();
    /// # drop(options);
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts one or more authorities, given their certificates in PEM. The system's trusted authorities are then no
    /// longer trusted. Can be called several times.
    ///
    /// ```
    /// # let pem = "-----BEGIN CERTIFICATE-----";
    /// let options = leasehold::TlsOptions::new().ca_certificate_pem(pem); // `std::fs::read("authority.pem")?`
    /// # drop(options);
    /// ```
    pub fn ca_certificate_pem(mut self, certificates: impl Into<Vec<u8>>) -> Self {
        self.authorities.push(certificates.into());
        self
    }

    /// Presents a certificate to servers that require one. `chain` is that certificate in PEM, followed by those of any
    /// intermediate authorities up to one that the server knows. `key` is its private key in PEM as PKCS #8
    /// (`-----BEGIN PRIVATE KEY-----`), not encrypted.
    ///
    /// ```
    /// # let (chain, key) = ("-----BEGIN CERTIFICATE-----", "-----BEGIN PRIVATE KEY-----");
    /// let options = leasehold::TlsOptions::new().client_certificate_pem(chain, key);
    /// # drop(options);
    /// ```
    pub fn client_certificate_pem(mut self, chain: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.client = Some(ClientCertificate { chain: chain.into(), key: key.into() });
        self
    }
}

impl fmt::Debug for TlsOptions {
    /// Prints no key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsOptions")
            .field("own_authorities", &!self.authorities.is_empty())
            .field("client_certificate", &self.client.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg_attr(not(any(feature = "rustls", feature = "native-tls")), allow(dead_code))]
pub(super) fn invalid(reason: impl Into<String>) -> Error {
    Error::invalid("tls", reason)
}

/// What the TLS libraries (rustls as text and as fred prints it, OpenSSL) say, and what that means.
const MEANINGS: &[(&str, &str)] = &[
    ("certificate: UnknownIssuer", UNKNOWN_AUTHORITY),
    ("InvalidCertificate(UnknownIssuer", UNKNOWN_AUTHORITY),
    ("unable to get local issuer certificate", UNKNOWN_AUTHORITY),
    ("unable to get issuer certificate", UNKNOWN_AUTHORITY),
    ("signed certificate", UNKNOWN_AUTHORITY),
    ("certificate not valid for name", OTHER_NAME),
    ("InvalidCertificate(NotValidForName", OTHER_NAME),
    ("ostname mismatch", OTHER_NAME),
    ("IP address mismatch", OTHER_NAME),
    ("certificate expired", EXPIRED),
    ("InvalidCertificate(Expired", EXPIRED),
    ("certificate has expired", EXPIRED),
    ("certificate not valid yet", NOT_YET_VALID),
    ("InvalidCertificate(NotValidYet", NOT_YET_VALID),
    ("certificate is not yet valid", NOT_YET_VALID),
    ("fatal alert: CertificateRequired", CLIENT_CERTIFICATE),
    ("AlertReceived(CertificateRequired)", CLIENT_CERTIFICATE),
    ("alert certificate required", CLIENT_CERTIFICATE),
    ("fatal alert: ", CLIENT_REJECTED),
    ("AlertReceived(", CLIENT_REJECTED),
    (" alert ", CLIENT_REJECTED),
    ("message of type InvalidContentType", NO_TLS),
    ("InvalidMessage(InvalidContentType)", NO_TLS),
    ("wrong version number", NO_TLS),
    ("Connection reset by peer", CONNECTION_ENDED),
    ("tls handshake eof", HANDSHAKE_ENDED),
    ("unexpected EOF", HANDSHAKE_ENDED),
];
const UNKNOWN_AUTHORITY: &str = "the server's certificate is not signed by a known authority";
const OTHER_NAME: &str = "the server's certificate is for another host name";
const EXPIRED: &str = "the server's certificate has expired";
const NOT_YET_VALID: &str = "the server's certificate is not valid yet";
const CLIENT_CERTIFICATE: &str = "the server requires a client certificate";
const CLIENT_REJECTED: &str =
    "the server ended the handshake; perhaps it requires a different client certificate";
/// The connection may be reset before the alert, or what is no TLS, has been read.
const CONNECTION_ENDED: &str = "the server closed the connection; perhaps it does not speak TLS, or requires a client certificate (or a different one)";
const HANDSHAKE_ENDED: &str =
    "the server ended the connection during the handshake; perhaps it does not speak TLS";
pub(super) const NO_TLS: &str = "the server answers in plain text: use a URL without TLS";

/// A text about a connection that was not opened over TLS, with what it means.
pub(super) fn explain(text: String) -> String {
    match MEANINGS.iter().find(|(words, _)| text.contains(words)) {
        Some((_, meaning)) => format!("TLS: {meaning} ({text})"),
        None => text,
    }
}
