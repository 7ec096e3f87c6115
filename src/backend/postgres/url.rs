//! `postgres://[user[:password]@]host[:port][,host...][/database][?option=value&...]`, as `tokio_postgres` takes it,
//! with more options.

use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use super::PostgresBuilder;
use crate::backend::url_parts::{
    Options, UrlOption, Value, check_at_signs, ignored, invalid, passed_on, set, together,
};
use crate::error::Error;

/// Those of this crate, those of `tokio_postgres` that make sense here, and those of libpq and sqlx that mean nothing
/// here.
const OPTIONS: &[UrlOption<PostgresBuilder>] = &[
    set(&["connect_timeout"], |builder, value| {
        // Whole seconds, as others write it.
        let seconds = value.text.parse::<u32>().ok().map(|seconds| format!("{seconds}s"));
        let text = seconds.as_deref().unwrap_or(value.text);
        Ok(builder.connect_timeout(Value { text, ..value }.duration()?))
    }),
    set(&["reply_timeout"], |builder, value| Ok(builder.reply_timeout(value.duration()?))),
    set(&["max_connections"], |builder, value| Ok(builder.max_connections(value.number()?))),
    set(&["create"], |builder, value| Ok(builder.create(value.boolean()?))),
    set(&["schema"], |builder, value| Ok(builder.schema(value.text))),
    passed_on(&["sslmode", "ssl-mode"]),
    together(&["sslrootcert", "ssl-root-cert", "ssl-ca"]),
    together(&["sslcert", "ssl-cert"]),
    together(&["sslkey", "ssl-key"]),
    passed_on(&["options"]),
    passed_on(&["application_name"]),
    passed_on(&["keepalives"]),
    passed_on(&["keepalives_idle"]),
    passed_on(&["keepalives_interval"]),
    passed_on(&["keepalives_retries", "keepalives_count"]),
    passed_on(&["tcp_user_timeout"]),
    passed_on(&["channel_binding"]),
    passed_on(&["target_session_attrs"]),
    passed_on(&["load_balance_hosts"]),
    passed_on(&["sslnegotiation"]),
    passed_on(&["host"]),
    passed_on(&["hostaddr"]),
    passed_on(&["port"]),
    passed_on(&["user"]),
    passed_on(&["password"]),
    passed_on(&["dbname"]),
    ignored(&["statement-cache-capacity"]),
    ignored(&["client_encoding"]),
    ignored(&["fallback_application_name"]),
    ignored(&["sslcompression"]),
    ignored(&["sslsni"]),
    ignored(&["gsslib"]),
    ignored(&["krbsrvname"]),
    ignored(&["gssdelegation"]),
    ignored(&["gssencmode"]),
    ignored(&["sslcertmode"]),
];

/// Parses the URL. Errors never repeat it, because it may contain a password.
pub(super) fn parse(url: &str) -> Result<PostgresBuilder, Error> {
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(invalid("it does not begin with `postgres://` or `postgresql://`"));
    }
    check_at_signs(url)?;
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let options = Options::of(query, OPTIONS)?;
    if let Some(Value { text: mode @ ("allow" | "prefer"), .. }) = options.value_of("sslmode") {
        tracing::warn!(target: "leasehold::store", "`sslmode={mode}` does not enable TLS here; `sslmode=require` does");
    }
    let passed_on = options.passed_on().map(|Value { option, text }| {
        let text = match (option, text) {
            // Neither of them is encrypted here.
            ("sslmode", "allow") => "prefer",
            // Certificates are always verified.
            ("sslmode", "verify-ca" | "verify-full") => "require",
            ("target_session_attrs", "primary") => "read-write",
            (_, text) => text,
        };
        format!("{option}={text}")
    });
    let passed_on = passed_on.collect::<Vec<_>>().join("&");
    let config: Config = format!("{place}?{passed_on}").parse().map_err(|error| {
        // It names an option at most.
        let error: tokio_postgres::Error = error;
        let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        let why = if why.starts_with("invalid value for option") { why } else { SHAPE.to_owned() };
        invalid(why)
    })?;
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err(invalid("it names no host"));
    }
    let builder = options.set(PostgresBuilder::new(config))?;
    if builder.settings.target.config.get_ssl_mode() != SslMode::Require {
        return Ok(builder);
    }
    // The authorities that the system trusts are the default.
    let authorities = options.value_of("sslrootcert").filter(|authorities| authorities.text != "system");
    let certificates = options.certificates(authorities, ["sslcert", "sslkey"])?;
    Ok(certificates.into_iter().fold(builder, PostgresBuilder::tls))
}

const SHAPE: &str = "it is not of the form `postgres://[user[:password]@]host[:port][,host...][/database][?option=value&...]`, with \
     special characters percent-encoded";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::url_parts::documentation::assert_documented;

    #[test]
    fn every_option_is_documented() {
        assert_documented(OPTIONS, include_str!("../../../docs/stores/postgres.md"));
    }

    #[test]
    fn a_url_is_read_and_shown_without_credentials() {
        for (url, address) in [
            ("postgres://h", "postgres://h:5432"),
            ("postgresql://u:hunter2@h:6000/locks", "postgres://h:6000/locks"),
            ("postgres://u:hunter2@a:1,b:2/locks?target_session_attrs=any", "postgres://a:1,b:2/locks"),
            ("postgres://u:hunt%2Fer2@%2Frun%2Fpostgresql/locks", "postgres:///run/postgresql:5432/locks"),
            ("postgres://[::1]:6000", "postgres://[::1]:6000"),
            ("postgres://u:hunter2@h/d?schema=Locks_1", "postgres://h:5432/d?schema=Locks_1"),
            (
                "postgres:///locks?host=/run/postgresql&user=u&password=hunter2",
                "postgres:///run/postgresql:5432/locks",
            ),
        ] {
            let builder = parse(url).unwrap();
            assert_eq!(builder.settings.address, address, "{url}");
            assert!(!format!("{builder:?}").contains("hunt"), "{builder:?}");
        }
        let config = parse("postgres://u:hunt%2Fer2@h").unwrap().settings.target.config;
        assert_eq!(config.get_password(), Some("hunt/er2".as_bytes()));
        assert_eq!(config.get_application_name(), Some("leasehold"));
    }

    #[test]
    fn every_option_is_set() {
        let url = "postgres://h?connect_timeout=500ms&reply_timeout=3s&max_connections=7&create=false&application_name=x&\
                   options=-c%20search_path%3Dlocks";
        let settings = parse(url).unwrap().settings;
        assert_eq!(settings.connect_timeout, Duration::from_millis(500));
        assert_eq!(settings.reply_timeout, Duration::from_secs(3));
        assert_eq!((settings.max_connections, settings.create), (7, false));
        assert_eq!(settings.target.config.get_application_name(), Some("x"));
        assert_eq!(settings.target.config.get_options(), Some("-c search_path=locks"));
        let settings = parse("postgres://h?connect_timeout=10&create=true").unwrap().settings;
        assert_eq!((settings.connect_timeout, settings.create), (Duration::from_secs(10), true));
    }

    #[test]
    fn options_of_libpq_and_sqlx_are_understood_or_ignored() {
        for option in [
            "statement-cache-capacity=100",
            "sslmode=allow",
            "sslmode=prefer",
            "keepalives_count=3",
            "target_session_attrs=primary",
            "client_encoding=UTF8",
            "gssencmode=prefer",
            "sslcertmode=allow",
            "ssl-mode=disable",
            "sslrootcert=system&sslmode=verify-full",
            // Read only if they are of use.
            "ssl-root-cert=/nowhere&sslcert=/nowhere",
        ] {
            let _builder = parse(&format!("postgres://h?{option}")).unwrap();
        }
    }

    #[test]
    fn files_with_certificates_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a pem");
        std::fs::write(&path, "x").unwrap();
        let path = path.display().to_string().replace(' ', "%20");
        for (ca, certificate, key) in [
            ("sslrootcert", "sslcert", "sslkey"),
            ("ssl-root-cert", "ssl-cert", "ssl-key"),
            ("ssl-ca", "sslcert", "ssl-key"),
        ] {
            let url =
                format!("postgres://h?ssl-mode=verify-full&{ca}={path}&{certificate}={path}&{key}={path}");
            let tls = parse(&url).unwrap().settings.tls_options.unwrap();
            assert_eq!((tls.authorities.len(), tls.client.is_some()), (1, true), "{url}");
        }
        for (options, reason) in [
            ("sslrootcert=/nowhere".to_owned(), "the file of option `sslrootcert` cannot be read"),
            (format!("sslcert={path}"), "only of use together"),
        ] {
            let error = parse(&format!("postgres://h?sslmode=require&{options}")).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn bad_urls_are_refused_without_repeating_a_password() {
        for (url, reason) in [
            ("postgres:", "does not begin with"),
            ("postgres://", "names no host"),
            ("postgres://u:hunter2@", "names no host"),
            ("postgres://u:hunter2@h:port", "invalid value for option `port`"),
            ("postgres://u:hunt?er2@h", "percent-encode"),
            ("postgres://u:hunt@er2@h/d", "percent-encode"),
            ("postgres://u:hunt/er2@h/d", "percent-encode"),
            ("postgres://u:hunter2@h?color=red", "unknown option `color`; the known ones are"),
            ("postgres://h?reply_timeout=5", "such as `50ms`"),
            ("postgres://h?create=1", "neither `true` nor `false`"),
            ("postgres://h?max_connections=x", "not a number"),
            ("postgres://h?sslmode=hunter2", "invalid value for option `sslmode`"),
            ("postgres://u:%ff@h?sslmode=%ff", "is not of the form"),
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
            "postgres://h?connect_timeout=0ms",
            "postgres://h?reply_timeout=3601s",
            "postgres://h?max_connections=1",
            "postgres://h?schema=",
            "postgres://h?schema=a%22b",
            "postgres://h?schema=1a",
        ] {
            let error = parse(url).unwrap().connect_lazy().unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { .. }), "{url}: {error:?}");
        }
    }
}
