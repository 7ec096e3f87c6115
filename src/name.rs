//! Names of the things that are locked, and the store keys they become.

use std::fmt;
use std::sync::Arc;

use crate::error::Error;

/// The longest name that is accepted, in bytes.
pub const MAX_NAME_BYTES: usize = 512;

/// How the keys beside a lock's own end. They start with `{`, so that only a prefix that is empty or starts so
/// too could make a lock of the same key.
const RESERVED: [&str; 3] = [":queue", ":waiters", ":fence"];

/// A validated name together with the store key it becomes: prefix, then name, nothing in between.
///
/// Two different names never share a key under one prefix, because the name is taken as it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    key: Arc<str>,
    prefix_len: usize,
}

impl Name {
    /// Checks `name` and joins it to `prefix`.
    pub(crate) fn new(prefix: &str, name: &str) -> Result<Self, Error> {
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
            return Err(Error::invalid(
                "name",
                format!("`{key}` is kept for what stands beside another lock"),
            ));
        }
        Ok(Self { key: key.into(), prefix_len: prefix.len() })
    }

    /// The name as the user gave it.
    pub(crate) fn as_str(&self) -> &str {
        &self.key[self.prefix_len..]
    }

    /// The key in the store: prefix and name.
    pub(crate) fn key(&self) -> &Arc<str> {
        &self.key
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

    #[test]
    fn a_name_keeps_its_text_and_gains_its_prefix() {
        let name = Name::new("lock:", "machine:42").unwrap();
        assert_eq!(name.as_str(), "machine:42");
        assert_eq!(&**name.key(), "lock:machine:42");
        assert_eq!(&**Name::new("", "x").unwrap().key(), "x");
    }

    #[test]
    fn a_key_beside_another_lock_is_refused() {
        assert!(Name::new("", "{lock:a}:queue").is_err());
        assert!(Name::new("{", "t}:fence").is_err());
        assert!(Name::new("lock:", "{lock:a}:queue").is_ok());
        assert!(Name::new("", "{t}a").is_ok());
    }

    #[test]
    fn empty_and_oversized_names_are_refused() {
        assert!(Name::new("lock:", "").is_err());
        assert!(Name::new("lock:", &"n".repeat(MAX_NAME_BYTES)).is_ok());
        let error = Name::new("lock:", &"n".repeat(MAX_NAME_BYTES + 1)).unwrap_err();
        assert!(error.to_string().contains("513 bytes"), "{error}");
        // The limit counts bytes, as the store does, not characters.
        assert!(Name::new("lock:", &"é".repeat(257)).is_err());
        assert!(Name::new(&"p".repeat(MAX_NAME_BYTES + 1), "x").is_err());
    }
}
