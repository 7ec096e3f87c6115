//! What the URLs of several stores have in common: percent-encoding, and `?option=value&...`.

#![cfg_attr(not(feature = "all-stores"), allow(dead_code, reason = "each store uses a part of it"))]

use std::time::Duration;

#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::backend::tls::TlsOptions;
use crate::error::Error;

pub(super) fn invalid(reason: impl Into<String>) -> Error {
    Error::invalid("url", reason)
}

#[cfg(any(feature = "_redis", feature = "etcd", feature = "sqlite", feature = "zookeeper"))]
pub(super) fn decode(text: &str) -> Result<String, Error> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
    decoded.map(String::from).map_err(|_| invalid("a percent-encoded part of it is not UTF-8"))
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

/// Refuses a URL with an `@` that is not encoded: a part of a password would be taken for a host, a path or an option,
/// and be shown.
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

/// An option in the URLs of a store. Each store has one table of them: URLs are parsed by it, the error for an unknown
/// option names those that are in it, and a test compares it with the documentation.
pub(super) struct UrlOption<B: 'static> {
    /// How it is written, and then other names of it.
    names: &'static [&'static str],
    meaning: Meaning<B>,
}

enum Meaning<B> {
    /// It sets something.
    Set(fn(B, Value<'_>) -> Result<B, Error>),
    /// It means something together with others: see [`Options::value_of`].
    Together,
    /// It is one of the library that connects to the server: see [`Options::passed_on`].
    PassedOn,
    /// It means something to other libraries only, and is ignored, because people paste the URL that they have.
    Ignored,
}

pub(super) const fn set<B>(
    names: &'static [&'static str],
    set: fn(B, Value<'_>) -> Result<B, Error>,
) -> UrlOption<B> {
    UrlOption { names, meaning: Meaning::Set(set) }
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) const fn together<B>(names: &'static [&'static str]) -> UrlOption<B> {
    UrlOption { names, meaning: Meaning::Together }
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) const fn passed_on<B>(names: &'static [&'static str]) -> UrlOption<B> {
    UrlOption { names, meaning: Meaning::PassedOn }
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) const fn ignored<B>(names: &'static [&'static str]) -> UrlOption<B> {
    UrlOption { names, meaning: Meaning::Ignored }
}

/// The value of an option.
#[derive(Clone, Copy)]
pub(super) struct Value<'a> {
    pub(super) option: &'static str,
    pub(super) text: &'a str,
}

/// The options of one URL, in their order.
pub(super) struct Options<'a, B: 'static>(Vec<(&'static Meaning<B>, Value<'a>)>);

impl<'a, B> Options<'a, B> {
    /// Those in `option=value&...`. Refuses what is not in the table.
    pub(super) fn of(query: &'a str, known: &'static [UrlOption<B>]) -> Result<Self, Error> {
        let options = query.split('&').filter(|option| !option.is_empty());
        let options = options.map(|option| {
            let (name, text) = option.split_once('=').unwrap_or((option, ""));
            let found = known.iter().find(|option| option.names.contains(&name));
            let UrlOption { names, meaning } = found.ok_or_else(|| unknown_option(name, known))?;
            Ok((meaning, Value { option: names[0], text }))
        });
        options.collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn set(&self, builder: B) -> Result<B, Error> {
        self.0.iter().try_fold(builder, |builder, (meaning, value)| match meaning {
            Meaning::Set(set) => set(builder, *value),
            Meaning::Together | Meaning::PassedOn | Meaning::Ignored => Ok(builder),
        })
    }

    pub(super) fn passed_on(&self) -> impl Iterator<Item = Value<'a>> {
        self.0.iter().filter(|(meaning, _)| matches!(meaning, Meaning::PassedOn)).map(|(_, value)| *value)
    }

    /// The last of those with this name.
    pub(super) fn value_of(&self, option: &str) -> Option<Value<'a>> {
        self.0.iter().rev().map(|(_, value)| *value).find(|value| value.option == option)
    }

    /// What is in the files with authorities, and with the client's certificate and its key, if any is named.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(super) fn certificates(
        &self,
        authorities: Option<Value<'_>>,
        [certificate, key]: [&str; 2],
    ) -> Result<Option<TlsOptions>, Error> {
        let mut tls = authorities
            .map(|file| file.content())
            .transpose()?
            .map(|authorities| TlsOptions::new().ca_certificate_pem(authorities));
        match (self.value_of(certificate), self.value_of(key)) {
            (Some(certificate), Some(key)) => {
                let (certificate, key) = (certificate.content()?, key.content()?);
                tls = Some(tls.unwrap_or_default().client_certificate_pem(certificate, key));
            }
            (None, None) => {}
            _ => return Err(invalid(format!("`{certificate}` and `{key}` are only of use together"))),
        }
        Ok(tls)
    }
}

impl Value<'_> {
    /// Whole milliseconds or seconds, with their unit.
    pub(super) fn duration(self) -> Result<Duration, Error> {
        let duration = match self.text.strip_suffix("ms") {
            Some(millis) => millis.parse().ok().map(Duration::from_millis),
            None => self.text.strip_suffix('s').and_then(|secs| secs.parse().ok()).map(Duration::from_secs),
        };
        duration.ok_or_else(|| invalid(format!("`{}` is not a time such as `50ms` or `2s`", self.option)))
    }

    pub(super) fn number(self) -> Result<usize, Error> {
        self.text.parse().map_err(|_| invalid(format!("`{}` is not a number", self.option)))
    }

    pub(super) fn boolean(self) -> Result<bool, Error> {
        self.either([("true", true), ("false", false)])
    }

    /// What one of two texts means.
    pub(super) fn either<T>(self, [first, second]: [(&str, T); 2]) -> Result<T, Error> {
        let why = format!("`{}` is neither `{}` nor `{}`", self.option, first.0, second.0);
        [first, second]
            .into_iter()
            .find(|(text, _)| *text == self.text)
            .map(|(_, meaning)| meaning)
            .ok_or_else(|| invalid(why))
    }

    /// What is in the file that it names.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    fn content(self) -> Result<Vec<u8>, Error> {
        let unreadable =
            |why: String| invalid(format!("the file of option `{}` cannot be read: {why}", self.option));
        let path = decode_name(self.text);
        let path = path.ok_or_else(|| unreadable("its name is not encoded correctly".to_owned()))?;
        std::fs::read(path).map_err(|error| unreadable(error.to_string()))
    }
}

/// The error for an option that is not one of those `known`. What looks like an option and is none may be a part of a
/// password.
fn unknown_option<B>(name: &str, known: &[UrlOption<B>]) -> Error {
    let is_word = name.len() <= 30 && name.chars().all(|c| c.is_ascii_alphabetic() || "-_".contains(c));
    let named = if is_word { format!("unknown option `{name}`") } else { "unknown option".to_owned() };
    if known.is_empty() {
        return invalid(format!("{named}; a URL of this scheme has no options"));
    }
    let known = known.iter().filter(|option| !matches!(option.meaning, Meaning::Ignored));
    let known: Vec<_> = known.map(|option| format!("`{}`", option.names[0])).collect();
    invalid(format!("{named}; the known ones are {}", known.join(", ")))
}

#[cfg(test)]
pub(super) mod documentation {
    use super::{Meaning, UrlOption};

    /// Compares the table of a store with the one on the page about it, and checks that the page names all that is
    /// ignored, and all other names.
    pub(in crate::backend) fn assert_documented<B>(known: &[UrlOption<B>], page: &str) {
        let rows = page.lines().skip_while(|line| !line.starts_with("| option |")).skip(2);
        let rows = rows.take_while(|line| line.starts_with('|'));
        let mut documented: Vec<_> = rows.flat_map(documented_in).collect();
        let is_used = |option: &&UrlOption<B>| !matches!(option.meaning, Meaning::Ignored);
        let mut names: Vec<_> = known.iter().filter(is_used).map(|option| option.names[0]).collect();
        documented.sort_unstable();
        names.sort_unstable();
        assert_eq!(names, documented, "the options of the URL, and those in its documentation");
        for name in known.iter().flat_map(|option| option.names) {
            let is_named = [format!("`{name}`"), format!("`{name}=")].iter().any(|name| page.contains(name));
            assert!(is_named, "`{name}` is not in the documentation");
        }
    }

    /// The options in the first cell of a row: `name=value`, `other value`, or only names.
    fn documented_in(row: &str) -> Vec<&str> {
        let cell = row.split('|').nth(1).unwrap_or_default();
        let texts: Vec<_> = cell.split('`').skip(1).step_by(2).filter(|text| !text.contains("://")).collect();
        let named: Vec<_> =
            texts.iter().filter_map(|text| text.split_once('=')).map(|(name, _)| name).collect();
        if named.is_empty() { texts } else { named }
    }
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

    const NONE: &[UrlOption<()>] = &[];
    const TWO: &[UrlOption<()>] = &[set(&["a"], |(), _| Ok(())), set(&["b", "c"], |(), _| Ok(()))];

    #[test]
    fn an_unknown_option_is_named_if_it_can_be_one() {
        for (query, known, said) in [
            ("color", TWO, "unknown option `color`; the known ones are `a`, `b`"),
            ("c=1&statement-cache-capacity=1", TWO, "unknown option `statement-cache-capacity`;"),
            ("useSSL=1", NONE, "unknown option `useSSL`; a URL of this scheme has no options"),
            ("hunt er2", TWO, "unknown option; the known ones are `a`"),
        ] {
            let error = Options::of(query, known).map(drop).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
