//! `redlock://[[user:]password@]host[:port],host[:port],...[/database][?option=value&...]`

use super::RedlockBuilder;
use crate::backend::RedisBackend;
use crate::backend::url_parts::{Options, UrlOption, check_at_signs, invalid, set};
use crate::error::Error;

const OPTIONS: &[UrlOption<RedlockBuilder>] = &[
    set(&["node_timeout"], |builder, value| Ok(builder.node_timeout(value.duration()?))),
    set(&["connect_timeout"], |builder, value| {
        let timeout = value.duration()?;
        Ok(builder.each(|node| node.connect_timeout(timeout)))
    }),
    set(&["reply_timeout"], |builder, value| {
        let timeout = value.duration()?;
        Ok(builder.each(|node| node.reply_timeout(timeout)))
    }),
    set(&["poll_interval"], |builder, value| {
        let interval = value.duration()?;
        Ok(builder.each(|node| node.poll_interval(interval)))
    }),
];

/// Parses the URL. Errors never repeat it, because it may contain a password.
pub(super) fn parse(url: &str) -> Result<RedlockBuilder, Error> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(invalid("it does not begin with `redlock://`"));
    };
    // What `redlocks` needs is left to the nodes: their scheme is the TLS one.
    let node_scheme = match scheme {
        "redlock" => "redis",
        "redlocks" => "rediss",
        _ => return Err(invalid("its scheme is neither `redlock://` nor `redlocks://`")),
    };
    check_at_signs(url)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    // A password may contain slashes only if they are encoded.
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let at = if user.is_empty() { "" } else { "@" };
    let slash = if path.is_empty() { "" } else { "/" };
    let mut nodes = Vec::new();
    for host in hosts.split(',') {
        if host.is_empty() {
            return Err(invalid("it names no host, or has an extra comma"));
        }
        nodes.push(RedisBackend::builder(&format!("{node_scheme}://{user}{at}{host}{slash}{path}"))?);
    }
    Options::of(query, OPTIONS)?.set(RedlockBuilder::new(nodes))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::url_parts::documentation::assert_documented;

    #[test]
    fn every_option_is_documented() {
        assert_documented(OPTIONS, include_str!("../../../docs/stores/redlock.md"));
    }

    #[test]
    fn every_host_is_a_node_with_the_same_credentials_and_database() {
        let builder = parse("redlock://user:hunter2@a:1,b,c:3/2?node_timeout=20ms&reply_timeout=1s").unwrap();
        let stores: Vec<_> = builder.nodes.iter().map(|node| node.address()).collect();
        assert_eq!(stores, ["redis://a:1/2", "redis://b:6379/2", "redis://c:3/2"]);
        assert_eq!(builder.node_timeout, Duration::from_millis(20));
        assert!(!format!("{builder:?}").contains("hunter2"));
    }

    #[test]
    fn bad_urls_are_refused_without_repeating_a_password() {
        for url in [
            "redlock:",
            "redlock://",
            "redlock://u:hunter2@",
            "redlock://u:hunter2@a,,b",
            "redlock://u:hunter2@a,b:0",
            "redlock://u:hunter2@a?node_timeout=5",
            "redlock://u:hunter2@a?node_timeout=xms",
            "redlock://u:hunter2@a?unheard_of=1",
        ] {
            let error = parse(url).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { argument: "url", .. }), "{url}: {error:?}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error:?}");
        }
    }

    #[test]
    fn an_at_sign_that_is_not_encoded_is_refused_without_repeating_anything() {
        for url in [
            "redlock://u:hunt@er@a,b",
            "redlock://u:hunt/er@a,b",
            "redlock://u:hunt?er=x@a,b",
            "redlock://u:6379?hunt@a,b",
            "redlock://u:p@a,b/hunt@er",
            "redlocks://u:p@a,b?node_timeout=hunt@er",
        ] {
            let error = parse(url).unwrap_err();
            assert!(error.to_string().contains("percent-encode"), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("hunt"), "{url}: {error:?}");
        }
    }

    #[test]
    fn tls_is_up_to_the_nodes() {
        let expected = RedisBackend::builder("rediss://a:1").map(|node| node.address());
        let parsed = parse("redlocks://a:1").map(|builder| builder.nodes[0].address());
        assert_eq!(format!("{parsed:?}"), format!("{expected:?}"));
    }
}
