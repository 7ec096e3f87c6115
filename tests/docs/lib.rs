//! The README and the guide, whose examples in Rust are tests.
#![cfg(doctest)]

macro_rules! examples {
    ($($page:ident = $path:literal),* $(,)?) => {
        $(
            #[doc = include_str!(concat!("../../", $path))]
            struct $page;
        )*
    };
}

examples! {
    Readme = "README.md",
    Blocking = "docs/guide/blocking.md",
    Election = "docs/guide/election.md",
    Fencing = "docs/guide/fencing.md",
    Limits = "docs/guide/limits.md",
    Locks = "docs/guide/locks.md",
    Migrating = "docs/guide/migrating.md",
    Observability = "docs/guide/observability.md",
    Options = "docs/guide/options.md",
    Operating = "docs/guide/operating.md",
    OwnStore = "docs/guide/own_store.md",
    Redis = "docs/stores/redis.md",
    Redlock = "docs/stores/redlock.md",
    Service = "docs/guide/service.md",
    Shutdown = "docs/guide/shutdown.md",
    Testing = "docs/guide/testing.md",
    Ttl = "docs/guide/ttl.md",
}
