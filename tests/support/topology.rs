//! Several servers that belong together: a cluster, or a primary with its replicas and sentinels.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::acl;
use super::redis::{RedisServer, ServerCertificate, Setup};
use super::resp::{Raw, Reply};

/// How long servers may take to agree with each other.
const AGREE: Duration = Duration::from_secs(30);
const SLOTS: u32 = 16_384;

#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + AGREE;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {AGREE:?}");
        sleep(Duration::from_millis(20));
    }
}

/// Three primaries, each with a replica. Servers 0 to 2 are the first primaries, 3 to 5 their replicas.
#[derive(Debug)]
pub struct Cluster {
    pub nodes: Vec<RedisServer>,
}

impl Cluster {
    const PRIMARIES: usize = 3;

    #[track_caller]
    pub fn start_or_skip(left_out: &str) -> Option<Self> {
        Self::start_with_or_skip(left_out, None)
    }

    /// The same, and if there is a certificate, the nodes speak TLS to each other and to those who want it.
    #[track_caller]
    pub fn start_with_or_skip(left_out: &str, tls: Option<ServerCertificate>) -> Option<Self> {
        let options =
            if tls.is_some() { &["--tls-cluster", "yes", "--tls-replication", "yes"][..] } else { &[] };
        let options = options.iter().map(|&word| word.to_owned()).collect();
        let setup = Setup { cluster: true, tls, options, ..Setup::default() };
        let start = |_| RedisServer::start_with_or_skip(left_out, setup.clone());
        let nodes = (0..2 * Self::PRIMARIES).map(start).collect::<Option<Vec<_>>>()?;
        let cluster = Self { nodes };
        cluster.join();
        Some(cluster)
    }

    fn join(&self) {
        for (n, node) in self.nodes.iter().enumerate() {
            let mut raw = node.raw();
            let epoch = (n + 1).to_string();
            assert_eq!(raw.send(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]), Reply::ok());
            if n < Self::PRIMARIES {
                let share = SLOTS.div_ceil(Self::PRIMARIES as u32);
                let first = share * n as u32;
                let slots: Vec<_> = (first..SLOTS.min(first + share)).map(|slot| slot.to_string()).collect();
                let command: Vec<_> =
                    ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(|s| &**s)).collect();
                assert_eq!(raw.send(&command), Reply::ok());
            }
            let first = self.nodes[0].bus_client_port().to_string();
            assert_eq!(raw.send(&["CLUSTER", "MEET", "127.0.0.1", &first]), Reply::ok());
        }
        let all: BTreeSet<_> = self.nodes.iter().map(id).collect();
        wait_until("all nodes know each other", || self.nodes.iter().all(|node| known(node) == all));
        for (n, node) in self.nodes.iter().enumerate().skip(Self::PRIMARIES) {
            let primary = id(&self.nodes[n - Self::PRIMARIES]);
            assert_eq!(node.raw().send(&["CLUSTER", "REPLICATE", &primary]), Reply::ok());
        }
        wait_until("the cluster serves all slots, and the replicas are in step", || {
            self.nodes.iter().enumerate().all(|(n, node)| {
                let mut raw = node.raw();
                let is_ok = text(&mut raw, &["CLUSTER", "INFO"]).contains("cluster_state:ok");
                let linked = text(&mut raw, &["INFO", "replication"]).contains("master_link_status:up");
                let seen = text(&mut raw, &["CLUSTER", "NODES"]).matches(" slave ").count();
                let seen = seen + text(&mut raw, &["CLUSTER", "NODES"]).matches("myself,slave").count();
                is_ok && seen == Self::PRIMARIES && (linked || n < Self::PRIMARIES)
            })
        });
    }

    pub fn url(&self) -> String {
        let nodes: Vec<_> = self.nodes[..2].iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis-cluster://{}{}", acl::login(), nodes.join(","))
    }

    /// The slot of a key.
    pub fn slot(&self, key: &str) -> u16 {
        self.slot_at(0, key)
    }

    /// The same, asked of this node.
    pub fn slot_at(&self, asked: usize, key: &str) -> u16 {
        let slot = self.nodes[asked].raw().send(&["CLUSTER", "KEYSLOT", key]).int();
        u16::try_from(slot).expect("a slot")
    }

    /// The node that serves a slot, by what the node `asked` says.
    pub fn serving(&self, asked: usize, slot: u16) -> usize {
        let ranges = self.nodes[asked].raw().send(&["CLUSTER", "SLOTS"]).array();
        let port = ranges.into_iter().find_map(|range| {
            let range = range.array();
            let within = (range[0].int()..=range[1].int()).contains(&i64::from(slot));
            within.then(|| range[2].clone().array()[1].int())
        });
        let port = port.unwrap_or_else(|| panic!("nobody serves slot {slot}"));
        self.nodes.iter().position(|node| i64::from(node.port()) == port).expect("one of ours")
    }

    /// Begins to move a slot from one node to another.
    pub fn begin_to_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let (from_id, to_id) = (id(&self.nodes[from]), id(&self.nodes[to]));
        let mut target = self.nodes[to].raw();
        assert_eq!(target.send(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]), Reply::ok());
        let mut source = self.nodes[from].raw();
        assert_eq!(source.send(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]), Reply::ok());
    }

    /// Moves the keys of a slot that has begun to move.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let (number, port) = (slot.to_string(), self.nodes[to].port().to_string());
        let mut source = self.nodes[from].raw();
        loop {
            let keys = source.send(&["CLUSTER", "GETKEYSINSLOT", &number, "100"]).words();
            if keys.is_empty() {
                break;
            }
            let mut command = vec!["MIGRATE", "127.0.0.1", &*port, "", "0", "1000", "KEYS"];
            command.extend(keys.iter().map(|key| &**key));
            // A key may have expired meanwhile.
            let moved = source.send(&command);
            assert!(matches!(moved.text().as_deref(), Some("OK" | "NOKEY")), "{moved:?}");
        }
    }

    /// Says that a slot has been moved, and waits until every node knows.
    ///
    /// A slot that changes hands faster than the nodes hear of each other may end where two nodes take each other for
    /// its owner, for good: the target's configuration epoch has to be above the source's, which it may not have heard
    /// of yet. So both are told again if they have changed their minds.
    pub fn finish_to_move(&self, slot: u16, from: usize, to: usize) {
        self.assign(slot, to, to);
        self.assign(slot, to, from);
        wait_until("all nodes agree where the slot is", || {
            for node in [to, from] {
                if self.serving(node, slot) != to {
                    self.assign(slot, to, node);
                }
            }
            (0..self.nodes.len()).all(|node| self.serving(node, slot) == to)
        });
    }

    /// Tells the node `told` that a slot is at another.
    pub fn assign(&self, slot: u16, to: usize, told: usize) {
        let to = id(&self.nodes[to]);
        let set = self.nodes[told].raw().send(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &to]);
        assert_eq!(set, Reply::ok());
    }

    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_to_move(slot, from, to);
        self.move_keys(slot, from, to);
        self.finish_to_move(slot, from, to);
    }

    /// What each node that answers says of all nodes.
    pub fn views(&self) -> String {
        let view = |node: &RedisServer| {
            let answer = Raw::connect(node.port()).and_then(|mut raw| raw.try_send(&["CLUSTER", "NODES"]));
            let view = answer.map_or_else(|error| error.to_string(), |view| view.text().unwrap_or_default());
            format!("{}:\n{view}\n", node.port())
        };
        self.nodes.iter().map(view).collect()
    }

    /// Every key but the fences of slots.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<_> = self.nodes.iter().flat_map(|node| node.raw().keys("*")).collect();
        keys.retain(|key| !key.ends_with(":fence"));
        keys
    }
}

fn id(node: &RedisServer) -> String {
    text(&mut node.raw(), &["CLUSTER", "MYID"])
}

fn known(node: &RedisServer) -> BTreeSet<String> {
    let nodes = text(&mut node.raw(), &["CLUSTER", "NODES"]);
    let known = nodes.lines().filter(|line| !line.contains("handshake"));
    known.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
}

fn text(raw: &mut Raw, command: &[&str]) -> String {
    raw.send(command).text().unwrap_or_default()
}

/// A primary with two replicas, and three sentinels that watch them under the name `main`.
#[derive(Debug)]
pub struct Sentinels {
    /// The first one is the first primary.
    pub servers: Vec<RedisServer>,
    pub sentinels: Vec<RedisServer>,
}

impl Sentinels {
    #[track_caller]
    pub fn start_or_skip(left_out: &str) -> Option<Self> {
        let primary = RedisServer::start_or_skip(left_out)?;
        let port = primary.port().to_string();
        let replica = || {
            let options = ["--replicaof", "127.0.0.1", &port].map(str::to_owned).to_vec();
            RedisServer::start_with_or_skip(left_out, Setup { options, ..Setup::default() })
        };
        let servers = vec![primary, replica()?, replica()?];
        for server in &servers {
            server.allow(&acl::more_rules("+role"));
        }
        wait_until("the replicas are in step", || {
            servers[1..].iter().all(|server| {
                text(&mut server.raw(), &["INFO", "replication"]).contains("master_link_status:up")
            })
        });
        let rules = format!(
            "sentinel monitor main 127.0.0.1 {port} 2\nsentinel down-after-milliseconds main 500\n\
             sentinel failover-timeout main 3000"
        );
        let sentinel = |_| {
            let sentinel = Some(rules.clone());
            RedisServer::start_with_or_skip(left_out, Setup { sentinel, ..Setup::default() })
        };
        let sentinels = (0..3).map(sentinel).collect::<Option<Vec<_>>>()?;
        wait_until("the sentinels know each other and the replicas", || {
            sentinels.iter().all(|sentinel| {
                let info = text(&mut sentinel.raw(), &["INFO", "sentinel"]);
                info.contains("slaves=2") && info.contains("sentinels=3")
            })
        });
        Some(Self { servers, sentinels })
    }

    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(|one| format!("127.0.0.1:{}", one.port())).collect();
        format!("redis-sentinel://{}{}/main", acl::login(), hosts.join(","))
    }

    /// The server that a sentinel names as the primary.
    pub fn primary(&self, sentinel: usize) -> usize {
        let address = self.sentinels[sentinel].raw().send(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]);
        let port: u16 = address.words()[1].parse().expect("a port");
        self.servers.iter().position(|server| server.port() == port).expect("one of ours")
    }
}
