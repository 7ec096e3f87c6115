//! The data that the locks protect: numbers, kept by the harness, which no fault reaches. One number of each pair checks
//! tokens, at the read and at the write, and the other one does not. It also passes messages on: each to one worker, of
//! all that collect them.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold::{Fence, FencingToken};
use leasehold_torture::history::Write;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::clock::now;

/// The first of those that check nothing, for the judge, to whom they are data of their own.
const UNCHECKED: u32 = 1_000_000;

/// The numbers, and every attempt to change them.
#[derive(Debug, Default)]
struct Data {
    numbers: HashMap<(u32, bool), Number>,
    writes: Vec<Write>,
    /// The planted mistake: tokens are not checked.
    trusts_everybody: bool,
}

#[derive(Debug, Default)]
struct Number {
    value: u64,
    fence: Fence,
}

impl Data {
    /// The answer to a request; `None` if it is none.
    fn answer(&mut self, request: &str) -> Option<String> {
        let mut words = request.split(' ');
        let what = words.next()?;
        let mut next = || words.next()?.parse::<u64>().ok();
        let (data, is_fenced, token) = (u32::try_from(next()?).ok()?, next()? == 1, next()?);
        let trusts = self.trusts_everybody;
        let number = self.numbers.entry((data, is_fenced)).or_default();
        let is_admitted = !is_fenced || trusts || number.fence.admit(FencingToken::new(token)).is_ok();
        match what {
            "read" if is_admitted => Some(number.value.to_string()),
            "read" => Some("stale".to_owned()),
            "write" => {
                let (read, value) = (next()?, next()?);
                let at = now();
                if is_admitted {
                    number.value = value;
                }
                let data = if is_fenced { data } else { UNCHECKED + data };
                self.writes.push(Write { at, data, is_fenced, token, read, value, is_accepted: is_admitted });
                Some(if is_admitted { "0" } else { "stale" }.to_owned())
            }
            _ => None,
        }
    }
}

/// What those receive that collect messages.
#[derive(Debug, Default)]
struct Post(Mutex<VecDeque<mpsc::UnboundedSender<String>>>);

impl Post {
    fn collectors(&self) -> MutexGuard<'_, VecDeque<mpsc::UnboundedSender<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn collect(&self) -> mpsc::UnboundedReceiver<String> {
        let (to, messages) = mpsc::unbounded_channel();
        self.collectors().push_back(to);
        messages
    }

    /// To one after another; to nobody, if there is nobody.
    fn send(&self, message: &str) {
        let mut collectors = self.collectors();
        while let Some(to) = collectors.pop_front() {
            // Those that are gone are forgotten.
            if to.send(message.to_owned()).is_ok() {
                collectors.push_back(to);
                break;
            }
        }
    }
}

/// The data, on a port of this machine.
#[derive(Debug)]
pub(crate) struct Register {
    port: u16,
    data: Arc<Mutex<Data>>,
    serving: JoinHandle<()>,
}

impl Register {
    pub(crate) async fn start(trusts_everybody: bool) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let data = Arc::new(Mutex::new(Data { trusts_everybody, ..Data::default() }));
        let serving = tokio::spawn(serve(listener, Arc::clone(&data), Arc::default()));
        Ok(Self { port, data, serving })
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// In the order in which they were decided.
    pub(crate) fn writes(&self) -> Vec<Write> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner).writes.clone()
    }
}

impl Drop for Register {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, data: Arc<Mutex<Data>>, post: Arc<Post>) {
    while let Ok((connection, _)) = listener.accept().await {
        let (data, post) = (Arc::clone(&data), Arc::clone(&post));
        tokio::spawn(async move {
            let mut connection = BufReader::new(connection);
            let mut line = String::new();
            while connection.read_line(&mut line).await.is_ok_and(|read| read > 0) {
                let answer = match line.trim_end().split_once(' ') {
                    None if line == COLLECT => return deliver(connection, post.collect()).await,
                    Some(("post", message)) => {
                        post.send(message);
                        Some("0".to_owned())
                    }
                    _ => data.lock().unwrap_or_else(PoisonError::into_inner).answer(line.trim_end()),
                };
                let Some(answer) = answer else { break };
                if connection.write_all(format!("{answer}\n").as_bytes()).await.is_err() {
                    break;
                }
                line.clear();
            }
        });
    }
}

/// A worker collects messages from now on.
const COLLECT: &str = "collect\n";

/// Until the worker is gone.
async fn deliver(mut connection: BufReader<TcpStream>, mut messages: mpsc::UnboundedReceiver<String>) {
    let mut nothing = String::new();
    loop {
        let message = tokio::select! {
            // It says nothing more until it closes the connection.
            _ = connection.read_line(&mut nothing) => return,
            Some(message) = messages.recv() => message,
        };
        if connection.write_all(format!("{message}\n").as_bytes()).await.is_err() {
            return;
        }
    }
}

/// The messages that a worker collects.
#[derive(Debug)]
pub(crate) struct Collected(Lines<BufReader<TcpStream>>);

impl Collected {
    pub(crate) async fn connect(port: u16) -> io::Result<Self> {
        let mut connection = BufReader::new(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?);
        connection.write_all(COLLECT.as_bytes()).await?;
        Ok(Self(connection.lines()))
    }

    /// The next one, if the harness is still there. Cancel safe.
    pub(crate) async fn next(&mut self) -> io::Result<Option<String>> {
        self.0.next_line().await
    }
}

/// A connection of a worker to it, which its tasks share. A request that is given up is carried out all the same.
#[derive(Clone, Debug)]
pub(crate) struct Registered(mpsc::Sender<(String, oneshot::Sender<Option<u64>>)>);

impl Registered {
    pub(crate) async fn connect(port: u16) -> io::Result<Self> {
        let mut connection = BufReader::new(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?);
        let (requests, mut incoming) = mpsc::channel::<(String, oneshot::Sender<Option<u64>>)>(64);
        tokio::spawn(async move {
            while let Some((request, answer)) = incoming.recv().await {
                let mut line = String::new();
                let sent = connection.write_all(request.as_bytes()).await;
                if sent.is_err() || connection.read_line(&mut line).await.is_err() {
                    break;
                }
                // Whoever asked may have given up.
                let _ = answer.send(line.trim_end().parse().ok());
            }
        });
        Ok(Self(requests))
    }

    /// The number; `None` if a newer token was seen.
    pub(crate) async fn read(&self, data: usize, is_fenced: bool, token: u64) -> Option<u64> {
        self.ask(format!("read {data} {} {token}\n", u8::from(is_fenced))).await
    }

    pub(crate) async fn write(&self, data: usize, is_fenced: bool, token: u64, read: u64) {
        let value = read + 1;
        self.ask(format!("write {data} {} {token} {read} {value}\n", u8::from(is_fenced))).await;
    }

    /// Sends a message to one of those that collect them.
    pub(crate) async fn post(&self, message: &str) {
        self.ask(format!("post {message}\n")).await;
    }

    async fn ask(&self, request: String) -> Option<u64> {
        let (answer, answered) = oneshot::channel();
        // The register is there for as long as the harness, and workers end with it.
        self.0.send((request, answer)).await.ok()?;
        answered.await.ok()?
    }
}
