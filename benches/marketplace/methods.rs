//! Three ways to keep traders out of each other's way.

use fred::clients::{Client as Fred, Pipeline};
use fred::interfaces::{KeysInterface, TransactionInterface};
use fred::types::Value;
use leasehold::{Client, DistMutex, Guard};

use crate::common::Result;
use crate::market::{Market, Offer, send};

#[derive(Clone, Copy)]
pub(crate) enum Method {
    Watch,
    OneLock,
    LockPerItem,
}

impl Method {
    pub(crate) const ALL: [Self; 3] = [Self::Watch, Self::OneLock, Self::LockPerItem];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Watch => "WATCH/MULTI",
            Self::OneLock => "one lock",
            Self::LockPerItem => "lock per item",
        }
    }
}

/// What came of one attempt to list or to buy.
pub(crate) enum Attempt {
    Done,
    /// Somebody else was faster, or is about to be.
    Refused,
    NothingListed,
}

/// How one trader reaches the market.
pub(crate) struct Access {
    pub(crate) market: Market,
    /// Its own with `Watch`, since what is watched belongs to a connection; otherwise shared.
    pub(crate) connection: Fred,
    pub(crate) exclusion: Exclusion,
}

pub(crate) enum Exclusion {
    Watch,
    OneLock(DistMutex),
    LockPerItem(Client),
}

impl Access {
    pub(crate) async fn list(&self, offer: &Offer) -> Result<Attempt> {
        if matches!(self.exclusion, Exclusion::Watch) {
            return self.list_watching(offer).await;
        }
        let Some(guard) = self.lock(offer).await? else { return Ok(Attempt::Refused) };
        self.list_locked(offer).await?;
        guard.release().await?;
        Ok(Attempt::Done)
    }

    /// Looks at the market, and tries to buy what it chose there at the price it saw.
    pub(crate) async fn buy(&self, buyer: &str) -> Result<Attempt> {
        let Some(offer) = self.market.look(&self.connection).await? else {
            return Ok(Attempt::NothingListed);
        };
        if matches!(self.exclusion, Exclusion::Watch) {
            return self.buy_watching(&offer, buyer).await;
        }
        let Some(guard) = self.lock(&offer).await? else { return Ok(Attempt::Refused) };
        let attempt = self.buy_locked(&offer, buyer).await?;
        guard.release().await?;
        Ok(attempt)
    }

    /// Waits for the lock on everything; a trader that finds an item locked does not wait: it is being sold.
    async fn lock(&self, offer: &Offer) -> Result<Option<Guard>> {
        match &self.exclusion {
            Exclusion::Watch => Ok(None),
            Exclusion::OneLock(mutex) => Ok(Some(mutex.lock().await?)),
            Exclusion::LockPerItem(client) => {
                Ok(client.mutex(&self.market.item_lock_name(&offer.item))?.try_lock().await?)
            }
        }
    }

    async fn list_locked(&self, offer: &Offer) -> Result<()> {
        let has = self.market.ask_for_item(&self.connection, offer).await?;
        owned(&has)?;
        let pipeline = self.connection.pipeline();
        self.market.list(&pipeline, offer).await?;
        Ok(pipeline.all::<()>().await?)
    }

    async fn buy_locked(&self, offer: &Offer, buyer: &str) -> Result<Attempt> {
        let asked = self.connection.pipeline();
        self.market.ask_for_price(&asked, offer, buyer).await?;
        let (price, funds) = asked.all().await?;
        if !buyable(offer, price, funds)? {
            return Ok(Attempt::Refused);
        }
        let pipeline = self.connection.pipeline();
        self.market.sell(&pipeline, offer, buyer).await?;
        pipeline.all::<()>().await?;
        Ok(Attempt::Done)
    }

    /// A listing reads nothing but the seller's inventory, so it watches nothing else.
    async fn list_watching(&self, offer: &Offer) -> Result<Attempt> {
        let asked = self.connection.pipeline();
        watch(&asked, &[&self.market.inventory(&offer.seller)]).await?;
        self.market.ask_for_item(&asked, offer).await?;
        let (_, has): (Value, Value) = asked.all().await?;
        owned(&has)?;
        let transaction = self.connection.multi();
        self.market.list(&transaction, offer).await?;
        Ok(outcome(&transaction.exec(true).await?))
    }

    async fn buy_watching(&self, offer: &Offer, buyer: &str) -> Result<Attempt> {
        let asked = self.connection.pipeline();
        watch(&asked, &[&self.market.on_sale(), &self.market.funds(buyer)]).await?;
        self.market.ask_for_price(&asked, offer, buyer).await?;
        let (_, price, funds): (Value, _, _) = asked.all().await?;
        if !buyable(offer, price, funds)? {
            self.connection.unwatch().await?;
            return Ok(Attempt::Refused);
        }
        let transaction = self.connection.multi();
        self.market.sell(&transaction, offer, buyer).await?;
        Ok(outcome(&transaction.exec(true).await?))
    }
}

/// Queues a WATCH; fred's own does not take "queued" for an answer.
async fn watch(asked: &Pipeline<Fred>, keys: &[&str]) -> Result<()> {
    send::<Value>(asked, "WATCH", keys).await?;
    Ok(())
}

/// EXEC answers nil if something that was watched has changed.
fn outcome(answer: &Value) -> Attempt {
    if answer.is_null() { Attempt::Refused } else { Attempt::Done }
}

/// Every seller lists each of its items once, so that it must have it.
fn owned(has: &Value) -> Result<()> {
    if has.as_i64() == Some(1) { Ok(()) } else { Err("a seller has lost an item".into()) }
}

/// Whether the item is still there for the price that was seen.
fn buyable(offer: &Offer, price: Option<f64>, funds: i64) -> Result<bool> {
    if funds < offer.price {
        return Err("a buyer has run out of money".into());
    }
    Ok(price == Some(offer.price as f64))
}
