//! The classic recipe: `SET NX PX`, the same again after a pause, and a script that compares and deletes.

use std::time::{Duration, Instant};

use fred::clients::Client as Fred;
use fred::interfaces::{KeysInterface, LuaInterface};
use fred::types::{Expiration, SetOptions};
use tokio::time::sleep;
use uuid::Uuid;

use super::turns::Contender;
use super::{Bare, LEASE, Result};

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

#[derive(Clone)]
pub(crate) struct Polling {
    recipe: Recipe,
    pause: Duration,
}

impl Polling {
    pub(crate) async fn connect(url: &str, key: &str, pause: Duration) -> Result<Self> {
        Ok(Self { recipe: Recipe::connect(url, key, COMPARE_AND_DELETE).await?, pause })
    }
}

impl Contender for Polling {
    type Held = Uuid;

    async fn acquire(&self, until: Instant) -> Result<Option<Uuid>> {
        while Instant::now() < until {
            if let Some(held) = self.recipe.attempt().await? {
                return Ok(Some(held));
            }
            sleep(self.pause).await;
        }
        Ok(None)
    }

    async fn release(&self, held: Uuid) -> Result<()> {
        self.recipe.release(held).await
    }
}

/// What polling and notifying have in common.
#[derive(Clone)]
pub(crate) struct Recipe {
    pub(crate) client: Fred,
    pub(crate) key: String,
    script: String,
}

impl Recipe {
    /// `release` is the script that ends a hold; it answers 1 if there was one.
    pub(crate) async fn connect(url: &str, key: &str, release: &str) -> Result<Self> {
        let client = Bare::connection(url).await?;
        let script = client.script_load(release).await?;
        Ok(Self { client, key: key.to_owned(), script })
    }

    /// Takes the lock if it is free.
    pub(crate) async fn attempt(&self) -> Result<Option<Uuid>> {
        let value = Uuid::new_v4();
        let expiry = Some(Expiration::PX(i64::try_from(LEASE.as_millis())?));
        let set: Option<String> =
            self.client.set(&self.key, value.to_string(), expiry, Some(SetOptions::NX), false).await?;
        Ok(set.map(|_| value))
    }

    pub(crate) async fn release(&self, held: Uuid) -> Result<()> {
        let released: i64 = self.client.evalsha(&self.script, self.key.as_str(), held.to_string()).await?;
        if released == 1 { Ok(()) } else { Err("a lock was gone before its release".into()) }
    }
}
