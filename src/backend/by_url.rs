//! Which store a URL names.

use std::sync::Arc;

use super::{Backend, FailFast, MemoryBackend};
use crate::error::Error;

/// The schemes of Redis, for the error that lists them.
pub(super) const REDIS_SCHEMES: &str = "`redis://`, `rediss://`, `redis+unix://`, `redis-sentinel://`, \
     `rediss-sentinel://`, `redis-cluster://`, `rediss-cluster://`, and the same with `valkey` instead of `redis`";

/// A kind of store, whether or not this build has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Etcd,
    Memory,
    Mysql,
    Postgres,
    Redis,
    Redlock,
    Sqlite,
    Zookeeper,
}

/// Connects to the store that `url` names. Its connections are named after the client with this label, where the store
/// has names for them.
#[cfg_attr(
    not(any(feature = "mysql", feature = "postgres", feature = "_redis")),
    allow(unused_variables, reason = "not every store has names for connections")
)]
pub(crate) async fn connect(url: &str, label: Option<&str>) -> Result<Arc<dyn Backend>, Error> {
    match Store::of(url)? {
        #[cfg(feature = "etcd")]
        Store::Etcd => Ok(Arc::new(super::etcd::EtcdBackend::connect(url).await?)),
        Store::Memory => Ok(Arc::new(in_memory(url))),
        #[cfg(feature = "mysql")]
        Store::Mysql => {
            Ok(Arc::new(super::mysql::MysqlBackend::builder(url)?.named_after(label).connect().await?))
        }
        #[cfg(feature = "postgres")]
        Store::Postgres => {
            Ok(Arc::new(super::postgres::PostgresBackend::builder(url)?.named_after(label).connect().await?))
        }
        #[cfg(feature = "_redis")]
        Store::Redis => Ok(Arc::new(super::RedisBackend::builder(url)?.named_after(label).connect().await?)),
        #[cfg(feature = "_redis")]
        Store::Redlock => {
            Ok(Arc::new(super::RedlockBackend::builder(url)?.named_after(label).connect().await?))
        }
        #[cfg(feature = "sqlite")]
        Store::Sqlite => Ok(Arc::new(super::sqlite::SqliteBackend::connect(url).await?)),
        #[cfg(feature = "zookeeper")]
        Store::Zookeeper => Ok(Arc::new(super::zookeeper::ZookeeperBackend::connect(url).await?)),
        #[allow(unreachable_patterns, reason = "a build with all features lacks none")]
        lacking => Err(lacking.is_lacking(url)),
    }
}

/// A client of the store that `url` names, which connects when needed.
#[cfg_attr(
    not(any(feature = "mysql", feature = "postgres", feature = "_redis")),
    allow(unused_variables, reason = "not every store has names for connections")
)]
pub(crate) fn connect_lazy(url: &str, label: Option<&str>) -> Result<Arc<dyn Backend>, Error> {
    match Store::of(url)? {
        #[cfg(feature = "etcd")]
        Store::Etcd => Ok(Arc::new(super::etcd::EtcdBackend::builder(url)?.connect_lazy()?)),
        Store::Memory => Ok(Arc::new(in_memory(url))),
        #[cfg(feature = "mysql")]
        Store::Mysql => {
            Ok(Arc::new(super::mysql::MysqlBackend::builder(url)?.named_after(label).connect_lazy()?))
        }
        #[cfg(feature = "postgres")]
        Store::Postgres => {
            Ok(Arc::new(super::postgres::PostgresBackend::builder(url)?.named_after(label).connect_lazy()?))
        }
        #[cfg(feature = "_redis")]
        Store::Redis => Ok(Arc::new(super::RedisBackend::builder(url)?.named_after(label).connect_lazy()?)),
        #[cfg(feature = "_redis")]
        Store::Redlock => {
            Ok(Arc::new(super::RedlockBackend::builder(url)?.named_after(label).connect_lazy()?))
        }
        #[cfg(feature = "sqlite")]
        Store::Sqlite => Ok(Arc::new(super::sqlite::SqliteBackend::builder(url)?.connect_lazy()?)),
        #[cfg(feature = "zookeeper")]
        Store::Zookeeper => Ok(Arc::new(super::zookeeper::ZookeeperBackend::builder(url)?.connect_lazy()?)),
        #[allow(unreachable_patterns, reason = "a build with all features lacks none")]
        lacking => Err(lacking.is_lacking(url)),
    }
}

/// A store of its own, or the one that the URL names.
fn in_memory(url: &str) -> MemoryBackend {
    match url.split_once(':') {
        None | Some((_, "")) => MemoryBackend::new(),
        Some((_, name)) => MemoryBackend::named(name),
    }
}

/// The same as [`connect`], with requests that fail fast.
pub(crate) async fn connect_fail_fast(url: &str, label: Option<&str>) -> Result<Arc<dyn Backend>, Error> {
    // It knows which server a request is for: in a cluster, only those for one that is away fail.
    #[cfg(feature = "_redis")]
    if Store::of(url)? == Store::Redis {
        let builder = super::RedisBackend::builder(url)?.named_after(label);
        return Ok(Arc::new(builder.fail_fast(true).connect().await?));
    }
    Ok(Arc::new(FailFast::new(connect(url, label).await?)))
}

/// The same as [`connect_lazy`], with requests that fail fast.
pub(crate) fn connect_lazy_fail_fast(url: &str, label: Option<&str>) -> Result<Arc<dyn Backend>, Error> {
    #[cfg(feature = "_redis")]
    if Store::of(url)? == Store::Redis {
        let builder = super::RedisBackend::builder(url)?.named_after(label);
        return Ok(Arc::new(builder.fail_fast(true).connect_lazy()?));
    }
    Ok(Arc::new(FailFast::new(connect_lazy(url, label)?)))
}

/// Whether the scheme is that of a store.
#[cfg(all(any(test, fuzzing), feature = "all-stores"))]
pub(super) fn check(url: &str) -> Result<(), Error> {
    Store::of(url).map(drop)
}

impl Store {
    /// Errors never repeat the URL, because it may contain a password.
    fn of(url: &str) -> Result<Self, Error> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(Error::invalid(
                "url",
                match url {
                    "memory" => "the URL of the store in memory is `memory:`, with the colon",
                    _ => "it has no scheme, such as `redis://`",
                },
            ));
        };
        match scheme {
            "etcd" | "etcds" => Ok(Self::Etcd),
            "memory" if rest.contains(['/', '?', '@']) => {
                Err(Error::invalid("url", "only a name without `/`, `?` or `@` may follow `memory:`"))
            }
            "memory" => Ok(Self::Memory),
            "mysql" | "mariadb" => Ok(Self::Mysql),
            "postgres" | "postgresql" => Ok(Self::Postgres),
            "redlock" | "redlocks" => Ok(Self::Redlock),
            "sqlite" => Ok(Self::Sqlite),
            "zookeeper" => Ok(Self::Zookeeper),
            // The store knows which schemes with this prefix exist.
            _ if scheme.starts_with("redis") || scheme.starts_with("valkey") => Ok(Self::Redis),
            _ => {
                let known = format!(
                    "`memory:`, `sqlite:`, `postgres://`, `postgresql://`, `mysql://`, `mariadb://`, `etcd://`, `etcds://`, `zookeeper://`, `redlock://`, `redlocks://`, {REDIS_SCHEMES}"
                );
                Err(Error::invalid("url", format!("its scheme is not one of {known}")))
            }
        }
    }

    /// The feature that this kind of store needs.
    const fn feature(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Memory => "",
            Self::Mysql => "mysql",
            Self::Postgres => "postgres",
            Self::Redis | Self::Redlock => "fred",
            Self::Sqlite => "sqlite",
            Self::Zookeeper => "zookeeper",
        }
    }

    fn is_lacking(self, url: &str) -> Error {
        let scheme = url.split(':').next().unwrap_or_default().to_owned();
        let reason = format!("this build lacks the feature `{}`", self.feature());
        Error::Unsupported { store: scheme, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_says_which_store() {
        for (url, store) in [
            ("memory:", Store::Memory),
            ("memory:orders", Store::Memory),
            ("etcd://h", Store::Etcd),
            ("etcds://h", Store::Etcd),
            ("redis://h", Store::Redis),
            ("valkeys-cluster://h", Store::Redis),
            ("redlock://h", Store::Redlock),
            ("redlocks://h", Store::Redlock),
            ("sqlite:/a", Store::Sqlite),
            ("mysql://h/d", Store::Mysql),
            ("mariadb://h/d", Store::Mysql),
            ("postgres://h", Store::Postgres),
            ("postgresql://h", Store::Postgres),
            ("zookeeper://h", Store::Zookeeper),
        ] {
            assert_eq!(Store::of(url).unwrap(), store, "{url}");
        }
    }

    #[test]
    fn an_invalid_url_is_rejected_without_repeating_a_password() {
        for (url, reason) in [
            ("", "no scheme"),
            ("redis", "no scheme"),
            ("memory", "with the colon"),
            ("memory://u:hunter2@h", "only a name"),
            ("http://u:hunter2@h", "scheme is not one of"),
            ("localhost:6379", "scheme is not one of"),
        ] {
            let error = Store::of(url).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { argument: "url", .. }), "{url}: {error:?}");
            assert!(error.to_string().contains(reason), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error:?}");
        }
    }

    #[test]
    fn a_store_that_this_build_lacks_is_named_with_its_feature() {
        let error = Store::Redlock.is_lacking("redlock://u:hunter2@h");
        assert_eq!(error.to_string(), "not supported by redlock: this build lacks the feature `fred`");
    }
}
