//! Names of locks and semaphores, and the store keys derived from them.

use crate::backend::{Kind, Resource};
use crate::error::Error;

/// The maximum length of a name, in bytes.
pub const MAX_NAME_BYTES: usize = 512;

/// The suffixes of the other keys of a lock. Those keys start with `{`, so they could be the key of another lock only
/// if its prefix is empty or starts with `{`. Those of labels are not the keys of a lock, but look the same.
const RESERVED: [&str; 8] =
    [":queue", ":waiters", ":state", ":holds", ":fence", ":revoked", ":note", ":client"];

/// Whether this key could be one of the other keys of a lock, so that it is the key of none.
pub(crate) fn is_reserved(key: &str) -> bool {
    key.starts_with('{') && RESERVED.iter().any(|suffix| key.ends_with(suffix))
}

/// The resource called `name`. Its key is the prefix followed directly by the name: under one prefix, two different
/// names never share a key.
pub(crate) fn resource(prefix: &str, name: &str, kind: Kind) -> Result<Resource, Error> {
    if name.is_empty() {
        return Err(Error::invalid("name", "it is empty"));
    }
    for (what, text) in [("name", name), ("prefix", prefix)] {
        let bytes = text.len();
        if bytes > MAX_NAME_BYTES {
            return Err(Error::invalid(
                what,
                format!("it has {bytes} bytes, more than the limit of {MAX_NAME_BYTES}"),
            ));
        }
    }
    let resource = Resource::named(prefix, name, kind);
    let key = &*resource.key;
    if is_reserved(key) {
        return Err(Error::invalid("name", format!("`{key}` is reserved for the data of another lock")));
    }
    Ok(resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(prefix: &str, name: &str) -> Result<Resource, Error> {
        resource(prefix, name, Kind::Mutex)
    }

    #[test]
    fn a_name_keeps_its_text_and_gains_its_prefix() {
        let name = named("lock:", "machine:42").unwrap();
        assert_eq!(name.name(), "machine:42");
        assert_eq!(&*name.key, "lock:machine:42");
        assert_eq!(&*named("", "x").unwrap().key, "x");
    }

    #[test]
    fn a_reserved_key_is_refused() {
        assert!(named("", "{lock:a}:queue").is_err());
        assert!(named("{", "t}:fence").is_err());
        assert!(named("", "{leasehold}:0:client").is_err());
        assert!(named("", "{lock:a}:revoked").is_err());
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
