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

/// What is in the file that an option names.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) fn file(option: &str, path: &str) -> Result<Vec<u8>, Error> {
    let unreadable = |why: String| invalid(format!("the file of option `{option}` cannot be read: {why}"));
    let path = decode_name(path).ok_or_else(|| unreadable("its name is not encoded correctly".to_owned()))?;
    std::fs::read(path).map_err(|error| unreadable(error.to_string()))
}

/// What is percent-encoded in the name of a file.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn decode_name(text: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                decoded.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
            }
            byte => decoded.push(byte),
        }
    }
    String::from_utf8(decoded).ok()
}

/// Refuses a URL with an `@` that is not encoded: a part of a password would be taken for a host, a path or an option, and be shown.
pub(super) fn check_at_signs(url: &str) -> Result<(), Error> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = &rest[..rest.find(['/', '?']).unwrap_or(rest.len())];
    let in_authority = authority.matches('@').count();
    if in_authority > 1 || rest.matches('@').count() > in_authority {
        let why = "it has more than one `@`, or one after its hosts: percent-encode special characters, `@` as `%40`, \
                   `/` as `%2F`, `?` as `%3F`";
        return Err(invalid(why));
    }
    Ok(())
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
pub(super) fn unknown_option(name: &str, known: &[&str]) -> Error {
    let is_word = name.len() <= 30 && name.chars().all(|c| c.is_ascii_alphabetic() || "-_".contains(c));
    let named = if is_word { format!("unknown option `{name}`") } else { "unknown option".to_owned() };
    if known.is_empty() {
        return invalid(format!("{named}; a URL of this scheme has no options"));
    }
    let known: Vec<_> = known.iter().map(|option| format!("`{option}`")).collect();
    invalid(format!("{named}; the known ones are {}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_at_sign_that_is_not_encoded_is_refused_without_repeating_anything() {
        for url in ["s://h", "s://u:p@h,i:1/d?a=b", "s://u:p%40ss@h", "s:///d?host=/run", "s://@h"] {
            check_at_signs(url).unwrap();
        }
        for url in [
            "s://u:hunt@er2@h/d",
            "s://u:h@nt/er2@h/d",
            "s://u:hunt/er2@h/d",
            "s://u:hunt?er2@h/d",
            "s://u:1?hunt=er2@h/d",
            "s://u:p@h/d@hunt",
            "s://u:p@h/d?a=hunt@er2",
        ] {
            let error = check_at_signs(url).unwrap_err();
            assert!(error.to_string().contains("percent-encode"), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("hunt"), "{url}: {error:?}");
        }
    }

    #[test]
    fn an_unknown_option_is_named_if_it_can_be_one() {
        for (name, known, said) in [
            ("color", &["a", "b"][..], "unknown option `color`; the known ones are `a`, `b`"),
            ("statement-cache-capacity", &["a"], "unknown option `statement-cache-capacity`;"),
            ("useSSL", &[], "unknown option `useSSL`; a URL of this scheme has no options"),
            ("hunt er2", &["a"], "unknown option; the known ones are `a`"),
        ] {
            let error = unknown_option(name, known).to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
