//! `zookeeper://[user:password@]host[:port][,host...][/chroot][?option=value&...]`

use super::ZookeeperBuilder;
use crate::backend::tls::TlsOptions;
use crate::backend::url_parts::{Options, UrlOption, decode, invalid, set};
use crate::error::Error;

const OPTIONS: &[UrlOption<ZookeeperBuilder>] = &[
    set(&["session_timeout"], |builder, value| Ok(builder.session_timeout(value.duration()?))),
    set(&["connect_timeout"], |builder, value| Ok(builder.connect_timeout(value.duration()?))),
    set(&["reply_timeout"], |builder, value| Ok(builder.reply_timeout(value.duration()?))),
    set(&["create"], |builder, value| Ok(builder.create(value.boolean()?))),
    set(&["tls"], |builder, value| {
        Ok(if value.boolean()? { builder.tls(TlsOptions::new()) } else { builder })
    }),
];

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
    Options::of(query, OPTIONS)?.set(builder)
}

fn not_encoded(character: char, encoded: &str) -> Error {
    invalid(format!(
        "it has a misplaced `{character}`: percent-encode it as `{encoded}` if it belongs to the password"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;
    use crate::backend::url_parts::documentation::assert_documented;

    fn refused(url: &str) -> Error {
        parse(url).and_then(ZookeeperBuilder::connect_lazy).map(drop).expect_err(url)
    }

    #[test]
    fn every_option_is_documented() {
        assert_documented(OPTIONS, include_str!("../../../docs/stores/zookeeper.md"));
    }

    #[test]
    fn a_url_is_read_and_shown_without_credentials() {
        for (url, address) in [
            ("zookeeper://h", "zookeeper://h:2181/leasehold"),
            ("zookeeper://h:7/", "zookeeper://h:7/leasehold"),
            ("zookeeper://u:hunter2@a:1,b,c:3/x/y", "zookeeper://a:1,b:2181,c:3/x/y"),
            ("zookeeper://u:hunt%2Fer2@[::1]:6000/x/", "zookeeper://[::1]:6000/x"),
            ("zookeeper://[::1]/%C3%A9", "zookeeper://[::1]:2181/é"),
        ] {
            let builder = parse(url).unwrap();
            assert!(!format!("{builder:?}").contains("hunt"), "{builder:?}");
            assert_eq!(builder.connect_lazy().unwrap().capabilities().store, address, "{url}");
        }
    }

    #[test]
    fn every_option_is_set() {
        let url =
            "zookeeper://h?session_timeout=10s&connect_timeout=500ms&reply_timeout=3s&create=false&tls=false";
        let shown = format!("{:?}", parse(url).unwrap());
        for set in [
            "session_timeout: 10s",
            "connect_timeout: 500ms",
            "reply_timeout: 3s",
            "create: false",
            "tls: None",
        ] {
            assert!(shown.contains(set), "{set}: {shown}");
        }
        let shown = format!("{:?}", parse("zookeeper://h?tls=true").unwrap());
        assert!(shown.contains("tls: Some"), "{shown}");
    }

    #[test]
    fn bad_urls_are_refused_without_repeating_a_password() {
        for (url, reason) in [
            ("zookeeper:", "does not begin with"),
            ("zookeeper://", "names no host"),
            ("zookeeper://u:hunter2@", "names no host"),
            ("zookeeper://u@h", "a user and no password"),
            ("zookeeper://:hunter2@h", "empty or contains a colon"),
            ("zookeeper://u:hunter2@h:port", "a port is not a number"),
            ("zookeeper://u:hunter2@h,", "no host is named"),
            ("zookeeper://u:hunter2@::1", "in brackets"),
            ("zookeeper://u:hunt/er2@h", "percent-encode it as `%2F`"),
            ("zookeeper://u:hunt?er2@h", "percent-encode it as `%3F`"),
            ("zookeeper://u:hunt#er2@h", "percent-encode it as `%23`"),
            ("zookeeper://u:hunt@er2@h", "percent-encode it as `%40`"),
            ("zookeeper://u:hunt:er2@h", "percent-encode it as `%3A`"),
            ("zookeeper://u:hunter2@h?color=red", "unknown option `color`; the known ones are"),
            ("zookeeper://h?reply_timeout=5", "such as `50ms`"),
            ("zookeeper://h?create=1", "neither `true` nor `false`"),
            ("zookeeper://h?tls=yes", "neither `true` nor `false`"),
            ("zookeeper://h?connect_timeout=0ms", "is not between"),
            ("zookeeper://h?session_timeout=1ms", "is not between"),
            ("zookeeper://h/a//b", "not an absolute path"),
            ("zookeeper://h/a/..", "not an absolute path"),
            ("zookeeper://h/zookeeper/x", "belongs to the servers"),
        ] {
            let error = refused(url);
            assert!(matches!(error, Error::InvalidArgument { .. }), "{url}: {error:?}");
            assert!(error.to_string().contains(reason), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("hunt"), "{url}: {error:?}");
        }
    }

    #[cfg(not(any(feature = "rustls", feature = "native-tls")))]
    #[test]
    fn tls_that_this_build_lacks_is_refused() {
        let error = refused("zookeeper://u:hunter2@h?tls=true");
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
