//! What every store whose record is a row on a server promises, whatever the server, its addresses and its neighbours
//! do for some seconds: nobody is told of a failure.

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use futures::{FutureExt, StreamExt};
use leasehold::{Client, DistMutex, Error, MutexOptions};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use leasehold_support::faults::{SECOND, SOON, ms};
use leasehold_support::hosts::{Fault, FaultyAddress, is_run_with_hosts};
use leasehold_support::refusing_proxy::{Mode, Refusable, RefusingProxy};
use leasehold_support::wire::{self, Wire};
use leasehold_support::{eventually, within};

/// For how many seconds three instances of a service are tried, if not for 8. If it is set, it is also seen that the
/// sessions of a burst are closed, which takes half a minute.
const SERVICE: &str = "LEASEHOLD_SERVICE_SECONDS";
const FAULTS: usize = 5;
const USER: &str = "leasehold";
const PASSWORD: &str = "hunter2";

/// A database server for one test.
pub(crate) trait SqlServer: Sized + Send + Sync {
    type Protocol: Refusable;

    /// The scheme of its URLs.
    const SCHEME: &str;

    /// Each fault has an address of its own, from this one.
    const FIRST_ADDRESS: u8;

    /// What it says to new sessions: that it is not ready, and that it does not know the user.
    const REFUSALS: [&str; 2];

    /// Locks the rows of keys that contain `held up`, for a while.
    const HOLDS_UP: &str;

    /// Its settings, such that sessions are closed which have been idle for a second.
    const IDLE_LIMIT: &[&str];

    /// Its settings for sessions of other programs.
    const SETTINGS_OF_OTHERS: &[&str];

    fn start_or_skip(left_out: &str) -> Option<Self> {
        Self::start_with_or_skip(left_out, &[])
    }

    fn start_with_or_skip(left_out: &str, settings: &[&str]) -> Option<Self>;

    fn port(&self) -> u16;

    /// Has the superuser execute statements, which may fail because their session is ended by others.
    async fn change(&self, statements: &str);

    /// A user for the tables there are, with this many sessions at most.
    async fn create_user(&self, name: &str, sessions: u32);

    /// The sessions of a user that this crate has opened.
    async fn sessions(&self, user: &str) -> Vec<String>;

    async fn end_session(&self, session: &str);

    /// Whether it has refused a session because its user had as many as it may have.
    async fn has_refused_a_session(&self) -> bool;

    /// A client of it, after which the tables are there.
    async fn client(&self) -> Client {
        Client::connect(&url::<Self>(&format!("127.0.0.1:{}", self.port()))).await.expect("it answers")
    }
}

pub(crate) fn url<S: SqlServer>(hosts: &str) -> String {
    url_of::<S>(USER, hosts)
}

fn url_of<S: SqlServer>(user: &str, hosts: &str) -> String {
    format!("{}://{user}:{PASSWORD}@{hosts}/{USER}", S::SCHEME)
}

async fn client_through<S: SqlServer>(port: u16) -> Client {
    Client::connect(&url::<S>(&format!("127.0.0.1:{port}"))).await.expect("it answers")
}

pub(crate) fn mutex(client: &Client, name: &str) -> DistMutex {
    client.mutex_with(name, MutexOptions::new().ttl(SECOND * 10)).expect("valid")
}

pub(crate) async fn lock_and_release(client: &Client, name: &str) {
    let guard = within(SOON, mutex(client, name).lock()).await.expect("free");
    within(SOON, guard.release()).await.expect("held");
}

pub(crate) fn assert_stayed_connected(
    client: &Client,
    states: &mut (impl futures::Stream<Item = leasehold::StoreState> + Unpin),
) {
    while let Some(Some(state)) = states.next().now_or_never() {
        assert!(state.status.is_connected(), "{state:?}");
    }
    assert!(client.state().status.is_connected(), "{:?}", client.state());
}

// Servers and addresses

fn faulty<S: SqlServer>(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, S::FIRST_ADDRESS + n as u8)
}

fn faults(port: u16) -> [Fault; FAULTS] {
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    [Fault::Swallows, Fault::Hangs, Fault::Refuses, Fault::Drops, Fault::Late(SECOND, server)]
}

/// A client connects and works within the limits that it has unless others are set.
async fn works<S: SqlServer>(hosts: &str, case: &str) {
    let client = Client::connect(&url::<S>(hosts)).await.unwrap_or_else(|error| panic!("{case}: {error}"));
    lock_and_release(&client, case).await;
    client.shutdown().await.expect("released");
}

pub(crate) async fn each_server_of_a_list_may_hang_refuse_drop_or_answer_late<S: SqlServer>() {
    let Some(server) = S::start_or_skip("lists of servers") else { return };
    let port = server.port();
    server.client().await.shutdown().await.expect("closed");
    let each = faults(port).into_iter().enumerate().map(async |(n, fault)| {
        let (first, sound) = (format!("{}:{port}", faulty::<S>(n)), format!("127.0.0.1:{port}"));
        let _faulty = FaultyAddress::new((faulty::<S>(n), port).into(), fault).await;
        for hosts in [format!("{first},{sound}"), format!("{sound},{first}")] {
            works::<S>(&hosts, &format!("{fault:?} {hosts}")).await;
        }
    });
    join_all(each).await;
}

pub(crate) fn each_address_of_a_name_may_hang_refuse_drop_or_answer_late<S: SqlServer>() {
    const TEST: &str = "each_address_of_a_name_may_hang_refuse_drop_or_answer_late";
    let names = (0..FAULTS).map(|n| {
        let faulty = faulty::<S>(n);
        format!("first{n}.test={faulty},127.0.0.1 last{n}.test=127.0.0.1,{faulty} ")
    });
    let hosts = format!("{}families.test=::1,127.0.0.1 silent.test=", names.collect::<String>());
    if !is_run_with_hosts(TEST, &hosts) {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    runtime.block_on(async {
        let Some(server) = S::start_or_skip("names with several addresses") else { return };
        let port = server.port();
        server.client().await.shutdown().await.expect("closed");
        let each = faults(port).into_iter().enumerate().map(async |(n, fault)| {
            let _faulty = FaultyAddress::new((faulty::<S>(n), port).into(), fault).await;
            for name in ["first", "last"] {
                works::<S>(&format!("{name}{n}.test:{port}"), &format!("{fault:?} {name}")).await;
            }
        });
        join_all(each).await;
        // The first family swallows everything.
        let _faulty = FaultyAddress::new((std::net::Ipv6Addr::LOCALHOST, port).into(), Fault::Swallows).await;
        works::<S>(&format!("families.test:{port}"), "two families").await;
        // A name that is not resolved is one server of several.
        works::<S>(&format!("silent.test:{port},127.0.0.1:{port}"), "a silent name").await;
    });
}

/// The first server of a list, and then the only way to the only one.
pub(crate) async fn a_client_whose_server_hangs_drops_refuses_or_is_late_continues<S: SqlServer>() {
    let Some(server) = S::start_or_skip("servers that fail in use") else { return };
    server.client().await.shutdown().await.expect("closed");
    let [not_ready, unknown] = S::REFUSALS;
    let modes =
        [Mode::Hangs, Mode::Drops, Mode::Refuses(not_ready), Mode::Refuses(unknown), Mode::Late(ms(600))];
    let each = modes.into_iter().map(Some).chain([None]).map(async |mode| {
        let case = format!("{mode:?}");
        let first = RefusingProxy::<S::Protocol>::start(server.port()).await;
        let other = mode.map(|_| format!(",127.0.0.1:{}", server.port())).unwrap_or_default();
        let hosts = format!("127.0.0.1:{}{other}", first.port());
        let client = client_of_first::<S>(&first, &hosts).await;
        let held = mutex(&client, &format!("held {case}")).lock().await.expect("free");
        match mode {
            Some(mode) => first.set(mode),
            None => first.swallow(),
        }
        let begun = Instant::now();
        let guard = mutex(&client, &format!("other {case}")).try_lock().await;
        let guard = guard.unwrap_or_else(|error| panic!("{case}: {error}")).expect("free");
        // A reply timeout, and then a new connection.
        assert!(begun.elapsed() < SECOND * 4, "{case}: {:?}", begun.elapsed());
        for guard in [guard, held] {
            guard.release().await.unwrap_or_else(|error| panic!("{case}: {error}"));
        }
    });
    join_all(each).await;
}

/// A busy machine may have it answer too late.
async fn client_of_first<S: SqlServer>(first: &RefusingProxy<S::Protocol>, hosts: &str) -> Client {
    for _ in 0..10 {
        let client = Client::connect(&url::<S>(hosts)).await.expect("all answer");
        if first.open() > 0 {
            return client;
        }
    }
    panic!("the first server of {hosts} is never used");
}

/// The connection is cut before it is stored, or before that is told.
pub(crate) async fn a_release_whose_connection_is_cut_is_done<S: SqlServer>() {
    let Some(server) = S::start_or_skip("releases that are cut off") else { return };
    let wire = Wire::<S::Protocol>::start(server.port()).await;
    let (client, direct) = (client_through::<S>(wire.port()).await, server.client().await);
    for fault in [wire::Fault::Lost, wire::Fault::Unanswered] {
        let guard = mutex(&client, "cut").lock().await.expect("free");
        let _sprung = wire.trap(0, fault);
        let released = within(SOON, guard.release()).await;
        assert!(released.is_ok(), "{fault:?}: {released:?}");
        let next = mutex(&direct, "cut").try_lock().await.expect("it answers");
        next.unwrap_or_else(|| panic!("{fault:?}: it is not free")).release().await.expect("held");
    }
}

// Refusals for some seconds

/// Twenty waiters, a holder, and two releases: one that is awaited, and one that is not.
pub(crate) async fn survive<S: SqlServer>(
    case: &str,
    port: u16,
    direct: &Client,
    begin: impl AsyncFn(),
    end: impl AsyncFn(),
) {
    let client = client_through::<S>(port).await;
    let name = |what: &str| format!("{case} {what}");
    // Not with the options of the waiters, to which it would be passed on without a word to the server.
    let kept = client.mutex_with(&name("kept"), MutexOptions::new().ttl(SECOND * 6)).expect("valid");
    let kept = kept.lock().await.expect("free");
    let lock = async |what| mutex(&client, &name(what)).lock().await.expect("free");
    let (awaited, dropped) = (lock("awaited").await, lock("dropped").await);
    let waiters = twenty_waiters(&client, &name("kept"));
    until_waiting(direct, &name("kept"), 20).await;
    begin().await;
    // Nothing was under way when sessions ended: what was may have been executed, or not.
    sleep(ms(300)).await;
    // Repeated until it is done.
    drop(dropped);
    let awaited = tokio::spawn(awaited.release());
    sleep(ms(2700)).await;
    assert!(kept.is_held(), "{case}");
    end().await;
    let over = Instant::now();
    within(SOON, awaited).await.expect("no panic").unwrap_or_else(|error| panic!("{case}: {error}"));
    until_free(direct, &name("dropped")).await;
    assert_soon_after(case, over);
    assert!(kept.is_held(), "{case}");
    kept.release().await.unwrap_or_else(|error| panic!("{case}: {error}"));
    until_granted(case, waiters).await;
}

/// Within a second, and half of one for a machine that is busy.
pub(crate) fn assert_soon_after(case: &str, over: Instant) {
    assert!(over.elapsed() < ms(1500), "{case}: {:?}", over.elapsed());
}

pub(crate) fn twenty_waiters(client: &Client, name: &str) -> Vec<JoinHandle<Result<(), Error>>> {
    let waiter = |_| {
        let mutex = mutex(client, name);
        tokio::spawn(async move { mutex.lock().await?.release().await })
    };
    (0..20).map(waiter).collect()
}

/// A client waits once for all of its tasks.
pub(crate) async fn until_waiting(direct: &Client, name: &str, tasks: usize) {
    let waited_for = mutex(direct, name);
    eventually(SOON, || async {
        waited_for.inspect().await.is_ok_and(|seen| (1..=tasks).contains(&seen.waiters.len()))
    })
    .await;
}

pub(crate) async fn until_free(direct: &Client, name: &str) {
    let free = mutex(direct, name);
    eventually(SOON, || async { free.inspect().await.is_ok_and(|seen| seen.holders.is_empty()) }).await;
}

pub(crate) async fn until_granted(case: &str, waiters: Vec<JoinHandle<Result<(), Error>>>) {
    for waiter in waiters {
        let waited = within(SOON * 2, waiter).await.expect("no panic");
        waited.unwrap_or_else(|error| panic!("{case}: {error}"));
    }
}

// Sessions

/// Three instances, each as a user that may have two sessions, while rows are held up all the time: further ones are
/// wanted, and refused.
pub(crate) async fn nothing_fails_because_a_further_session_is_refused<S: SqlServer>() {
    let Some(server) = S::start_or_skip("users with two sessions") else { return };
    let direct = server.client().await;
    let seconds = env::var(SERVICE).ok().map(|seconds| seconds.parse().expect("a number"));
    let mut clients = Vec::new();
    for n in 0..3 {
        let user = format!("limited{n}");
        server.create_user(&user, 2).await;
        let url = url_of::<S>(&user, &format!("127.0.0.1:{}", server.port()));
        clients.push(Client::connect(&url).await.expect("two sessions will do"));
    }
    let mut states: Vec<_> = clients.iter().map(Client::state_changes).collect();
    let (is_over, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let tasks = clients.iter().flat_map(|client| (0..12).map(move |n| (client.clone(), n)));
    let tasks: Vec<_> = tasks
        .map(|(client, n)| tokio::spawn(use_locks(client, n, Arc::clone(&is_over), Arc::clone(&calls))))
        .collect();
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(8));
    while Instant::now() < end {
        server.change(S::HOLDS_UP).await;
        sleep(ms(20)).await;
    }
    is_over.store(true, Ordering::SeqCst);
    for task in tasks {
        within(SOON * 2, task).await.expect("no call fails");
    }
    assert!(server.has_refused_a_session().await);
    for (states, client) in states.iter_mut().zip(&clients) {
        assert_stayed_connected(client, states);
    }
    for n in 0..3 {
        assert!(server.sessions(&format!("limited{n}")).await.len() <= 2);
    }
    println!("{} calls of three instances, none has failed", calls.load(Ordering::SeqCst));
    if seconds.is_some() {
        sessions_of_a_burst_are_closed(&server, &direct).await;
    }
}

async fn use_locks(client: Client, n: usize, is_over: Arc<AtomicBool>, calls: Arc<AtomicUsize>) {
    let done = |number| {
        calls.fetch_add(number, Ordering::SeqCst);
    };
    while !is_over.load(Ordering::SeqCst) {
        let mutex = mutex(&client, &format!("held up {}", n % 4));
        let guard = mutex.lock().await.expect("one connection works");
        sleep(ms(5)).await;
        guard.release().await.expect("one connection works");
        done(2);
        if let Some(guard) = mutex.try_lock().await.expect("one connection works") {
            guard.release().await.expect("one connection works");
            done(1);
        }
        done(1);
    }
}

/// While a lock is renewed, with the sessions that there are.
async fn sessions_of_a_burst_are_closed<S: SqlServer>(server: &S, client: &Client) {
    let kept = client.mutex_with("kept", MutexOptions::new().ttl(SECOND * 3)).expect("valid");
    let kept = kept.lock().await.expect("free");
    let is_over = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..12)
        .map(|n| tokio::spawn(use_locks(client.clone(), n, Arc::clone(&is_over), Arc::default())))
        .collect();
    let mut most = 0;
    while most <= 2 {
        server.change(S::HOLDS_UP).await;
        most = most.max(server.sessions(USER).await.len());
    }
    is_over.store(true, Ordering::SeqCst);
    for task in tasks {
        within(SOON * 2, task).await.expect("no call fails");
    }
    let over = Instant::now();
    eventually(SECOND * 35, || async { server.sessions(USER).await.len() == 2 }).await;
    println!("{most} sessions in a burst, 2 of them left {:?} later", over.elapsed());
    assert!(kept.is_held());
    kept.release().await.expect("held");
}

pub(crate) async fn an_idle_limit_of_the_server_closes_no_session_and_a_closed_one_is_replaced_in_silence<
    S: SqlServer,
>() {
    let Some(server) = S::start_with_or_skip("idle limits", S::IDLE_LIMIT) else { return };
    let client = server.client().await;
    lock_and_release(&client, "idle").await;
    let before = server.sessions(USER).await;
    let mut states = client.state_changes();
    sleep(ms(2500)).await;
    assert_eq!(server.sessions(USER).await, before);
    // As a proxy in between does it.
    for session in &before {
        server.end_session(session).await;
    }
    lock_and_release(&client, "idle").await;
    eventually(SOON, || async {
        let now = server.sessions(USER).await;
        now.len() > 1 && now.iter().all(|session| !before.contains(session))
    })
    .await;
    assert_stayed_connected(&client, &mut states);
}

/// Limits on statements, transactions and waiting for locks, and the meaning of what is sent and returned.
pub(crate) async fn settings_for_the_sessions_of_others_fail_nothing<S: SqlServer>() {
    let Some(server) = S::start_with_or_skip("settings of others", S::SETTINGS_OF_OTHERS) else { return };
    let clients = [server.client().await, server.client().await];
    let turns = clients.iter().map(async |client| {
        for _ in 0..5 {
            lock_and_release(client, "held up").await;
        }
    });
    let (_, ()) = tokio::join!(join_all(turns), async {
        for _ in 0..5 {
            server.change(S::HOLDS_UP).await;
        }
    });
    let held = mutex(&clients[0], "quotes ' \" \\ || é").lock().await.expect("free");
    assert!(mutex(&clients[1], "quotes ' \" \\ || é").try_lock().await.expect("it answers").is_none());
    held.release().await.expect("held");
}

pub(crate) async fn clients_that_are_gone_leave_no_session<S: SqlServer>() {
    let Some(server) = S::start_or_skip("sessions of clients that are gone") else { return };
    let holder = server.client().await;
    let held = mutex(&holder, "gone").lock().await.expect("free");
    let mut shut_down = Vec::new();
    for n in 0..10 {
        let client = server.client().await;
        let mutex = mutex(&client, "gone");
        let waiter = tokio::spawn(async move { mutex.lock().await.map(drop) });
        sleep(ms(50)).await;
        waiter.abort();
        if n % 2 == 0 {
            client.shutdown().await.expect("closed");
            shut_down.push(client);
        }
    }
    // Of the holder; a busy machine may have it open a further one.
    eventually(SOON, || async { server.sessions(USER).await.len() <= 3 }).await;
    held.release().await.expect("held");
    holder.shutdown().await.expect("released");
    eventually(SOON, || async { server.sessions(USER).await.is_empty() }).await;
}

/// All of them, as tests.
macro_rules! sql_faults {
    ($server:ty) => {
        sql_faults! {
            @ $server:
            each_server_of_a_list_may_hang_refuse_drop_or_answer_late
            a_client_whose_server_hangs_drops_refuses_or_is_late_continues
            a_release_whose_connection_is_cut_is_done
            nothing_fails_because_a_further_session_is_refused
            an_idle_limit_of_the_server_closes_no_session_and_a_closed_one_is_replaced_in_silence
            settings_for_the_sessions_of_others_fail_nothing
            clients_that_are_gone_leave_no_session
        }

        #[test]
        fn each_address_of_a_name_may_hang_refuse_drop_or_answer_late() {
            sql_faults::each_address_of_a_name_may_hang_refuse_drop_or_answer_late::<$server>();
        }
    };
    (@ $server:ty: $($name:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                sql_faults::$name::<$server>().await;
            }
        )*
    };
}
