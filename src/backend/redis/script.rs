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

/// A script made of parts, in this order.
macro_rules! script {
    ($($part:literal),+) => {
        LazyLock::new(|| Script::new(concat!($(include_str!(concat!("lua/", $part))),+)))
    };
}

/// The scripts for locks. Those that end in `_OWNED` are for holds that have an owner.
pub(super) mod lock {
    use super::{LazyLock, Script};

    pub(crate) static ACQUIRE: LazyLock<Script> =
        script!("lock/acquire_free.lua", "line.lua", "lock/lock.lua", "lock/acquire.lua");
    pub(crate) static ACQUIRE_OWNED: LazyLock<Script> =
        script!("line.lua", "lock/lock.lua", "lock/holds.lua", "lock/enter.lua", "lock/acquire.lua");
    pub(crate) static RENEW: LazyLock<Script> = script!("lock/renew.lua");
    pub(crate) static RENEW_OWNED: LazyLock<Script> =
        script!("line.lua", "lock/holds.lua", "lock/renew_hold.lua");
    pub(crate) static RELEASE: LazyLock<Script> =
        script!("lock/release_alone.lua", "line.lua", "lock/lock.lua", "lock/release.lua");
    pub(crate) static RELEASE_OWNED: LazyLock<Script> =
        script!("line.lua", "lock/lock.lua", "lock/holds.lua", "lock/leave.lua", "lock/release.lua");
    pub(crate) static FORCE: LazyLock<Script> =
        script!("line.lua", "lock/lock.lua", "lock/holds.lua", "lock/force.lua");
    pub(crate) static INSPECT: LazyLock<Script> = script!("living.lua", "lock/inspect.lua");
}

/// The scripts for semaphores.
pub(super) mod semaphore {
    use super::{LazyLock, Script};

    pub(crate) static ACQUIRE: LazyLock<Script> =
        script!("line.lua", "semaphore/semaphore.lua", "semaphore/acquire.lua");
    pub(crate) static RENEW: LazyLock<Script> =
        script!("line.lua", "semaphore/semaphore.lua", "semaphore/renew.lua");
    pub(crate) static RELEASE: LazyLock<Script> =
        script!("line.lua", "semaphore/semaphore.lua", "semaphore/release.lua");
    pub(crate) static RESIZE: LazyLock<Script> =
        script!("line.lua", "semaphore/semaphore.lua", "semaphore/resize.lua");
    pub(crate) static INSPECT: LazyLock<Script> = script!("living.lua", "semaphore/inspect.lua");
}
