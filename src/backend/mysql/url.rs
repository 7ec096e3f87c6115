//! `mysql://[user[:password]@]host[:port][,host...]/database[?option=value&...]`, as `mysql_async` and sqlx take it,
//! with more options.

use mysql_async::{Opts, UrlError};

use super::settings::place as place_of;
use super::{MysqlBuilder, MysqlPush};
use crate::backend::sql::Place;
use crate::backend::url_parts::{
    Options, UrlOption, Value, check_at_signs, ignored, invalid, passed_on, set, together,
};
use crate::error::Error;

/// Those of this crate, those of `mysql_async` and sqlx that make sense here, and those that mean nothing here: this
/// crate has no pool, prepares no statements, and makes all settings of its sessions.
const OPTIONS: &[UrlOption<MysqlBuilder>] = &[
    set(&["connect_timeout"], |builder, value| Ok(builder.connect_timeout(value.duration()?))),
    set(&["reply_timeout"], |builder, value| Ok(builder.reply_timeout(value.duration()?))),
    set(&["max_connections"], |builder, value| Ok(builder.max_connections(value.number()?))),
    set(&["create"], |builder, value| Ok(builder.create(value.boolean()?))),
    set(&["push"], |builder, value| {
        Ok(builder.push(value.either([("get_lock", MysqlPush::GetLock), ("off", MysqlPush::Off)])?))
    }),
    passed_on(&["require_ssl"]),
    together(&["ssl-mode", "sslmode", "ssl_mode"]),
    together(&["ssl-ca", "sslca", "ssl_ca"]),
    together(&["ssl-cert", "sslcert", "ssl_cert"]),
    together(&["ssl-key", "sslkey", "ssl_key"]),
    passed_on(&["socket"]),
    passed_on(&["tcp_keepalive"]),
    passed_on(&["tcp_nodelay"]),
    passed_on(&["compression"]),
    passed_on(&["max_allowed_packet"]),
    passed_on(&["secure_auth"]),
    passed_on(&["enable_cleartext_plugin"]),
    ignored(&["charset"]),
    ignored(&["collation"]),
    ignored(&["timezone"]),
    ignored(&["time-zone"]),
    ignored(&["statement-cache-capacity"]),
    ignored(&["stmt_cache_size"]),
    ignored(&["prefer_socket"]),
    ignored(&["wait_timeout"]),
    ignored(&["client_found_rows"]),
    ignored(&["reset_connection"]),
    ignored(&["pool_min"]),
    ignored(&["pool_max"]),
    ignored(&["inactive_connection_ttl"]),
    ignored(&["ttl_check_interval"]),
    ignored(&["conn_ttl"]),
    ignored(&["abs_conn_ttl"]),
    ignored(&["abs_conn_ttl_jitter"]),
];

const SHAPE: &str = "it is not of the form `mysql://[user[:password]@]host[:port][,host...]/database[?option=value&...]`, with special \
     characters percent-encoded";

/// Parses the URL. Errors never repeat it, because it may contain a password.
pub(super) fn parse(url: &str) -> Result<MysqlBuilder, Error> {
    let Some(rest) = url.strip_prefix("mysql://").or_else(|| url.strip_prefix("mariadb://")) else {
        return Err(invalid("it does not begin with `mysql://` or `mariadb://`"));
    };
    check_at_signs(url)?;
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let options = Options::of(query, OPTIONS)?;
    check_place(place)?;
    let passed_on = options.passed_on().map(|Value { option, text }| format!("{option}={text}"));
    let mut passed_on: Vec<_> = passed_on.collect();
    if uses_tls(options.value_of("ssl-mode"))? && !passed_on.iter().any(|option| option == "require_ssl=true")
    {
        passed_on.push("require_ssl=true".to_owned());
    }
    let (opts, places) = servers(place, &passed_on.join("&"))?;
    let mut builder = MysqlBuilder::of_url(opts);
    builder.settings = builder.settings.with_places(places);
    let builder = options.set(builder)?;
    if builder.settings.target.opts.ssl_opts().is_none() {
        return Ok(builder);
    }
    let certificates = options.certificates(options.value_of("ssl-ca"), ["ssl-cert", "ssl-key"])?;
    Ok(certificates.into_iter().fold(builder, MysqlBuilder::tls))
}

/// The settings for the first server, and where all of them are.
fn servers(place: &str, query: &str) -> Result<(Opts, Vec<Place>), Error> {
    let (server, database) = place.split_once('/').unwrap_or((place, ""));
    let (user, hosts) = match server.split_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), server),
    };
    let each = hosts.split(',').map(|host| {
        if host.is_empty() {
            return Err(invalid(SHAPE));
        }
        Opts::from_url(&format!("mysql://{user}{host}/{database}?{query}")).map_err(|error| {
            invalid(match error {
                UrlError::InvalidParamValue { param, .. } => format!("invalid value for option `{param}`"),
                UrlError::FeatureRequired { param, .. } => {
                    format!("this build lacks the feature that option `{param}` needs")
                }
                _ => SHAPE.to_owned(),
            })
        })
    });
    let mut each = each.collect::<Result<Vec<_>, _>>()?;
    let mut places: Vec<_> = each.iter().map(place_of).collect();
    if each[0].socket().is_some() {
        // It leads to one server, whatever hosts are named.
        places.truncate(1);
    }
    Ok((each.swap_remove(0), places))
}

/// Whether `ssl-mode` asks for TLS. Certificates and host names are always verified.
fn uses_tls(mode: Option<Value<'_>>) -> Result<bool, Error> {
    let Some(Value { text: mode, .. }) = mode else { return Ok(false) };
    match &*mode.to_ascii_lowercase().replace('-', "_") {
        "disabled" | "disable" => Ok(false),
        "preferred" | "prefer" => {
            tracing::warn!(target: "leasehold::store", "`ssl-mode={mode}` does not enable TLS here; `ssl-mode=required` does");
            Ok(false)
        }
        "required" | "require" | "verify_ca" | "verify_identity" => Ok(true),
        _ => Err(invalid(
            "`ssl-mode` is none of `disabled`, `preferred`, `required`, `verify_ca`, `verify_identity`",
        )),
    }
}

/// What is not encoded in a password would be taken for something else.
fn check_place(place: &str) -> Result<(), Error> {
    let (server, database) = place.split_once('/').unwrap_or((place, ""));
    let hosts = server.rsplit_once('@').map_or(server, |(_, hosts)| hosts);
    if hosts.is_empty() {
        return Err(invalid("it names no host"));
    }
    if database.contains(['/', ':']) || place.contains('#') {
        return Err(invalid(SHAPE));
    }
    if database.is_empty() {
        return Err(invalid("it names no database: `mysql://host/database`"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::url_parts::documentation::assert_documented;

    #[test]
    fn every_option_is_documented() {
        assert_documented(OPTIONS, include_str!("../../../docs/stores/mysql.md"));
    }

    #[test]
    fn a_url_is_read_and_shown_without_credentials() {
        for (url, address) in [
            ("mysql://h/locks", "mysql://h:3306/locks"),
            ("mariadb://u:hunter2@h:6000/locks", "mysql://h:6000/locks"),
            ("mysql://u:hunt%2Fer2@[::1]:6000/locks", "mysql://[::1]:6000/locks"),
            ("mysql://u:hunter2@a,b:6000,[::1]/locks", "mysql://a:3306,b:6000,[::1]:3306/locks"),
            ("mysql://u:hunter2@localhost/locks?socket=/run/mysqld.sock", "mysql:///run/mysqld.sock/locks"),
        ] {
            let builder = parse(url).unwrap();
            assert_eq!(builder.settings.address, address, "{url}");
            assert!(!format!("{builder:?}").contains("hunt"), "{builder:?}");
        }
        let opts = parse("mysql://u:hunt%2Fer2@h/d%61").unwrap().settings.target.opts;
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
        assert_eq!(settings.target.push, MysqlPush::Off);
        assert_eq!(settings.target.opts.tcp_keepalive(), Some(Duration::from_secs(1)));
        assert_eq!(parse("mysql://h/d?push=get_lock").unwrap().settings.target.push, MysqlPush::GetLock);
    }

    #[test]
    fn bad_urls_are_refused_without_repeating_a_password() {
        for (url, reason) in [
            ("mysql:", "does not begin with"),
            ("mysql://", "names no host"),
            ("mysql://u:hunter2@/d", "names no host"),
            ("mysql://u:hunter2@h", "names no database"),
            ("mysql://u:hunter2@h:port/d", "is not of the form"),
            ("mysql://u:12/hunter2@h/d", "percent-encode"),
            ("mysql://u:hunt@er2@h/d", "percent-encode"),
            ("mysql://u:h@nt/er2@h/d", "percent-encode"),
            ("mysql://u:hunter2@a,/d", "is not of the form"),
            ("mysql://u:1#hunter2@h/d", "is not of the form"),
            ("mysql://u:hunt?er2@h/d", "percent-encode"),
            ("mysql://h/d?ssl-mode=hunter2", "`ssl-mode` is none of"),
            ("mysql://h/d?ssl-modes=hunter2", "unknown option `ssl-modes`; the known ones are"),
            ("mysql://h/d?ssl-mode=REQUIRED&ssl-ca=/hunt/er2", "the file of option `ssl-ca` cannot be read"),
            ("mysql://h/d?ssl-mode=REQUIRED&ssl-ca=%zz", "the file of option `ssl-ca` cannot be read"),
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
    fn the_options_of_sqlx_are_understood_or_ignored() {
        let url = "mysql://h/d?charset=utf8mb4&collation=utf8mb4_bin&timezone=%2B00:00&statement-cache-capacity=100&pool_max=5";
        for (more, is_tls) in [
            ("", false),
            ("&ssl-mode=DISABLED&ssl-ca=/nowhere", false),
            ("&sslmode=preferred", false),
            ("&ssl_mode=REQUIRED", true),
            ("&sslmode=verify-ca&require_ssl=true", true),
            ("&ssl-mode=VERIFY_IDENTITY", true),
        ] {
            let parsed = parse(&format!("{url}{more}"));
            // The feature may be missing.
            if cfg!(feature = "rustls") || !is_tls {
                assert_eq!(parsed.unwrap().settings.target.opts.ssl_opts().is_some(), is_tls, "{more}");
            }
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
