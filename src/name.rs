//! Names of locks and semaphores, and the store keys derived from them.

use std::fmt;
use std::sync::Arc;

use crate::backend::{Kind, Resource};
use crate::error::Error;

/// The maximum length of a name, in bytes.
pub const MAX_NAME_BYTES: usize = 512;

/// The ends of the other keys of a lock. Those keys start with `{`, so only with a prefix that is empty or starts with `{`
/// could they be the key of another lock.
const RESERVED: [&str; 5] = [":queue", ":waiters", ":state", ":holds", ":fence"];

/// A validated name together with the resource it names. The key is the prefix, then the name, nothing in between.
///
/// Two different names never share a key under one prefix, because the name is taken as it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    resource: Resource,
}

impl Name {
    /// Checks `name` and joins it to `prefix`.
    pub(crate) fn new(prefix: &str, name: &str, kind: Kind) -> Result<Self, Error> {
        if name.is_empty() {
            return Err(Error::invalid("name", "it is empty"));
        }
        if name.len() > MAX_NAME_BYTES {
            return Err(Error::invalid(
                "name",
                format!("it has {} bytes, the limit is {MAX_NAME_BYTES}", name.len()),
            ));
        }
        if prefix.len() > MAX_NAME_BYTES {
            return Err(Error::invalid(
                "prefix",
                format!("it has {} bytes, the limit is {MAX_NAME_BYTES}", prefix.len()),
            ));
        }
        let key = format!("{prefix}{name}");
        if key.starts_with('{') && RESERVED.iter().any(|suffix| key.ends_with(suffix)) {
            return Err(Error::invalid("name", format!("`{key}` is reserved for the data of another lock")));
        }
        Ok(Self { resource: Resource::named(prefix, name, kind) })
    }

    /// The name as the user gave it.
    pub(crate) fn as_str(&self) -> &str {
        self.resource.name()
    }

    /// The resource that is named.
    pub(crate) const fn resource(&self) -> &Resource {
        &self.resource
    }

    /// The key in the store: prefix and name.
    pub(crate) const fn key(&self) -> &Arc<str> {
        &self.resource.key
    }

    /// The rules by which it is held.
    pub(crate) const fn kind(&self) -> Kind {
        self.resource.kind
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(prefix: &str, name: &str) -> Result<Name, Error> {
        Name::new(prefix, name, Kind::Mutex)
    }

    #[test]
    fn a_name_keeps_its_text_and_gains_its_prefix() {
        let name = named("lock:", "machine:42").unwrap();
        assert_eq!(name.as_str(), "machine:42");
        assert_eq!(&**name.key(), "lock:machine:42");
        assert_eq!(&**named("", "x").unwrap().key(), "x");
    }

    #[test]
    fn a_key_beside_another_lock_is_refused() {
        assert!(named("", "{lock:a}:queue").is_err());
        assert!(named("{", "t}:fence").is_err());
        assert!(named("lock:", "{lock:a}:queue").is_ok());
        assert!(named("", "{t}a").is_ok());
    }

    #[test]
    fn empty_and_oversized_names_are_refused() {
        assert!(named("lock:", "").is_err());
        assert!(named("lock:", &"n".repeat(MAX_NAME_BYTES)).is_ok());
        let error = named("lock:", &"n".repeat(MAX_NAME_BYTES + 1)).unwrap_err();
        assert!(error.to_string().contains("513 bytes"), "{error}");
        // The limit counts bytes, as the store does, not characters.
        assert!(named("lock:", &"é".repeat(257)).is_err());
        assert!(named(&"p".repeat(MAX_NAME_BYTES + 1), "x").is_err());
    }
}
