//! Several independent servers, the nodes of a Redlock.

use leasehold::Client;

use super::redis::{RedisServer, Setup};

/// The servers.
#[derive(Debug)]
pub struct Nodes(pub Vec<RedisServer>);

impl Nodes {
    /// So many servers, or `None` if this machine has none.
    #[track_caller]
    pub fn start_or_skip(left_out: &str, count: usize) -> Option<Self> {
        (0..count).map(|_| RedisServer::start_or_skip(left_out)).collect::<Option<_>>().map(Self)
    }

    /// The same with a [`Setup`] for each.
    #[track_caller]
    pub fn start_with_or_skip(left_out: &str, setups: Vec<Setup>) -> Option<Self> {
        let started = setups.into_iter().map(|setup| RedisServer::start_with_or_skip(left_out, setup));
        started.collect::<Option<_>>().map(Self)
    }

    pub fn url(&self) -> String {
        url(self.0.iter().map(RedisServer::port))
    }

    /// A client that has enough time to connect on a busy machine.
    pub async fn connect(&self) -> Client {
        let url = format!("{}?connect_timeout=10s", self.url());
        Client::connect(&url).await.expect("the nodes accept clients")
    }

    /// What stands under a key on each node that runs.
    pub fn values(&self, key: &str) -> Vec<Option<String>> {
        self.0.iter().map(|server| server.raw().get(key)).collect()
    }

    /// The keys of each node, without those that remember tokens, or leases that were released by force.
    pub fn keys(&mut self) -> Vec<Vec<String>> {
        let running = self.0.iter_mut().filter_map(|server| server.is_alive().then_some(server));
        running.map(|server| without_memories(server.raw().keys("*"))).collect()
    }
}

fn without_memories(keys: Vec<String>) -> Vec<String> {
    keys.into_iter().filter(|key| !key.ends_with(":fence") && !key.ends_with(":revoked")).collect()
}

/// The URL of a Redlock on these ports.
pub fn url(ports: impl Iterator<Item = u16>) -> String {
    url_of_hosts(ports.map(|port| format!("127.0.0.1:{port}")))
}

/// The URL of a Redlock on these hosts with their ports.
pub fn url_of_hosts(hosts: impl IntoIterator<Item = impl ToString>) -> String {
    let hosts: Vec<_> = hosts.into_iter().map(|host| host.to_string()).collect();
    format!("redlock://{}{}", super::acl::login(), hosts.join(","))
}
