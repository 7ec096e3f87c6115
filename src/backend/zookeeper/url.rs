//! `zookeeper://[user:password@]host[:port][,host...][/chroot][?option=value&...]`

use percent_encoding::percent_decode_str;

use super::ZookeeperBuilder;
use crate::backend::TlsOptions;
use crate::backend::by_url::{duration, options, unknown_option};
use crate::error::Error;

const OPTIONS: &str = "`session_timeout`, `connect_timeout`, `reply_timeout`, `create` and `tls`";

/// Parses the URL. Errors never repeat it, because it may contain a password.
pub(super) fn parse(url: &str) -> Result<ZookeeperBuilder, Error> {
    let Some(rest) = url.strip_prefix("zookeeper://") else {
        return Err(invalid("it does not begin with `zookeeper://`"));
    };
    if rest.contains('#') {
        return Err(not_encoded('#', "%23"));
    }
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    if query.contains('@') {
        return Err(not_encoded('?', "%3F"));
    }
    let (authority, chroot) = match place.find('/') {
        Some(slash) => place.split_at(slash),
        None => (place, ""),
    };
    if chroot.contains('@') {
        return Err(not_encoded('/', "%2F"));
    }
    let (credentials, hosts) = match authority.rsplit_once('@') {
        Some((credentials, hosts)) => (Some(credentials), hosts),
        None => (None, authority),
    };
    if hosts.is_empty() {
        return Err(invalid("it names no host"));
    }
    let mut builder = ZookeeperBuilder::new(hosts.split(',').map(str::to_owned).collect());
    builder = builder.chroot(decode(chroot)?);
    if let Some(credentials) = credentials {
        let (user, password) =
            credentials.split_once(':').ok_or_else(|| invalid("it has a user and no password"))?;
        if password.contains('@') || user.contains('@') {
            return Err(not_encoded('@', "%40"));
        }
        if password.contains(':') {
            return Err(not_encoded(':', "%3A"));
        }
        builder = builder.credentials(decode(user)?, decode(password)?);
    }
    options(query).try_fold(builder, |builder, (name, value)| set(builder, name, value))
}

fn set(builder: ZookeeperBuilder, name: &str, value: &str) -> Result<ZookeeperBuilder, Error> {
    Ok(match name {
        "session_timeout" => builder.session_timeout(duration(name, value)?),
        "connect_timeout" => builder.connect_timeout(duration(name, value)?),
        "reply_timeout" => builder.reply_timeout(duration(name, value)?),
        "create" => builder.create(boolean(name, value)?),
        "tls" if boolean(name, value)? => builder.tls(TlsOptions::new()),
        "tls" => builder,
        _ => return Err(unknown_option(name, OPTIONS)),
    })
}

fn boolean(name: &str, value: &str) -> Result<bool, Error> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(invalid(format!("`{name}` is neither `true` nor `false`"))),
    }
}

fn decode(text: &str) -> Result<String, Error> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| invalid("a percent-encoded part of it is no UTF-8"))?;
    Ok(decoded.into_owned())
}

fn invalid(reason: impl Into<String>) -> Error {
    Error::invalid("url", reason)
}

fn not_encoded(character: char, encoded: &str) -> Error {
    invalid(format!(
        "it has a `{character}` too many: percent-encode it as `{encoded}` if it belongs to the password"
    ))
}
