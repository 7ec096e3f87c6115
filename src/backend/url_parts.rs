//! What the URLs of several stores have in common: percent-encoding, and `?option=value&...`.

#![cfg_attr(not(feature = "all-stores"), allow(dead_code, reason = "each store uses a part of it"))]

use std::time::Duration;

use crate::error::Error;

pub(super) fn invalid(reason: impl Into<String>) -> Error {
    Error::invalid("url", reason)
}

#[cfg(any(feature = "_redis", feature = "etcd", feature = "sqlite", feature = "zookeeper"))]
pub(super) fn decode(text: &str) -> Result<String, Error> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
    decoded.map(String::from).map_err(|_| invalid("a percent-encoded part of it is not UTF-8"))
}

/// The options in a query, each with its value.
pub(super) fn options(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let options = query.split('&').filter(|option| !option.is_empty());
    options.map(|option| option.split_once('=').unwrap_or((option, "")))
}

/// Whole milliseconds or seconds, with their unit, as the value of the option `name`.
pub(super) fn duration(name: &str, value: &str) -> Result<Duration, Error> {
    let duration = match value.strip_suffix("ms") {
        Some(millis) => millis.parse().ok().map(Duration::from_millis),
        None => value.strip_suffix('s').and_then(|secs| secs.parse().ok()).map(Duration::from_secs),
    };
    duration.ok_or_else(|| invalid(format!("`{name}` is not a time such as `50ms` or `2s`")))
}

pub(super) fn number(name: &str, value: &str) -> Result<usize, Error> {
    value.parse().map_err(|_| invalid(format!("`{name}` is not a number")))
}

pub(super) fn boolean(name: &str, value: &str) -> Result<bool, Error> {
    value.parse().map_err(|_| invalid(format!("`{name}` is neither `true` nor `false`")))
}

/// The error for an option that is not one of those `known`. What looks like an option and is none may be a part of a password.
pub(super) fn unknown_option(name: &str, known: &str) -> Error {
    let is_word = name.len() <= 30 && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let named = if is_word { format!("unknown option `{name}`") } else { "unknown option".to_owned() };
    invalid(format!("{named}; the known ones are {known}"))
}
