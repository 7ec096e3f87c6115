//! Reaching a server by whichever of its addresses answers, or a store by whichever of its servers does.
//!
//! One that refuses is passed over at once. One that hangs, or swallows packets, must not cost the whole time limit:
//! the next attempt begins while it is still tried, and the first one that succeeds counts ("Happy Eyeballs", RFC
//! 8305). An attempt should include all that a server that hangs would not do: at least one answer to a request,
//! because the kernel accepts connections for a process that is stopped.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
#[cfg(feature = "_redis")]
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::origin::PerProcess;

/// How long an attempt goes on alone: the "Connection Attempt Delay" that RFC 8305 recommends.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Tries candidates in their order, each with as much of the time limit as is left, and returns the first success. The
/// next attempt begins as soon as all others have failed, or after 250 ms, or after less if there are many candidates:
/// the last one has at least half of the limit. Those that have not answered for half of the limit are tried once more
/// beside that attempt: behind one address there may be several servers, of which one hangs, and a firewall or load
/// balancer may have forgotten one connection.
///
/// # Errors
///
/// Why each of them failed, in their order; `None` for those that had not answered when the time was over.
#[expect(clippy::future_not_send, reason = "it is `Send` if the candidates and the attempts are")]
pub(super) async fn race<C, T, E, F>(
    candidates: impl IntoIterator<Item = C>,
    limit: Duration,
    attempt: impl Fn(C) -> F,
) -> Result<T, Vec<Option<E>>>
where
    C: Clone,
    F: Future<Output = Result<T, E>>,
{
    let candidates: Vec<_> = candidates.into_iter().collect();
    let last = candidates.len().saturating_sub(1);
    let count = u32::try_from(candidates.len()).unwrap_or(u32::MAX);
    let delay = ATTEMPT_DELAY.min(limit / count.saturating_mul(2).max(1));
    let begin = Instant::now();
    let mut failures: Vec<Option<E>> = candidates.iter().map(|_| None).collect();
    let mut attempts = FuturesUnordered::new();
    for (is_repeated, ends) in [(false, begin + limit / 2), (true, begin + limit)] {
        for (index, candidate) in candidates.iter().enumerate() {
            if is_repeated && failures[index].is_some() {
                continue;
            }
            attempts.push(attempt(candidate.clone()).map(move |result| (index, result)));
            let alone_until = if index < last { ends.min(Instant::now() + delay) } else { ends };
            if let Some(success) = first_success(&mut attempts, &mut failures, alone_until).await {
                return Ok(success);
            }
        }
        // The last one may have failed, or need not be repeated.
        if let Some(success) = first_success(&mut attempts, &mut failures, ends).await {
            return Ok(success);
        }
    }
    Err(failures)
}

/// Waits for the first attempt that succeeds, as long as there are any, and notes why others have failed.
async fn first_success<T, E, F>(
    attempts: &mut FuturesUnordered<F>,
    failures: &mut [Option<E>],
    until: Instant,
) -> Option<T>
where
    F: Future<Output = (usize, Result<T, E>)>,
{
    while let Ok(Some((index, result))) = timeout_at(until, attempts.next()).await {
        match result {
            Ok(success) => return Some(success),
            Err(failure) => failures[index] = Some(failure),
        }
    }
    None
}

/// A TCP connection to the first address of a host that accepts one. For protocols in which the next step fails soon
/// enough if the server hangs; otherwise [`race`] whole handshakes over the addresses of [`resolve`].
///
/// # Errors
///
/// If the name is not resolved, or no address accepts within the limit; the text names each, and why.
#[cfg(feature = "_redis")]
pub(super) async fn connect(host: &str, port: u16, limit: Duration) -> io::Result<TcpStream> {
    let end = Instant::now() + limit;
    let late =
        || io::Error::new(io::ErrorKind::TimedOut, format!("`{host}` was not resolved within {limit:?}"));
    let addresses = timeout_at(end, resolve(host, port)).await.map_err(|_| late())??;
    let left = end.saturating_duration_since(Instant::now());
    race(addresses.iter().copied(), left, TcpStream::connect)
        .await
        .map_err(|failures| all_failed(&addresses, failures))
}

#[cfg(feature = "_redis")]
fn all_failed(addresses: &[SocketAddr], mut failures: Vec<Option<io::Error>>) -> io::Error {
    if let [Some(_)] = failures[..] {
        return failures.remove(0).unwrap_or_else(|| io::ErrorKind::TimedOut.into());
    }
    let kind = failures.iter().flatten().last().map_or(io::ErrorKind::TimedOut, io::Error::kind);
    let each = addresses.iter().zip(&failures).map(|(address, failure)| match failure {
        Some(failure) => format!("{address}: {failure}"),
        None => format!("{address}: no answer"),
    });
    io::Error::new(kind, each.collect::<Vec<_>>().join("; "))
}

/// The addresses of a host, in the order in which to try them: as the system sorts them, with the address families
/// alternating (RFC 8305, section 4).
///
/// The system is asked on a thread of its own, because `getaddrinfo` cannot be cancelled and may take many seconds: a
/// runtime that ends waits for its own threads, but not for this one. Callers that ask for the same host at the same
/// time share one thread; one that asks when the system has not answered for 2 s has it asked again, so that a name
/// server that is back is not waited for.
///
/// # Errors
///
/// If the system does not know the host. There is no time limit: see [`race`].
pub(super) async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = literal.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let (answer, answered) = oneshot::channel();
    ask_system(host, answer)?;
    let answer = answered.await.unwrap_or_else(|gone| Err(io::Error::other(gone).to_string()));
    let addresses =
        answer.map_err(|why| io::Error::other(format!("`{host}` could not be resolved: {why}")))?;
    Ok(alternating(&addresses).into_iter().map(|address| SocketAddr::new(address, port)).collect())
}

/// An error as text, because it goes to all who asked.
type Resolved = Result<Vec<IpAddr>, String>;

/// A question that the system has not answered yet.
#[derive(Default)]
struct Question {
    waiting: Vec<oneshot::Sender<Resolved>>,
    /// How many threads ask, and since when the last of them.
    threads: u32,
    asked: Option<Instant>,
}

/// When the system is asked again, and how many threads may wait for its answer about one host.
const ASK_AGAIN: Duration = Duration::from_secs(2);
const MAX_THREADS: u32 = 4;

static ASKING: PerProcess<HashMap<String, Question>> = PerProcess::new();

fn ask_system(host: &str, answer: oneshot::Sender<Resolved>) -> io::Result<()> {
    let is_to_be_asked = ASKING.with(|hosts| match hosts.get_mut(host) {
        Some(question) => question.join(answer),
        None => hosts.entry(host.to_owned()).or_default().join(answer),
    });
    if !is_to_be_asked {
        return Ok(());
    }
    let name = host.to_owned();
    let asking = thread::Builder::new().name("leasehold-resolve".to_owned()).spawn(move || {
        let resolved = system_addresses(&name);
        // The first answer is for all who wait by then. One that comes later is to an earlier question: nobody waits
        // for it, or it is as good as another.
        let question = ASKING.with(|hosts| hosts.remove(&name));
        for answer in question.into_iter().flat_map(|question| question.waiting) {
            // Whoever asked may be gone.
            drop(answer.send(resolved.clone()));
        }
    });
    asking.map(drop).inspect_err(|_| drop(ASKING.with(|hosts| hosts.remove(host))))
}

impl Question {
    /// Adds someone who waits. Returns whether the system is to be asked for them.
    fn join(&mut self, answer: oneshot::Sender<Resolved>) -> bool {
        // Those that have given up need not be kept until the system answers.
        self.waiting.retain(|answer| !answer.is_closed());
        self.waiting.push(answer);
        let is_due = self.asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN);
        if !is_due || self.threads >= MAX_THREADS {
            return false;
        }
        (self.threads, self.asked) = (self.threads + 1, Some(Instant::now()));
        true
    }
}

fn system_addresses(host: &str) -> Resolved {
    let resolved = (host, 0).to_socket_addrs();
    match resolved.map(|found| found.map(|address| address.ip()).collect::<Vec<_>>()) {
        Ok(addresses) if addresses.is_empty() => Err("it has no address".to_owned()),
        resolved => resolved.map_err(|error| error.to_string()),
    }
}

/// The families alternate, beginning with that of the first address; otherwise the order stays the same. Each address
/// is there once.
fn alternating(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let mut seen = Vec::with_capacity(addresses.len());
    for address in addresses {
        if !seen.contains(address) {
            seen.push(*address);
        }
    }
    let Some(first) = seen.first().map(IpAddr::is_ipv6) else { return seen };
    let (same, other): (Vec<_>, Vec<_>) = seen.into_iter().partition(|address| address.is_ipv6() == first);
    let mut sorted = Vec::with_capacity(same.len() + other.len());
    let (mut same, mut other) = (same.into_iter(), other.into_iter());
    loop {
        let pair = (same.next(), other.next());
        if pair == (None, None) {
            return sorted;
        }
        sorted.extend(pair.0);
        sorted.extend(pair.1);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    /// What one candidate does: answers after some time, refuses, hangs, or hangs at the first attempt.
    #[derive(Clone, Copy)]
    enum Server {
        Answers(u64),
        Refuses,
        Hangs,
        HangsOnce,
    }

    async fn call((name, server): (usize, Server), attempts: &AtomicU32) -> Result<usize, &'static str> {
        let attempt = attempts.fetch_add(1, Ordering::Relaxed);
        match server {
            Server::HangsOnce if attempt > 0 => Ok(name),
            Server::HangsOnce => pending().await,
            Server::Answers(millis) => {
                sleep(Duration::from_millis(millis)).await;
                Ok(name)
            }
            Server::Refuses => ready(Err("refused")).await,
            Server::Hangs => pending().await,
        }
    }

    async fn first(servers: &[Server], limit: Duration) -> (Result<usize, Vec<Option<&'static str>>>, u128) {
        let begin = Instant::now();
        let attempts = AtomicU32::new(0);
        let first = race(servers.iter().copied().enumerate(), limit, |server| call(server, &attempts)).await;
        (first, begin.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_hangs_costs_a_share_of_the_limit_wherever_it_stands() {
        use Server::{Answers, Hangs, HangsOnce, Refuses};
        for (servers, limit, wins, after) in [
            (vec![Answers(10)], LIMIT, 0, 10),
            (vec![Refuses, Answers(10)], LIMIT, 1, 10),
            (vec![Hangs, Answers(10)], LIMIT, 1, 260),
            (vec![Answers(300), Answers(10)], LIMIT, 1, 260),
            (vec![Hangs, Refuses, Answers(10)], LIMIT, 2, 510),
            (vec![Hangs, Hangs, Hangs, Hangs, Hangs, Answers(10)], LIMIT, 5, 843),
            (vec![Hangs, Answers(10)], Duration::from_millis(80), 1, 30),
            (vec![HangsOnce], LIMIT, 0, 1000),
            (vec![Refuses, Hangs, Answers(1200)], LIMIT, 2, 1450),
        ] {
            let (first, elapsed) = first(&servers, limit).await;
            assert_eq!(first, Ok(wins));
            assert!(elapsed.abs_diff(after) <= 8, "{elapsed} ms instead of {after}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_returned_in_order_and_at_the_end_of_the_limit() {
        let (outcome, elapsed) = first(&[Server::Hangs, Server::Refuses], LIMIT).await;
        assert_eq!((outcome, elapsed), (Err(vec![None, Some("refused")]), 2000));
        let (outcome, elapsed) = first(&[Server::Refuses, Server::Refuses], LIMIT).await;
        assert_eq!((outcome, elapsed), (Err(vec![Some("refused"); 2]), 0));
        assert_eq!(first(&[], LIMIT).await, (Err(Vec::new()), 0));
    }

    #[test]
    fn families_alternate_and_begin_with_that_of_the_first_address() {
        let parse =
            |text: &str| -> Vec<IpAddr> { text.split(' ').map(|text| text.parse().unwrap()).collect() };
        for (from, to) in [
            ("::1 ::2 10.0.0.1 10.0.0.2 10.0.0.3", "::1 10.0.0.1 ::2 10.0.0.2 10.0.0.3"),
            ("10.0.0.1 10.0.0.1 ::1", "10.0.0.1 ::1"),
            ("10.0.0.2 10.0.0.1", "10.0.0.2 10.0.0.1"),
        ] {
            assert_eq!(alternating(&parse(from)), parse(to));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_system_that_does_not_answer_is_asked_again_when_somebody_asks_and_not_too_often() {
        let mut question = Question::default();
        let mut join = || {
            let (answer, answered) = oneshot::channel();
            (question.join(answer), answered)
        };
        let (asks, first) = join();
        assert!(asks && !join().0, "those who ask at the same time share a thread");
        let mut threads = 1;
        for _ in 0..10 {
            tokio::time::advance(ASK_AGAIN).await;
            threads += u32::from(join().0);
            assert!(!join().0);
        }
        assert_eq!(threads, MAX_THREADS);
        drop(first);
        assert_eq!(question.waiting.iter().filter(|answer| !answer.is_closed()).count(), 0);
    }

    #[tokio::test]
    async fn addresses_need_no_resolution_and_an_unknown_host_is_named() {
        assert_eq!(resolve("[::1]", 7).await.unwrap(), ["[::1]:7".parse().unwrap()]);
        assert_eq!(resolve("127.0.0.9", 7).await.unwrap(), ["127.0.0.9:7".parse().unwrap()]);
        let error = resolve("no such host", 7).await.unwrap_err().to_string();
        assert!(error.contains("`no such host` could not be resolved"), "{error}");
    }
}
