//! Support for the integration tests: real servers, raw protocol commands, faults, processes, deadlines.
//!
//! | module | holds |
//! |---|---|
//! | [`acl`] | the user that clients log in as in this run |
//! | [`redis`] | [`RedisServer`]: a real server that can be paused, killed and restarted |
//! | [`resp`] | [`Raw`]: commands sent by hand, so that no test depends on the client under test |
//! | [`nodes`] | [`Nodes`]: several independent servers, the nodes of a Redlock |
//! | [`topology`] | clusters, and primaries with replicas and sentinels |
//! | [`fake`] | [`FakeServer`]: a server of a version that is not installed |
//! | [`proxy`] | [`Proxy`]: a wire that can be cut, held, and made to lose one reply |
//! | [`wire`] | [`Wire`](wire::Wire): a proxy to a server of another store on which one request can get lost, or arrive late |
//! | [`refusing_proxy`] | a proxy to a database server that refuses queries or connections |
//! | [`budget`] | how many bytes go before a connection is cut |
//! | [`zookeeper_wire`] | ZooKeeper's protocol by hand |
//! | [`hosts`] | host names with the addresses that a test wants |
//! | [`clock`] | [`Clock`]: the time of day of servers and workers, which the test can shift |
//! | [`preload`] | the libraries with which a process is shown another clock or other host names |
//! | [`child`] | child processes that end with the test process, and ports for them |
//! | [`workers`] | [`Worker`]: this test binary once more, as a process that can be killed |
//! | [`intercept`], [`unresponsive`], [`gates`] | stores in memory on which a test answers some of the calls itself, or lets them wait |
//! | [`faults`], [`refusals`] | what the tests of faults do on every store |
//! | [`handover`] | whether the tasks of a client pass a mutex on to each other in this run |
//! | [`locks`] | what the tests of locks on Redis share |
//! | [`naive`] | the textbook semaphore, to compare with |
//! | [`observing`] | observers of an election |
//! | [`load`] | [`Load`]: tasks that lock all the time, and what they saw |
//! | [`checker`] | checks what several processes believed they held |
//! | [`random`] | numbers that a seed determines |
//! | [`lines`] | what is traced |
//! | [`time`] | waiting for an event with a deadline |
//!
//! What is shared by tests of stores and needs the features of the crate for them, such as the other servers, is beside
//! this file as well, and is included by the programs that use it.

#![allow(
    missing_debug_implementations,
    missing_docs,
    clippy::exhaustive_enums,
    clippy::future_not_send,
    reason = "no interface for others"
)]

pub mod acl;
pub mod budget;
pub mod checker;
pub mod child;
pub mod clock;
pub mod fake;
pub mod faults;
pub mod gates;
pub mod handover;
pub mod hosts;
pub mod intercept;
pub mod lines;
pub mod load;
pub mod locks;
pub mod naive;
pub mod nodes;
pub mod observing;
pub mod preload;
pub mod proxy;
pub mod random;
pub mod redis;
pub mod refusals;
pub mod refusing_proxy;
pub mod resp;
pub mod time;
pub mod topology;
pub mod unresponsive;
pub mod wire;
pub mod workers;
pub mod zookeeper_wire;

pub use acl::{more_rules, url_of};
pub use clock::Clock;
pub use fake::FakeServer;
pub use handover::{begun, local_handover, one_place_each, options, permits_passed_on};
pub use load::Load;
pub use nodes::Nodes;
pub use proxy::{Direction, Proxy, Traffic};
pub use redis::{RedisServer, ServerCertificate, Setup, assert_is_never_lowered};
pub use resp::{Raw, Reply};
pub use time::{AT_ONCE, assert_pending, at_once, eventually, within};
pub use topology::{Cluster, Sentinels};
pub use workers::{Worker, say, worker_args};
