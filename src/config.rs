//! Options and the client's builder as configuration files have them: the same names as in the code, and times with a
//! unit, as in URLs.

use std::fmt;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::backend::Kind;
use crate::client::{Client, ClientBuilder};
use crate::error::Error;
use crate::options::{HoldOptions, MutexOptions, OnOtherLimit, SemaphoreOptions};

/// The fields of [`MutexOptions`].
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "the options of locks")]
pub(crate) struct MutexFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    renewal_period: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_hold: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    local_handover: Option<bool>,
}

/// The fields of [`SemaphoreOptions`].
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "the options of semaphores")]
pub(crate) struct SemaphoreFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    renewal_period: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_hold: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    local_handover: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_other_limit: Option<OnOtherLimit>,
}

/// The fields of [`ClientBuilder`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientFields {
    url: String,
    label: Option<String>,
    #[serde(default)]
    fail_fast: bool,
    #[serde(default)]
    mutex: MutexOptions,
    #[serde(default)]
    semaphore: SemaphoreOptions,
}

/// A time, before it is known whether it is one: the error shall name its field.
#[derive(Deserialize, Serialize)]
#[serde(untagged, expecting = "expected a time such as `500ms` or `30s`")]
enum Time {
    Text(String),
    Number(f64),
}

impl Time {
    fn of(duration: Duration) -> Self {
        Self::Text(humantime::format_duration(duration).to_string())
    }

    fn duration(self, field: &'static str) -> Result<Duration, Error> {
        match self {
            Self::Text(text) => humantime::parse_duration(&text).map_err(|why| {
                Error::invalid(field, format!("`{text}` is not a time such as `500ms` or `30s`: {why}"))
            }),
            Self::Number(number) => Err(Error::invalid(
                field,
                format!("{number} has no unit: write a time such as `500ms` or `30s`"),
            )),
        }
    }
}

impl HoldOptions {
    fn read(
        [ttl, renewal_period, max_hold]: [Option<Time>; 3],
        prefix: Option<String>,
    ) -> Result<Self, Error> {
        let default = Self::default();
        let duration = |time: Option<Time>, field| time.map(|time| time.duration(field)).transpose();
        Ok(Self {
            ttl: duration(ttl, "ttl")?.unwrap_or(default.ttl),
            renewal_period: duration(renewal_period, "renewal_period")?,
            max_hold: duration(max_hold, "max_hold")?,
            prefix,
        })
    }
}

/// The name that a configuration file has for what is out of bounds.
fn by_field(error: Error) -> Error {
    match error {
        Error::InvalidArgument { argument: "renewal period", reason } => {
            Error::invalid("renewal_period", reason)
        }
        Error::InvalidArgument { argument: "maximum hold time", reason } => {
            Error::invalid("max_hold", reason)
        }
        other => other,
    }
}

impl TryFrom<MutexFields> for MutexOptions {
    type Error = Error;

    fn try_from(fields: MutexFields) -> Result<Self, Error> {
        let MutexFields { ttl, renewal_period, max_hold, prefix, local_handover } = fields;
        let hold = HoldOptions::read([ttl, renewal_period, max_hold], prefix)?;
        let options = Self { hold, local_handover: local_handover.unwrap_or(Self::default().local_handover) };
        options.validate().map_err(by_field)?;
        Ok(options)
    }
}

impl From<MutexOptions> for MutexFields {
    fn from(options: MutexOptions) -> Self {
        let MutexOptions { hold, local_handover } = options;
        Self {
            ttl: Some(Time::of(hold.ttl)),
            renewal_period: hold.renewal_period.map(Time::of),
            max_hold: hold.max_hold.map(Time::of),
            prefix: hold.prefix,
            local_handover: Some(local_handover),
        }
    }
}

impl TryFrom<SemaphoreFields> for SemaphoreOptions {
    type Error = Error;

    fn try_from(fields: SemaphoreFields) -> Result<Self, Error> {
        let SemaphoreFields { ttl, renewal_period, max_hold, prefix, local_handover, on_other_limit } =
            fields;
        let options = Self {
            hold: HoldOptions::read([ttl, renewal_period, max_hold], prefix)?,
            local_handover: local_handover.unwrap_or_default(),
            on_other_limit: on_other_limit.unwrap_or_default(),
        };
        // A fair semaphore refuses one of the options, and it is not known yet which kind they are for.
        options.validate(Kind::Counting).map_err(by_field)?;
        Ok(options)
    }
}

impl From<SemaphoreOptions> for SemaphoreFields {
    fn from(options: SemaphoreOptions) -> Self {
        let SemaphoreOptions { hold, local_handover, on_other_limit } = options;
        Self {
            ttl: Some(Time::of(hold.ttl)),
            renewal_period: hold.renewal_period.map(Time::of),
            max_hold: hold.max_hold.map(Time::of),
            prefix: hold.prefix,
            local_handover: Some(local_handover),
            on_other_limit: Some(on_other_limit),
        }
    }
}

impl From<ClientFields> for ClientBuilder {
    fn from(fields: ClientFields) -> Self {
        let ClientFields { url, label, fail_fast, mutex, semaphore } = fields;
        let builder = Client::builder(url);
        let builder = if let Some(label) = label { builder.label(label) } else { builder };
        builder.fail_fast(fail_fast).mutex_options(mutex).semaphore_options(semaphore)
    }
}

#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl<'de> Deserialize<'de> for ClientBuilder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UrlOrFields)
    }
}

/// A URL in place of the fields is one with default options. Refusing it would also repeat it, with its password.
struct UrlOrFields;

impl<'de> Visitor<'de> for UrlOrFields {
    type Value = ClientBuilder;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the options of a client, or a URL")
    }

    fn visit_str<E>(self, url: &str) -> Result<ClientBuilder, E> {
        Ok(Client::builder(url))
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<ClientBuilder, A::Error> {
        ClientFields::deserialize(MapAccessDeserializer::new(fields)).map(Into::into)
    }
}
