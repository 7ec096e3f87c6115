//! `etcd://[user:password@]host[:port][,host[:port]...][?option=value&...]`, and the same with `etcds://`, over TLS.

use percent_encoding::percent_decode_str;

use super::settings::{Login, Settings, is_endpoint};
use crate::backend::url_parts::{Options, UrlOption, check_at_signs, invalid, set};
use crate::error::Error;

const PORT: u16 = 2379;
const OPTIONS: &[UrlOption<Settings>] = &[
    set(&["prefix"], |settings, value| Ok(Settings { prefix: decode(value.text)?, ..settings })),
    set(&["connect_timeout"], |settings, value| {
        Ok(Settings { connect_timeout: value.duration()?, ..settings })
    }),
    set(&["reply_timeout"], |settings, value| Ok(Settings { reply_timeout: value.duration()?, ..settings })),
];
const SHAPE: &str = "it is not of the form `etcd://[user:password@]host[:port][,host[:port]...][?option=value&...]`, with special \
     characters percent-encoded";

/// Parses the URL. Errors never repeat it, because it may contain a password.
pub(super) fn parse(url: &str) -> Result<Settings, Error> {
    let (is_encrypted, rest) = match (url.strip_prefix("etcd://"), url.strip_prefix("etcds://")) {
        (Some(rest), _) => (false, rest),
        (_, Some(rest)) => (true, rest),
        _ => return Err(invalid("it does not begin with `etcd://` or `etcds://`")),
    };
    check_at_signs(url)?;
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (login, hosts) = match place.rsplit_once('@') {
        Some((login, hosts)) => (Some(read_login(login)?), hosts),
        None => (None, place),
    };
    let hosts = hosts.strip_suffix('/').unwrap_or(hosts);
    if hosts.is_empty() {
        return Err(invalid("it names no host"));
    }
    let endpoints: Result<Vec<_>, _> = hosts.split(',').map(endpoint).collect();
    let settings = Settings { login, is_encrypted, ..Settings::new(endpoints?) };
    Options::of(query, OPTIONS)?.set(settings)
}

fn read_login(login: &str) -> Result<Login, Error> {
    let (user, password) = login
        .split_once(':')
        .ok_or_else(|| invalid("it names a user without a password: `user:password@`"))?;
    if [user, password].iter().any(|part| part.contains([':', '@', '/'])) {
        return Err(invalid(SHAPE));
    }
    Ok(Login { user: decode(user)?, password: decode(password)? })
}

fn endpoint(host: &str) -> Result<String, Error> {
    let is_complete = is_endpoint(host);
    let with_port = format!("{host}:{PORT}");
    if is_complete {
        Ok(host.to_owned())
    } else if is_endpoint(&with_port) {
        Ok(with_port)
    } else {
        Err(invalid(SHAPE))
    }
}

fn decode(text: &str) -> Result<String, Error> {
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| invalid(SHAPE))?;
    Ok(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::url_parts::documentation::assert_documented;

    #[test]
    fn every_option_is_documented() {
        assert_documented(OPTIONS, include_str!("../../../docs/stores/etcd.md"));
    }

    #[test]
    fn a_url_is_read_and_shown_without_credentials() {
        for (url, endpoints) in [
            ("etcd://h", "h:2379"),
            ("etcd://h/", "h:2379"),
            ("etcds://u:hunter2@a:1,b,[::1]:3,[::2]", "a:1,b:2379,[::1]:3,[::2]:2379"),
            ("etcd://u:hunt%2Fer2@h:6000?prefix=a", "h:6000"),
        ] {
            let settings = parse(url).unwrap();
            assert_eq!(settings.endpoints.join(","), endpoints, "{url}");
            assert!(!format!("{settings:?}").contains("hunt"), "{settings:?}");
        }
        let login = parse("etcd://us%40er:hunt%2Fer2@h").unwrap().login.unwrap();
        assert_eq!((&*login.user, &*login.password), ("us@er", "hunt/er2"));
    }

    #[test]
    fn every_option_is_set() {
        let settings = parse("etcd://h?prefix=%2Flocks%2F&connect_timeout=500ms&reply_timeout=3s").unwrap();
        assert_eq!(settings.prefix, "/locks/");
        assert_eq!(settings.connect_timeout, Duration::from_millis(500));
        assert_eq!(settings.reply_timeout, Duration::from_secs(3));
        assert!(!settings.is_encrypted && parse("etcds://h").unwrap().is_encrypted);
    }

    #[test]
    fn bad_urls_are_refused_without_repeating_a_password() {
        for (url, reason) in [
            ("etcd:", "does not begin with"),
            ("etcd://", "names no host"),
            ("etcd://u:hunter2@", "names no host"),
            ("etcd://hunter2@h", "without a password"),
            ("etcd://u:hunter2@h:port", "is not of the form"),
            ("etcd://u:hunt?er2@h", "percent-encode"),
            ("etcd://u:hunt/er2@h", "percent-encode"),
            ("etcd://u:p@hunt@h", "percent-encode"),
            ("etcd://u:p@h/x@hunt", "percent-encode"),
            ("etcd://u:p@h?prefix=x@hunt", "percent-encode"),
            ("etcd://h?reply-timeout=5s", "unknown option `reply-timeout`; the known ones are"),
            ("etcd://u:hunter2@h/x", "is not of the form"),
            ("etcd://u:hunter2@h:1,", "is not of the form"),
            ("etcd://u:%ff@h", "is not of the form"),
            ("etcd://u:hunter2@h?color=red", "unknown option `color`; the known ones are"),
            ("etcd://h?reply_timeout=5", "such as `50ms`"),
        ] {
            let error = parse(url).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { argument: "url", .. }), "{url}: {error:?}");
            assert!(error.to_string().contains(reason), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("hunt"), "{url}: {error:?}");
        }
    }
}
