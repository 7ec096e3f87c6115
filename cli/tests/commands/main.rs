//! `run`, `once` and `elect` as real processes on real stores, with commands that are real processes too.

#[path = "../../../tests/support/etcd.rs"]
mod etcd;
#[path = "../../../tests/support/mysql.rs"]
mod mysql;
#[path = "../../../tests/support/postgres.rs"]
mod postgres;
mod program;
mod run;
mod schedules;
#[path = "../../../tests/support/sqlite.rs"]
mod sqlite;
mod stores;
mod terminal;
#[path = "../../../tests/support/zookeeper.rs"]
mod zookeeper;
