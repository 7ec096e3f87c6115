//! Support for the integration tests: real servers, raw protocol commands, faults, processes, deadlines.
//!
//! | module | holds |
//! |---|---|
//! | [`acl`] | the user that clients log in as in this run |
//! | [`redis`] | [`RedisServer`]: a real server that can be paused, killed and restarted |
//! | [`resp`] | [`Raw`]: commands sent by hand, so that no test depends on the client under test |
//! | [`nodes`] | [`Nodes`]: several independent servers, the nodes of a Redlock |
//! | [`fake`] | [`FakeServer`]: a server of a version that is not installed |
//! | [`proxy`] | [`Proxy`]: a wire that can be cut, held, and made to lose one reply |
//! | [`budget`] | how many bytes go before a connection is cut |
//! | [`faults`] | what the tests of faults do on every store |
//! | [`handover`] | whether the tasks of a client pass a mutex on to each other in this run |
//! | [`intercept`] | a store in memory on which a test answers some of the calls itself |
//! | [`load`] | [`Load`]: tasks that lock all the time, and what they saw |
//! | [`workers`] | [`Worker`]: this test binary once more, as a process that can be killed |
//! | [`clock`] | [`Clock`]: the time of day of servers and workers, which the test can shift |
//! | [`child`] | child processes that end with the test process, and ports for them |
//! | [`topology`] | clusters, and primaries with replicas and sentinels |
//! | [`wire`] | [`Wire`](wire::Wire): a proxy to a server of another store on which one request can get lost, or arrive late |
//! | [`time`] | waiting for an event with a deadline |

// Every test binary includes all of it and uses a part.
#![allow(dead_code, unused_imports)]

pub(crate) mod acl;
pub(crate) mod budget;
pub(crate) mod child;
pub(crate) mod clock;
pub(crate) mod fake;
pub(crate) mod faults;
pub(crate) mod handover;
pub(crate) mod hosts;
pub(crate) mod intercept;
pub(crate) mod load;
pub(crate) mod nodes;
pub(crate) mod preload;
pub(crate) mod proxy;
pub(crate) mod redis;
pub(crate) mod resp;
pub(crate) mod time;
pub(crate) mod topology;
pub(crate) mod wire;
pub(crate) mod workers;

pub(crate) use acl::{more_rules, url_of};
pub(crate) use clock::Clock;
pub(crate) use fake::FakeServer;
pub(crate) use handover::{begun, local_handover, one_place_each, options, permits_passed_on};
pub(crate) use load::Load;
pub(crate) use nodes::Nodes;
pub(crate) use proxy::{Direction, Proxy, Traffic};
pub(crate) use redis::{RedisServer, ServerCertificate, Setup, assert_is_never_lowered};
pub(crate) use resp::{Raw, Reply};
pub(crate) use time::{AT_ONCE, assert_pending, at_once, eventually, within};
pub(crate) use topology::{Cluster, Sentinels};
pub(crate) use workers::{Worker, say, worker_args};
