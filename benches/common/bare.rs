//! The bare recipe, for comparison: `SET NX PX` and a compare-and-delete script, nothing else.

use std::time::Duration;

use fred::clients::Client as Fred;
use fred::interfaces::{ClientLike, KeysInterface, LuaInterface};
use fred::types::config::{Config, ConnectionConfig, PerformanceConfig, TcpConfig};
use fred::types::{Expiration, RespVersion, SetOptions};
use fred::util::sha1_hash;
use uuid::Uuid;

use super::Result;

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// The bare recipe through fred, set up like this crate's own connection.
#[derive(Clone)]
pub(crate) struct Bare {
    client: Fred,
    script: String,
    value: String,
}

impl Bare {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let client = Self::connection(url).await?;
        let script: String = client.script_load(COMPARE_AND_DELETE).await?;
        assert_eq!(script, sha1_hash(COMPARE_AND_DELETE));
        Ok(Self { client, script, value: Uuid::new_v4().to_string() })
    }

    /// A connection with the settings of this crate's own, for commands of any kind.
    pub(crate) async fn connection(url: &str) -> Result<Fred> {
        let mut config = Config::from_url(url)?;
        config.version = RespVersion::RESP3;
        let performance = PerformanceConfig {
            default_command_timeout: Duration::from_secs(2),
            ..PerformanceConfig::default()
        };
        let connection = ConnectionConfig {
            max_command_attempts: 1,
            tcp: TcpConfig { nodelay: Some(true), ..TcpConfig::default() },
            ..ConnectionConfig::default()
        };
        let client = Fred::new(config, Some(performance), Some(connection), None);
        client.init().await?;
        Ok(client)
    }

    /// One lock and its release.
    pub(crate) async fn pair(&self, key: &str) -> Result<()> {
        let expiry = Some(Expiration::PX(30_000));
        let set: Option<String> =
            self.client.set(key, &self.value, expiry, Some(SetOptions::NX), false).await?;
        assert!(set.is_some(), "nobody else uses this key");
        let deleted: i64 = self.client.evalsha(&self.script, key, &self.value).await?;
        assert_eq!(deleted, 1);
        Ok(())
    }

    /// One round trip that asks for nothing.
    pub(crate) async fn ping(&self) -> Result<()> {
        Ok(self.client.ping::<()>(None).await?)
    }
}
