//! Numbers that a seed determines.

// Each of the binaries that include this uses a part.
#![allow(dead_code)]

use std::ops::Range;
use std::time::Duration;

/// A small generator of numbers (SplitMix64, Steele and others 2014), so that a seed tells what was done.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// For each of several users of one seed, another sequence.
    pub fn new(seed: u64, user: u64) -> Self {
        let mut random = Self(seed ^ user.rotate_left(32));
        Self(random.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    pub fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.within(range))
    }

    /// Once in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.within(0..times) == 0
    }

    pub fn choose<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.within(0..all.len() as u64) as usize]
    }
}
