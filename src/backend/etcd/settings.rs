//! The settings of a client.

use std::fmt;
use std::time::Duration;

use crate::backend::records::{TIMEOUT, check_timeouts};
use crate::backend::tls::{Tls, TlsOptions};
use crate::error::Error;

/// What all keys begin with.
const PREFIX: &str = "leasehold/";

/// The options of a client.
#[derive(Clone)]
pub(super) struct Settings {
    /// Members of one cluster, each `host:port`.
    pub(super) endpoints: Vec<String>,
    pub(super) login: Option<Login>,
    pub(super) prefix: String,
    pub(super) connect_timeout: Duration,
    pub(super) reply_timeout: Duration,
    pub(super) is_encrypted: bool,
    pub(super) tls_options: Option<TlsOptions>,
    /// Set if it is encrypted.
    pub(super) tls: Option<Tls>,
    /// Without credentials.
    pub(super) address: String,
}

#[derive(Clone)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: String,
}

impl Settings {
    /// The defaults, for these members.
    pub(super) fn new(endpoints: Vec<String>) -> Self {
        Self {
            endpoints,
            login: None,
            prefix: PREFIX.to_owned(),
            connect_timeout: TIMEOUT,
            reply_timeout: TIMEOUT,
            is_encrypted: false,
            tls_options: None,
            tls: None,
            address: String::new(),
        }
    }

    /// Checks them, and reads the certificates.
    pub(super) fn complete(mut self) -> Result<Self, Error> {
        check_timeouts(self.connect_timeout, self.reply_timeout)?;
        if self.endpoints.is_empty() {
            return Err(Error::invalid("endpoints", "no member is given"));
        }
        if let Some(endpoint) = self.endpoints.iter().find(|endpoint| !is_endpoint(endpoint)) {
            // It may contain a password.
            let named = if endpoint.contains('@') { "one" } else { &format!("`{endpoint}`") };
            return Err(Error::invalid("endpoints", format!("{named} is not of the form `host:port`")));
        }
        if self.prefix.is_empty() {
            return Err(Error::invalid("prefix", "it is empty"));
        }
        let scheme = if self.is_encrypted { "etcds" } else { "etcd" };
        self.address = format!("{scheme}://{}", self.endpoints.join(","));
        if self.is_encrypted {
            let options = self.tls_options.take().unwrap_or_default();
            self.tls = Some(Tls::for_http2(&options, &self.address)?);
        }
        Ok(self)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .field("connect_timeout", &self.connect_timeout)
            .field("reply_timeout", &self.reply_timeout)
            .field("is_encrypted", &self.is_encrypted)
            .finish_non_exhaustive()
    }
}

/// Whether this is `host:port`, or `[address]:port`.
pub(super) fn is_endpoint(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).is_some_and(|address| {
        !address.is_empty() && address.chars().all(|c| c.is_ascii_hexdigit() || c == ':' || c == '.')
    });
    let is_name =
        !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'));
    (is_address || is_name) && port.parse::<u16>().is_ok_and(|port| port > 0)
}
