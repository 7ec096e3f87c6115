//! Where the record is kept, and how it refuses holders that are too late.
//!
//! A lock alone cannot stop a process that was paused, lost its lease meanwhile, and wakes up just before its
//! write. The resource can, by never going back to an older fencing token. It has to see the token of the *read*
//! too: otherwise a late write could still slip in between the new holder's read and write, and vanish.

use std::sync::Arc;

use leasehold::{Fence, FencingToken};
use tokio::sync::Mutex;

use crate::failure::Failure;

/// Cheap to clone; all clones are one record.
#[derive(Clone, Debug)]
pub(crate) enum Storage {
    Memory(Arc<Mutex<Fenced>>),
    #[cfg(feature = "redis")]
    Redis(redis::Store),
}

/// Check and write are one step because both happen under the mutex around this.
#[derive(Debug, Default)]
pub(crate) struct Fenced {
    text: String,
    fence: Fence,
}

impl Storage {
    /// The record of one run, empty at first.
    #[cfg_attr(not(feature = "redis"), allow(unused_variables, clippy::unused_async))]
    pub(crate) async fn open(url: &str, run: &str) -> Result<Self, Failure> {
        #[cfg(feature = "redis")]
        if url != "memory:" {
            return Ok(Self::Redis(redis::Store::open(url, run).await?));
        }
        Ok(Self::Memory(Arc::default()))
    }

    /// Reads the record, under a token or without any protection.
    pub(crate) async fn read(&self, token: Option<FencingToken>) -> Result<String, Failure> {
        match self {
            Self::Memory(record) => {
                let record = record.lock().await;
                record.admit(token)?;
                Ok(record.text.clone())
            }
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.read(token).await,
        }
    }

    /// Writes the record, under a token or without any protection.
    pub(crate) async fn write(&self, token: Option<FencingToken>, text: String) -> Result<(), Failure> {
        match self {
            Self::Memory(record) => {
                let mut record = record.lock().await;
                record.admit(token)?;
                record.text = text;
                Ok(())
            }
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.write(token, text).await,
        }
    }

    /// Removes the record and returns what was in it.
    pub(crate) async fn take(&self) -> Result<String, Failure> {
        match self {
            Self::Memory(record) => Ok(std::mem::take(&mut record.lock().await.text)),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.take().await,
        }
    }
}

impl Fenced {
    fn admit(&self, token: Option<FencingToken>) -> Result<(), Failure> {
        token.map_or(Ok(()), |token| self.fence.admit(token).map_err(|_| Failure::Stale(token)))
    }
}

#[cfg(feature = "redis")]
mod redis {
    use std::time::Duration;

    use fred::prelude::*;
    use leasehold::FencingToken;

    use crate::failure::Failure;

    /// Reads, or writes if there is a text; answers nil if the token is older than one that was seen. A script
    /// is one step in Redis: nothing gets between the check and the write.
    ///
    /// KEYS: the record, the newest token. ARGV: seconds until both are forgotten, the token, perhaps a text.
    const FENCED: &str = "
        if tonumber(ARGV[2]) < tonumber(redis.call('GET', KEYS[2]) or 0) then return nil end
        redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[1])
        if not ARGV[3] then return redis.call('GET', KEYS[1]) or '' end
        redis.call('SET', KEYS[1], ARGV[3], 'EX', ARGV[1])
        return ''";

    /// Seconds after which the server forgets a record that an interrupted run left behind.
    const FORGET_AFTER: i64 = 3600;

    #[derive(Clone, Debug)]
    pub(crate) struct Store {
        client: Client,
        record: String,
        token: String,
    }

    impl Store {
        pub(super) async fn open(url: &str, run: &str) -> Result<Self, Failure> {
            let client = Builder::from_config(Config::from_url(url)?)
                .with_performance_config(|config| config.default_command_timeout = Duration::from_secs(5))
                .with_connection_config(|config| config.connection_timeout = Duration::from_secs(2))
                .build()?;
            client.init().await?;
            // The braces keep both keys on one node of a cluster, as the script needs them.
            let (record, token) = (format!("merge:{{{run}}}:record"), format!("merge:{{{run}}}:token"));
            Ok(Self { client, record, token })
        }

        pub(super) async fn read(&self, token: Option<FencingToken>) -> Result<String, Failure> {
            match token {
                Some(token) => self.fenced(token, None).await,
                None => Ok(self.client.get::<Option<String>, _>(&self.record).await?.unwrap_or_default()),
            }
        }

        pub(super) async fn write(&self, token: Option<FencingToken>, text: String) -> Result<(), Failure> {
            if let Some(token) = token {
                return self.fenced(token, Some(text)).await.map(drop);
            }
            let forget = Some(Expiration::EX(FORGET_AFTER));
            Ok(self.client.set(&self.record, text, forget, None, false).await?)
        }

        pub(super) async fn take(&self) -> Result<String, Failure> {
            let text = self.read(None).await?;
            self.client.del::<(), _>(vec![&self.record, &self.token]).await?;
            Ok(text)
        }

        async fn fenced(&self, token: FencingToken, text: Option<String>) -> Result<String, Failure> {
            let keys = vec![self.record.as_str(), self.token.as_str()];
            let mut args = vec![FORGET_AFTER.to_string(), token.to_string()];
            args.extend(text);
            let answer: Option<String> = self.client.eval(FENCED, keys, args).await?;
            answer.ok_or(Failure::Stale(token))
        }
    }

    impl From<Error> for Failure {
        fn from(error: Error) -> Self {
            Self::Storage(error.to_string())
        }
    }
}
