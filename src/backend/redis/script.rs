//! The scripts, each with the digest by which the server remembers it.

use std::sync::LazyLock;

use fred::bytes_utils::Str;
use fred::util::sha1_hash;

/// A Lua script.
#[derive(Debug)]
pub(super) struct Script {
    source: Str,
    hash: Str,
}

impl Script {
    fn new(source: &'static str) -> Self {
        Self { source: Str::from_static(source), hash: sha1_hash(source).into() }
    }

    pub(super) const fn source(&self) -> &Str {
        &self.source
    }

    pub(super) const fn hash(&self) -> &Str {
        &self.hash
    }
}

/// An operation on the line of a lock: its short way, the steps shared, and its long way.
macro_rules! on_line {
    ($short:literal, $long:literal) => {
        LazyLock::new(|| {
            Script::new(concat!(include_str!($short), include_str!("lua/lock.lua"), include_str!($long)))
        })
    };
}

pub(super) static ACQUIRE: LazyLock<Script> = on_line!("lua/acquire_free.lua", "lua/acquire.lua");
pub(super) static RELEASE: LazyLock<Script> = on_line!("lua/release_alone.lua", "lua/release.lua");
pub(super) static RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/renew.lua")));
pub(super) static INSPECT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/inspect.lua")));
