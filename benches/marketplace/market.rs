//! The market as stored in Redis, and whether everything in it adds up.
//!
//! | key | type | holds |
//! |---|---|---|
//! | `on-sale` | sorted set | `item.seller` by price |
//! | `inventory:<user>` | set | the items that a seller has not listed, or that a buyer has bought |
//! | `funds:<user>` | hash | the field `funds` |

use fred::clients::Client as Fred;
use fred::interfaces::{ClientLike, KeysInterface};
use fred::types::{ClusterHash, CustomCommand, FromValue, Value};
use uuid::Uuid;

use crate::common::Result;

/// Items are loaded so many at a time.
const LOAD: usize = 1000;
const HIGHEST_PRICE: i64 = 97;

/// One market of one round, with its sellers and buyers.
#[derive(Clone)]
pub(crate) struct Market {
    prefix: String,
    sellers: usize,
    buyers: usize,
    items_each: usize,
}

/// An item at a price.
pub(crate) struct Offer {
    pub(crate) item: String,
    pub(crate) seller: String,
    pub(crate) price: i64,
}

impl Offer {
    fn member(&self) -> String {
        format!("{}.{}", self.item, self.seller)
    }

    fn from_member(member: &str, price: f64) -> Result<Self> {
        let (item, seller) = member.split_once('.').ok_or("a member is an item and a seller")?;
        Ok(Self { item: item.to_owned(), seller: seller.to_owned(), price: price as i64 })
    }
}

impl Market {
    /// Nothing is listed yet; sellers have `items_each`, and buyers enough money for all of them.
    pub(crate) async fn open(
        connection: &Fred,
        sellers: usize,
        buyers: usize,
        items_each: usize,
    ) -> Result<Self> {
        let market =
            Self { prefix: format!("bench:market:{}:", Uuid::new_v4()), sellers, buyers, items_each };
        for seller in 0..sellers {
            market.load(connection, seller).await?;
        }
        let funds = market.initial_funds().to_string();
        for buyer in 0..buyers {
            let key = market.funds(&buyer_name(buyer));
            send::<Value>(connection, "HSET", &[&key, "funds", &funds]).await?;
        }
        Ok(market)
    }

    async fn load(&self, connection: &Fred, seller: usize) -> Result<()> {
        let inventory = self.inventory(&seller_name(seller));
        let items: Vec<_> = self.items_of(seller).map(|item| item.to_string()).collect();
        for chunk in items.chunks(LOAD) {
            let mut args = vec![inventory.as_str()];
            args.extend(chunk.iter().map(String::as_str));
            send::<Value>(connection, "SADD", &args).await?;
        }
        Ok(())
    }

    /// Removes everything; call it when trading has ended.
    pub(crate) async fn close(self, connection: &Fred) -> Result<()> {
        let users = self.users();
        let keys = users.iter().flat_map(|user| [self.inventory(user), self.funds(user)]);
        let keys: Vec<_> = keys.chain([self.on_sale()]).collect();
        Ok(connection.unlink::<(), _>(keys).await?)
    }

    /// The name of the lock on everything.
    pub(crate) fn lock_name(&self) -> String {
        format!("{}all", self.prefix)
    }

    /// The name of the lock on one item.
    pub(crate) fn item_lock_name(&self, item: &str) -> String {
        format!("{}item:{item}", self.prefix)
    }

    pub(crate) fn on_sale(&self) -> String {
        format!("{}on-sale", self.prefix)
    }

    pub(crate) fn inventory(&self, user: &str) -> String {
        format!("{}inventory:{user}", self.prefix)
    }

    pub(crate) fn funds(&self, user: &str) -> String {
        format!("{}funds:{user}", self.prefix)
    }

    /// What a seller has to sell, in the order in which it lists it.
    pub(crate) fn offers_of(&self, seller: usize) -> impl Iterator<Item = Offer> + use<> {
        self.items_of(seller).map(move |item| Offer {
            item: item.to_string(),
            seller: seller_name(seller),
            price: 1 + item as i64 % HIGHEST_PRICE,
        })
    }

    /// Any of the items on sale, or `None` if there are none.
    pub(crate) async fn look(&self, connection: &Fred) -> Result<Option<Offer>> {
        let seen: Value = send(connection, "ZRANDMEMBER", &[&self.on_sale(), "1", "WITHSCORES"]).await?;
        // RESP3 nests each pair.
        let seen: Vec<(String, f64)> = seen.flatten_array_values(2).convert()?;
        seen.first().map(|(member, price)| Offer::from_member(member, *price)).transpose()
    }

    /// Asks whether the seller has the item: 1 or 0.
    pub(crate) async fn ask_for_item(&self, to: &impl ClientLike, offer: &Offer) -> Result<Value> {
        send(to, "SISMEMBER", &[&self.inventory(&offer.seller), &offer.item]).await
    }

    /// Asks for the price on the market, nil if the item is gone, and for the funds of the buyer.
    pub(crate) async fn ask_for_price(&self, to: &impl ClientLike, offer: &Offer, buyer: &str) -> Result<()> {
        send::<Value>(to, "ZSCORE", &[&self.on_sale(), &offer.member()]).await?;
        send::<Value>(to, "HGET", &[&self.funds(buyer), "funds"]).await?;
        Ok(())
    }

    /// Moves the item from the seller's inventory to the market.
    pub(crate) async fn list(&self, to: &impl ClientLike, offer: &Offer) -> Result<()> {
        let price = offer.price.to_string();
        send::<Value>(to, "SREM", &[&self.inventory(&offer.seller), &offer.item]).await?;
        send::<Value>(to, "ZADD", &[&self.on_sale(), &price, &offer.member()]).await?;
        Ok(())
    }

    /// Moves the item from the market to the buyer's inventory, and the money the other method.
    pub(crate) async fn sell(&self, to: &impl ClientLike, offer: &Offer, buyer: &str) -> Result<()> {
        let (price, negative) = (offer.price.to_string(), (-offer.price).to_string());
        send::<Value>(to, "ZREM", &[&self.on_sale(), &offer.member()]).await?;
        send::<Value>(to, "HINCRBY", &[&self.funds(buyer), "funds", &negative]).await?;
        send::<Value>(to, "HINCRBY", &[&self.funds(&offer.seller), "funds", &price]).await?;
        send::<Value>(to, "SADD", &[&self.inventory(buyer), &offer.item]).await?;
        Ok(())
    }

    /// Fails if money or an item was lost or made, or if fewer or more items changed hands than the traders say.
    pub(crate) async fn audit(&self, connection: &Fred, listed: u64, bought: u64) -> Result<()> {
        let mut funds = 0;
        let mut places = vec![0_u8; self.sellers * self.items_each];
        for user in self.users() {
            let amount: Option<i64> = send(connection, "HGET", &[&self.funds(&user), "funds"]).await?;
            funds += amount.unwrap_or(0);
            let items: Vec<String> = send(connection, "SMEMBERS", &[&self.inventory(&user)]).await?;
            count(&mut places, items.iter().map(String::as_str))?;
        }
        let members: Vec<String> = send(connection, "ZRANGE", &[&self.on_sale(), "0", "-1"]).await?;
        count(&mut places, members.iter().filter_map(|member| Some(member.split_once('.')?.0)))?;
        check("money", funds, self.initial_funds() * self.buyers as i64)?;
        if let Some(item) = places.iter().position(|&count| count != 1) {
            return Err(format!("item {item} is in {} places", places[item]).into());
        }
        check("items on sale", members.len() as u64, listed - bought)?;
        check("items bought", self.count_bought(connection).await?, bought)
    }

    async fn count_bought(&self, connection: &Fred) -> Result<u64> {
        let mut bought = 0;
        for buyer in 0..self.buyers {
            bought += send::<u64>(connection, "SCARD", &[&self.inventory(&buyer_name(buyer))]).await?;
        }
        Ok(bought)
    }

    fn items_of(&self, seller: usize) -> std::ops::Range<usize> {
        seller * self.items_each..(seller + 1) * self.items_each
    }

    /// Of each buyer: nobody runs out.
    fn initial_funds(&self) -> i64 {
        (self.sellers * self.items_each) as i64 * HIGHEST_PRICE
    }

    fn users(&self) -> Vec<String> {
        (0..self.sellers).map(seller_name).chain((0..self.buyers).map(buyer_name)).collect()
    }
}

fn seller_name(seller: usize) -> String {
    format!("seller{seller}")
}

pub(crate) fn buyer_name(buyer: usize) -> String {
    format!("buyer{buyer}")
}

fn count<'a>(places: &mut [u8], items: impl Iterator<Item = &'a str>) -> Result<()> {
    for item in items {
        *places.get_mut(item.parse::<usize>()?).ok_or("an item that nobody made")? += 1;
    }
    Ok(())
}

fn check<T: PartialEq + std::fmt::Display>(what: &str, found: T, expected: T) -> Result<()> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found} instead of {expected}").into()) }
}

/// Sends one command, or queues it in a pipeline or a transaction.
pub(crate) async fn send<R: FromValue>(
    to: &impl ClientLike,
    command: &'static str,
    args: &[&str],
) -> Result<R> {
    let command = CustomCommand::new_static(command, ClusterHash::FirstKey, false);
    let args: Vec<Value> = args.iter().map(|&arg| arg.into()).collect();
    Ok(to.custom(command, args).await?)
}
