//! The textbook semaphore: a sorted set of holders by the time of their arrival, by their own clocks.
//!
//! Remove those that are older than a timeout, add oneself, look at one's rank, and leave again if that is not among
//! the first. (Carlson, *Redis in Action*, 6.3.1, "Building a basic counting semaphore"; each step here as one
//! transaction, so that nothing but the clocks can go wrong.)

// Each of the binaries that include this uses a part.
#![allow(dead_code)]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use uuid::Uuid;

use crate::{Raw, Reply};

/// A client of the textbook recipe.
#[derive(Debug)]
pub struct Naive {
    raw: Raw,
    key: String,
    limit: i64,
    lease: Duration,
}

impl Naive {
    pub fn new(raw: Raw, key: &str, limit: u32, lease: Duration) -> Self {
        Self { raw, key: key.to_owned(), limit: limit.into(), lease }
    }

    /// Takes one permit if one is free, and names it. It lasts for a lease: for longer, it would have to be added anew.
    pub fn try_acquire(&mut self) -> Option<String> {
        let (id, now) = (Uuid::new_v4().to_string(), now_us());
        let expired = now - i64::try_from(self.lease.as_micros()).expect("short");
        self.raw.send(&["MULTI"]);
        self.raw.send(&["ZREMRANGEBYSCORE", &self.key, "-inf", &expired.to_string()]);
        self.raw.send(&["ZADD", &self.key, &now.to_string(), &id]);
        self.raw.send(&["ZRANK", &self.key, &id]);
        let replies = self.raw.send(&["EXEC"]).array();
        if matches!(replies[2], Reply::Int(rank) if rank < self.limit) {
            return Some(id);
        }
        self.release(&id);
        None
    }

    pub fn release(&mut self, id: &str) {
        self.raw.send(&["ZREM", &self.key, id]);
    }
}

/// The time of day, according to this process.
pub fn now_us() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(now.as_micros()).expect("before the year 292 000")
}
