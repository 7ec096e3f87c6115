//! `postgres://[user[:password]@]host[:port][,host...][/database][?option=value&...]`, as `tokio_postgres` takes it, with more options.

use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use super::PostgresBuilder;
use crate::backend::tls::TlsOptions;
use crate::backend::url_parts::{
    boolean, check_at_signs, duration, file, invalid, number, options, unknown_option,
};
use crate::error::Error;

/// Those of this crate, and those of `tokio_postgres` that make sense here.
const OPTIONS: &[&str] = &[
    "connect_timeout",
    "reply_timeout",
    "max_connections",
    "create",
    "schema",
    "sslmode",
    "options",
    "application_name",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "keepalives_count",
    "tcp_user_timeout",
    "channel_binding",
    "target_session_attrs",
    "load_balance_hosts",
    "sslnegotiation",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "host",
    "hostaddr",
    "port",
    "user",
    "password",
    "dbname",
];

/// Options of libpq and sqlx that mean nothing here: they are ignored, because people paste the URL that they have.
const IGNORED: &[&str] = &[
    "statement-cache-capacity",
    "client_encoding",
    "fallback_application_name",
    "sslcompression",
    "sslsni",
    "gsslib",
    "krbsrvname",
    "gssdelegation",
    "gssencmode",
    "sslcertmode",
];

/// Parses the URL. Errors never repeat it, because it may contain a password.
pub(super) fn parse(url: &str) -> Result<PostgresBuilder, Error> {
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(invalid("it does not begin with `postgres://` or `postgresql://`"));
    }
    check_at_signs(url)?;
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let (ours, theirs): (Vec<_>, Vec<_>) = options(query)
        .map(|(name, value)| (usual_name(name), value))
        .filter(|(name, _)| !IGNORED.contains(name))
        .partition(|(name, _)| is_ours(name));
    if let Some((name, _)) = theirs.iter().find(|(name, _)| !OPTIONS.contains(name)) {
        return Err(unknown_option(name, OPTIONS));
    }
    // Certificates are always verified.
    let verified = |value| if matches!(value, "verify-ca" | "verify-full") { "require" } else { value };
    if let Some(mode @ ("allow" | "prefer")) = value_of(&theirs, "sslmode") {
        tracing::warn!("`sslmode={mode}` does not enable TLS here; `sslmode=require` does");
    }
    let theirs = theirs.iter().map(|&(name, value)| match name {
        // Neither of them is encrypted here.
        "sslmode" if value == "allow" => "sslmode=prefer".to_owned(),
        "keepalives_count" => format!("keepalives_retries={value}"),
        "target_session_attrs" if value == "primary" => format!("{name}=read-write"),
        "sslmode" => format!("{name}={}", verified(value)),
        _ => format!("{name}={value}"),
    });
    let theirs: Vec<_> = theirs.collect();
    let config: Config = format!("{place}?{}", theirs.join("&")).parse().map_err(|error| {
        // It names an option at most.
        let error: tokio_postgres::Error = error;
        let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        let why = if why.starts_with("invalid value for option") { why } else { SHAPE.to_owned() };
        invalid(why)
    })?;
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err(invalid("it names no host"));
    }
    let builder = PostgresBuilder::new(config);
    let builder = ours.iter().try_fold(builder, |builder, (name, value)| set(builder, name, value))?;
    with_certificates(builder, &ours)
}

/// sqlx has other names for some of the options of libpq.
fn usual_name(name: &str) -> &str {
    match name {
        "ssl-mode" => "sslmode",
        "ssl-root-cert" | "ssl-ca" => "sslrootcert",
        "ssl-cert" => "sslcert",
        "ssl-key" => "sslkey",
        name => name,
    }
}

fn value_of<'a>(options: &[(&str, &'a str)], name: &str) -> Option<&'a str> {
    options.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

/// Reads the files that `sslrootcert`, `sslcert` and `sslkey` name, if TLS is used.
fn with_certificates(builder: PostgresBuilder, options: &[(&str, &str)]) -> Result<PostgresBuilder, Error> {
    let [authority, certificate, key] = CERTIFICATES.map(|name| value_of(options, name));
    // Those that the system trusts are the default.
    let authority = authority.filter(|authority| *authority != "system");
    let is_any = [authority, certificate, key].iter().any(Option::is_some);
    if builder.settings.target.config.get_ssl_mode() != SslMode::Require || !is_any {
        return Ok(builder);
    }
    let mut tls = TlsOptions::new();
    if let Some(authority) = authority {
        tls = tls.ca_certificate_pem(file("sslrootcert", authority)?);
    }
    match (certificate, key) {
        (Some(certificate), Some(key)) => {
            tls = tls.client_certificate_pem(file("sslcert", certificate)?, file("sslkey", key)?);
        }
        (None, None) => {}
        _ => return Err(invalid("`sslcert` and `sslkey` are only of use together")),
    }
    Ok(builder.tls(tls))
}

/// Names of files.
const CERTIFICATES: [&str; 3] = ["sslrootcert", "sslcert", "sslkey"];
const SHAPE: &str = "it is not of the form `postgres://[user[:password]@]host[:port][,host...][/database][?option=value&...]`, with \
     special characters percent-encoded";

fn is_ours(name: &str) -> bool {
    ["connect_timeout", "reply_timeout", "max_connections", "create", "schema"].contains(&name)
        || CERTIFICATES.contains(&name)
}

fn set(builder: PostgresBuilder, name: &str, value: &str) -> Result<PostgresBuilder, Error> {
    Ok(match (name, value) {
        // Whole seconds, as others write it.
        ("connect_timeout", _) if value.parse::<u32>().is_ok() => {
            builder.connect_timeout(duration(name, &format!("{value}s"))?)
        }
        ("connect_timeout", _) => builder.connect_timeout(duration(name, value)?),
        ("reply_timeout", _) => builder.reply_timeout(duration(name, value)?),
        ("max_connections", _) => builder.max_connections(number(name, value)?),
        ("sslrootcert" | "sslcert" | "sslkey", _) => builder,
        ("schema", _) => builder.schema(value),
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
