//! `sqlite:PATH[?option=value&...]`

use super::{SqliteBuilder, Synchronous};
use crate::backend::url_parts::{Options, UrlOption, decode, invalid, set};
use crate::error::Error;

const OPTIONS: &[UrlOption<SqliteBuilder>] = &[
    set(&["synchronous"], |builder, value| {
        let modes = [("normal", Synchronous::Normal), ("full", Synchronous::Full)];
        Ok(builder.synchronous(value.either(modes)?))
    }),
    set(&["busy_timeout"], |builder, value| Ok(builder.busy_timeout(value.duration()?))),
    set(&["poll_interval"], |builder, value| Ok(builder.poll_interval(value.duration()?))),
    set(&["create"], |builder, value| Ok(builder.create(value.boolean()?))),
];

pub(super) fn parse(url: &str) -> Result<SqliteBuilder, Error> {
    let Some(rest) = url.strip_prefix("sqlite:") else {
        return Err(invalid("it does not begin with `sqlite:`"));
    };
    if rest.contains('#') {
        return Err(invalid("it has a `#`: percent-encode it as `%23` if it belongs to the path"));
    }
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let builder = SqliteBuilder::new(path_of(path)?.into());
    Options::of(query, OPTIONS)?.set(builder)
}

fn path_of(text: &str) -> Result<String, Error> {
    let text = match text.strip_prefix("//") {
        // A common way to write an absolute path.
        Some(path) if path.starts_with('/') => path,
        Some(_) => {
            let reason =
                "a host follows `sqlite://`: write `sqlite:PATH`, or `sqlite:///PATH` for an absolute path";
            return Err(invalid(reason));
        }
        None => text,
    };
    if text.is_empty() {
        return Err(invalid("it names no file: `sqlite:PATH`"));
    }
    if text == ":memory:" {
        return Err(invalid("the URL of the store in memory is `memory:`"));
    }
    let path = decode(text)?;
    if path.contains('\0') {
        return Err(invalid("a path cannot contain a zero byte"));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::backend::url_parts::documentation::assert_documented;

    #[test]
    fn every_option_is_documented() {
        assert_documented(OPTIONS, include_str!("../../../docs/stores/sqlite.md"));
    }

    #[test]
    fn paths_are_decoded_and_absolute() {
        for (url, path) in [
            ("sqlite:/run/a%20b%3Fc%25.db", "/run/a b?c%.db"),
            ("sqlite:///run/locks.db", "/run/locks.db"),
            ("sqlite:/run/:memory:", "/run/:memory:"),
        ] {
            assert_eq!(parse(url).unwrap().settings.path, Path::new(path), "{url}");
        }
        let relative = parse("sqlite:x/locks.db").unwrap().settings.path;
        assert_eq!(relative, std::env::current_dir().unwrap().join("x/locks.db"));
    }

    #[test]
    fn every_option_is_set() {
        let url = "sqlite:/x?synchronous=full&busy_timeout=20ms&poll_interval=3s&create=false";
        let settings = parse(url).unwrap().settings;
        assert_eq!(settings.synchronous, Synchronous::Full);
        assert_eq!(settings.busy_timeout, Duration::from_millis(20));
        assert_eq!(settings.poll_interval, Duration::from_secs(3));
        assert!(!settings.create);
        let settings = parse("sqlite:/x?synchronous=normal&create=true").unwrap().settings;
        assert!(settings.synchronous == Synchronous::Normal && settings.create);
    }

    #[test]
    fn bad_urls_are_refused() {
        for (url, reason) in [
            ("sqlite", "does not begin"),
            ("sqlite:", "names no file"),
            ("sqlite://", "a host follows"),
            ("sqlite://locks.db", "a host follows"),
            ("sqlite::memory:", "`memory:`"),
            ("sqlite:/a#b", "`%23`"),
            ("sqlite:/a%ff", "not UTF-8"),
            ("sqlite:/a%00", "zero byte"),
            ("sqlite:/a?mode=ro", "unknown option `mode`; the known ones are `synchronous`"),
            ("sqlite:/a?synchronous=off", "neither `normal` nor `full`"),
            ("sqlite:/a?busy_timeout=5", "such as `50ms`"),
            ("sqlite:/a?create=1", "neither `true` nor `false`"),
        ] {
            let error = parse(url).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { argument: "url", .. }), "{url}: {error:?}");
            assert!(error.to_string().contains(reason), "{url}: {error}");
        }
    }

    #[test]
    fn settings_out_of_bounds_are_refused() {
        for url in ["sqlite:/x?busy_timeout=0ms", "sqlite:/x?poll_interval=61s"] {
            let error = parse(url).unwrap().connect_lazy().unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { .. }), "{url}: {error:?}");
        }
    }
}
