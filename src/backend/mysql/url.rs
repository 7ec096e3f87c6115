//! `mysql://[user[:password]@]host[:port]/database[?option=value&...]`, as `mysql_async` takes it, with more options.

use mysql_async::{Opts, UrlError};

use super::{MysqlBuilder, MysqlPush};
use crate::backend::url_parts::{boolean, duration, invalid, number, options, unknown_option};
use crate::error::Error;

/// Those of this crate, and those of `mysql_async` that make sense here.
const OPTIONS: &str = "`connect_timeout`, `reply_timeout`, `max_connections`, `create`, `push`, `require_ssl`, `socket`, `tcp_keepalive`, \
     `tcp_nodelay`, `compression`, `max_allowed_packet`, `secure_auth`, `enable_cleartext_plugin`";

const SHAPE: &str = "it is not of the form `mysql://[user[:password]@]host[:port]/database[?option=value&...]`, with special characters \
     percent-encoded";

/// Parses the URL. Errors never repeat it, because it may contain a password.
pub(super) fn parse(url: &str) -> Result<MysqlBuilder, Error> {
    let Some(rest) = url.strip_prefix("mysql://").or_else(|| url.strip_prefix("mariadb://")) else {
        return Err(invalid("it does not begin with `mysql://` or `mariadb://`"));
    };
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (ours, theirs): (Vec<_>, Vec<_>) = options(query).partition(|(name, _)| is_ours(name));
    if let Some((name, _)) = theirs.iter().find(|(name, _)| !OPTIONS.contains(&format!("`{name}`"))) {
        return Err(unknown_option(name, OPTIONS));
    }
    check_place(place)?;
    let theirs: Vec<_> = theirs.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let opts = Opts::from_url(&format!("mysql://{place}?{}", theirs.join("&"))).map_err(|error| {
        let why = match error {
            UrlError::InvalidParamValue { param, .. } => format!("invalid value for option `{param}`"),
            UrlError::FeatureRequired { param, .. } => {
                format!("this build lacks the feature that option `{param}` needs")
            }
            _ => SHAPE.to_owned(),
        };
        invalid(why)
    })?;
    ours.into_iter().try_fold(MysqlBuilder::of_url(opts), |builder, (name, value)| set(builder, name, value))
}

fn is_ours(name: &str) -> bool {
    ["connect_timeout", "reply_timeout", "max_connections", "create", "push"].contains(&name)
}

/// What is not encoded in a password would be taken for something else.
fn check_place(place: &str) -> Result<(), Error> {
    let (server, database) = place.split_once('/').unwrap_or((place, ""));
    let host = server.rsplit_once('@').map_or(server, |(_, host)| host);
    if host.is_empty() {
        return Err(invalid("it names no host"));
    }
    if database.contains(['@', '/', ':']) || place.contains('#') {
        return Err(invalid(SHAPE));
    }
    if database.is_empty() {
        return Err(invalid("it names no database: `mysql://host/database`"));
    }
    Ok(())
}

fn set(builder: MysqlBuilder, name: &str, value: &str) -> Result<MysqlBuilder, Error> {
    Ok(match (name, value) {
        ("connect_timeout", _) => builder.connect_timeout(duration(name, value)?),
        ("reply_timeout", _) => builder.reply_timeout(duration(name, value)?),
        ("max_connections", _) => builder.max_connections(number(name, value)?),
        ("push", "get_lock") => builder.push(MysqlPush::GetLock),
        ("push", "off") => builder.push(MysqlPush::Off),
        ("push", _) => return Err(invalid("`push` is neither `get_lock` nor `off`")),
        _ => builder.create(boolean(name, value)?),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_url_is_read_and_shown_without_credentials() {
        for (url, address) in [
            ("mysql://h/locks", "mysql://h:3306/locks"),
            ("mariadb://u:hunter2@h:6000/locks", "mysql://h:6000/locks"),
            ("mysql://u:hunt%2Fer2@[::1]:6000/locks", "mysql://[::1]:6000/locks"),
            ("mysql://u:hunter2@localhost/locks?socket=/run/mysqld.sock", "mysql:///run/mysqld.sock/locks"),
        ] {
            let builder = parse(url).unwrap();
            assert_eq!(builder.settings.address, address, "{url}");
            assert!(!format!("{builder:?}").contains("hunt"), "{builder:?}");
        }
        let opts = parse("mysql://u:hunt%2Fer2@h/d%61").unwrap().settings.opts;
        assert_eq!((opts.user(), opts.pass(), opts.db_name()), (Some("u"), Some("hunt/er2"), Some("da")));
        assert!(!opts.prefer_socket() && !opts.client_found_rows());
    }

    #[test]
    fn every_option_is_set() {
        let url = "mysql://h/d?connect_timeout=500ms&reply_timeout=3s&max_connections=7&create=false&push=off&tcp_keepalive=1000";
        let settings = parse(url).unwrap().settings;
        assert_eq!(settings.connect_timeout, Duration::from_millis(500));
        assert_eq!(settings.reply_timeout, Duration::from_secs(3));
        assert_eq!((settings.max_connections, settings.create), (7, false));
        assert_eq!(settings.push, MysqlPush::Off);
        assert_eq!(settings.opts.tcp_keepalive(), Some(Duration::from_secs(1)));
        assert_eq!(parse("mysql://h/d?push=get_lock").unwrap().settings.push, MysqlPush::GetLock);
    }

    #[test]
    fn bad_urls_are_refused_without_repeating_a_password() {
        for (url, reason) in [
            ("mysql:", "does not begin with"),
            ("mysql://", "names no host"),
            ("mysql://u:hunter2@/d", "names no host"),
            ("mysql://u:hunter2@h", "names no database"),
            ("mysql://u:hunter2@h:port/d", "is not of the form"),
            ("mysql://u:12/hunter2@h/d", "is not of the form"),
            ("mysql://u:1#hunter2@h/d", "is not of the form"),
            ("mysql://u:hunt?er2@h/d", "unknown option; the known ones are"),
            ("mysql://u:hunter2@h/d?color=red", "unknown option `color`; the known ones are"),
            ("mysql://u:hunter2@h/d?verify_ca=false", "unknown option `verify_ca`; the known ones are"),
            ("mysql://h/d?reply_timeout=5", "such as `50ms`"),
            ("mysql://h/d?create=1", "neither `true` nor `false`"),
            ("mysql://h/d?push=1", "neither `get_lock` nor `off`"),
            ("mysql://h/d?max_connections=x", "not a number"),
            ("mysql://h/d?tcp_keepalive=hunter2", "invalid value for option `tcp_keepalive`"),
        ] {
            let error = parse(url).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { argument: "url", .. }), "{url}: {error:?}");
            assert!(error.to_string().contains(reason), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("hunt"), "{url}: {error:?}");
        }
    }

    #[test]
    fn settings_out_of_bounds_are_refused() {
        for url in [
            "mysql://h/d?connect_timeout=0ms",
            "mysql://h/d?reply_timeout=3601s",
            "mysql://h/d?max_connections=1",
            "mysql://h/d?max_connections=2&push=get_lock",
        ] {
            let error = parse(url).unwrap().connect_lazy().unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { .. }), "{url}: {error:?}");
        }
    }
}
