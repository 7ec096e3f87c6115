//! Links of [fred](https://docs.rs/fred). The only module that uses it.
//!
//! Properties of fred, and how they are handled here:
//!
//! * It repeats a command whose reply was lost, reconnects, and sends what was queued in the meantime: all of this is
//!   switched off, so that an unknown outcome is reported as such, and nothing is sent on a connection that the caller
//!   does not know about.
//! * Dropping a future does not withdraw its command: every command also has a timeout within fred.
//! * Dropping its clients leaks the connection, and so does dropping `init` before it is done: a link is opened in a
//!   task that is never dropped, and its driver is aborted with it.
//! * If its driver has ended, commands hang: they fail as soon as that is seen.
//! * It sends HELLO as a line of words, in which credentials with spaces would be several words: they are quoted.
//! * It tries the addresses of a host one after another, without a time limit for each: it is given one address.
//! * By default it waits for 10 s and queues without limit: changed below.

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use ::fred::bytes_utils::Str;
use ::fred::clients::Client;
use ::fred::error::{Error as FredError, ErrorKind};
use ::fred::interfaces::{ClientLike, EventInterface, LuaInterface, PubsubInterface};
use ::fred::types::config::{
    Config, ConnectionConfig, PerformanceConfig, Server as FredServer, ServerConfig, TcpConfig,
};
use ::fred::types::{ClusterHash, CustomCommand, Key, RespVersion, Value as FredValue};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use tokio::sync::broadcast::error::RecvError;
use tokio::task::{AbortHandle, unconstrained};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::connection::Timeouts;
use super::link::{Address, CallError, Library, Link, Message, Opened, Reply, Value};
use super::script::{Arguments, Script};
use super::target::{Login, Server, Target, Topology};
use super::tls::Tls;
use crate::runtime::spawn;

/// How many commands may wait in fred's queue.
const MAX_QUEUED_COMMANDS: usize = 65_536;
/// How many messages each of fred's nine channels has room for, at least: it uses some of them itself, for instance to
/// say how connecting has ended.
const ITS_OWN: usize = 32;

/// The target of a fred configuration, in which the credentials stay.
pub(super) fn target(config: &Config) -> Target {
    let tcp = |server: &FredServer| Server::Tcp { host: server.host.to_string(), port: server.port };
    let topology = match &config.server {
        ServerConfig::Centralized { server } => Topology::Single(tcp(server)),
        ServerConfig::Unix { path } => Topology::Single(Server::Unix(path.clone())),
        ServerConfig::Clustered { hosts, .. } => Topology::Cluster(hosts.iter().map(tcp).collect()),
        ServerConfig::Sentinel { hosts, service_name, .. } => {
            Topology::Sentinel { sentinels: hosts.iter().map(tcp).collect(), service: service_name.clone() }
        }
    };
    let login = Login { database: config.database, ..Login::default() };
    Target { topology, login, tls: config.uses_tls() }
}

/// Opens links with the credentials, the database and the TLS settings of a configuration.
#[derive(Debug)]
pub(super) struct FredConnector {
    config: Config,
    timeouts: Timeouts,
}

impl FredConnector {
    pub(super) fn new(config: &Config, tls: Option<&Tls>, timeouts: Timeouts) -> Self {
        let mut config = config.clone();
        if let Some(tls) = tls {
            tls.add_to(&mut config);
        }
        config.version = RespVersion::RESP3;
        config.fail_fast = true;
        Self { config, timeouts }
    }

    /// A client that is not connected yet.
    fn client(&self, address: &Address, login: &Login, messages: usize) -> Client {
        let mut config = self.config.clone();
        config.server = match address {
            Address::Tcp { host, at } => ServerConfig::Centralized { server: server_at(host, *at) },
            Address::Unix(path) => ServerConfig::Unix { path: path.clone() },
        };
        // The configuration applies unless the URL says something else.
        config.username = login.user.as_deref().map(inline).or(config.username);
        if let Some(password) = &login.password {
            config.password = Some(inline(password));
            config.credential_provider = None;
        }
        config.database = login.database.or(config.database);
        let performance = PerformanceConfig {
            default_command_timeout: self.timeouts.reply,
            broadcast_channel_capacity: messages.max(ITS_OWN),
            ..PerformanceConfig::default()
        };
        let connection = ConnectionConfig {
            connection_timeout: self.timeouts.connect,
            internal_command_timeout: self.timeouts.connect,
            max_command_attempts: 1,
            max_redirections: 0,
            max_command_buffer_len: MAX_QUEUED_COMMANDS,
            tcp: TcpConfig { nodelay: Some(true), ..TcpConfig::default() },
            ..ConnectionConfig::default()
        };
        Client::new(config, Some(performance), Some(connection), None)
    }
}

/// The server at an address, whose certificate must name the host.
fn server_at(host: &str, at: SocketAddr) -> FredServer {
    let (address, port) = (at.ip().to_string(), at.port());
    #[cfg(any(feature = "rustls", feature = "native-tls"))]
    return FredServer::new_with_tls(address, port, Some(host.to_owned()));
    #[cfg(not(any(feature = "rustls", feature = "native-tls")))]
    {
        let _only_for_tls = host;
        FredServer::new(address, port)
    }
}

impl Library for FredConnector {
    fn open<'a>(&'a self, address: &'a Address, login: &'a Login, messages: usize) -> Opened<'a> {
        async move {
            let client = self.client(address, login, messages);
            let driver = client.init().await.map_err(sort)?;
            let (ended, abort) = (CancellationToken::new(), driver.abort_handle());
            // Dropped with the task, perhaps because its runtime ends.
            let on_end = ended.clone().drop_guard();
            spawn(async move {
                if let Ok(Err(error)) = driver.await {
                    tracing::debug!(%error, "a connection ended");
                }
                drop(on_end);
            });
            Ok(Arc::new(FredLink { client, reply_timeout: self.timeouts.reply, ended, abort })
                as Arc<dyn Link>)
        }
        .boxed()
    }
}

struct FredLink {
    client: Client,
    reply_timeout: Duration,
    ended: CancellationToken,
    /// Of the driver.
    abort: AbortHandle,
}

impl FredLink {
    /// Sends when it is polled for the first time, even if its task has used up its budget and `select!` would wait for
    /// that: a command that is sent later must not overtake it. Waits for an answer as long as the connection exists.
    fn call<'a, F: Future<Output = Result<FredValue, FredError>> + Send + 'a>(
        &'a self,
        command: impl FnOnce() -> F + Send + 'a,
    ) -> Reply<'a> {
        in_place(move || {
            unconstrained(async move {
                // `select!` would copy it twice.
                let mut answer = pin!(command());
                tokio::select! {
                    biased;
                    answer = &mut answer => answer.map(read).map_err(sort),
                    () = self.ended.cancelled() => Err(CallError::Lost("the connection was lost".to_owned())),
                }
            })
        })
    }
}

impl Link for FredLink {
    fn evalsha(&self, script: &'static Script, arguments: Arguments) -> Reply<'_> {
        let (keys, args) = split(arguments);
        self.call(move || self.client.evalsha(text(script.hash()), keys, args))
    }

    fn eval(&self, script: &'static Script, arguments: Arguments) -> Reply<'_> {
        let (keys, args) = split(arguments);
        self.call(move || self.client.eval(text(script.source()), keys, args))
    }

    fn eval_asking(&self, script: &'static Script, arguments: Arguments) -> Reply<'_> {
        self.call(move || async move {
            let command = |name| CustomCommand::new_static(name, ClusterHash::FirstKey, false);
            let number = Bytes::from(arguments.keys.len().to_string());
            let words =
                [script.source().clone(), number].into_iter().chain(arguments.keys).chain(arguments.args);
            // A pipeline of fred is sent as one.
            let pipeline = self.client.pipeline();
            let () = pipeline.custom(command("ASKING"), Vec::<FredValue>::new()).await?;
            let () =
                pipeline.custom(command("EVAL"), words.map(FredValue::Bytes).collect::<Vec<_>>()).await?;
            pipeline.last().await
        })
    }

    fn command(&self, words: Vec<String>) -> Reply<'_> {
        let mut words = words.into_iter();
        let name = words.next().unwrap_or_default();
        let command = CustomCommand::new(name, ClusterHash::FirstKey, false);
        self.call(move || self.client.custom::<FredValue, _>(command, words.collect::<Vec<_>>()))
    }

    fn subscribe<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, Result<(), CallError>> {
        async move { self.client.subscribe(channel).await.map_err(sort) }.boxed()
    }

    fn unsubscribe<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, Result<(), CallError>> {
        async move { self.client.unsubscribe(channel).await.map_err(sort) }.boxed()
    }

    fn messages(&self) -> BoxStream<'static, Message> {
        let messages = stream::unfold(self.client.message_rx(), |mut messages| async {
            let message = match messages.recv().await {
                Ok(message) => {
                    Message::Text { channel: message.channel.into_inner(), text: text_of(message.value) }
                }
                Err(RecvError::Lagged(lost)) => Message::Lost(lost),
                Err(RecvError::Closed) => return None,
            };
            Some((message, messages))
        });
        messages.take_until(self.ended.clone().cancelled_owned()).boxed()
    }

    fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async move {
            match timeout(self.reply_timeout, self.client.quit()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "connection closed without QUIT"),
                Err(_) => tracing::debug!("connection closed without an answer to QUIT"),
            }
            // QUIT has been sent; the connection is closed when its driver has ended.
            if timeout(self.reply_timeout, self.ended.cancelled()).await.is_err() {
                self.abort.abort();
            }
        }
        .boxed()
    }

    fn abort(&self) {
        self.abort.abort();
        // The driver itself ends later, or never, if its runtime is not driven.
        self.ended.cancel();
    }
}

impl std::fmt::Debug for FredLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FredLink").field("ended", &self.ended.is_cancelled()).finish_non_exhaustive()
    }
}

impl Drop for FredLink {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

/// Creates a future directly on the heap. Those of fred take 5 KB: `Box::pin` would create them on the stack and copy
/// them, which would evict what the task needs from the cache.
fn in_place<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let place = Box::new_uninit();
    Box::into_pin(Box::write(place, make()))
}

/// fred requires UTF-8.
fn text(bytes: &Bytes) -> Str {
    Str::from_inner(bytes.clone()).unwrap_or_default()
}

/// A word of a command that is sent as a line. Quoted only if necessary, because not every server knows quotes.
fn inline(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\');
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    let quoted = word.bytes().map(|byte| match byte {
        b'"' | b'\\' => format!("\\{}", char::from(byte)),
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    });
    format!("\"{}\"", quoted.collect::<String>())
}

fn split(Arguments { keys, args }: Arguments) -> (Vec<Key>, Vec<FredValue>) {
    (keys.into_iter().map(Key::from).collect(), args.into_iter().map(FredValue::Bytes).collect())
}

fn text_of(value: FredValue) -> Bytes {
    match read(value) {
        Value::Text(text) => text,
        _ => Bytes::new(),
    }
}

fn read(value: FredValue) -> Value {
    match value {
        FredValue::Integer(number) => Value::Integer(number),
        FredValue::Boolean(is_true) => Value::Integer(is_true.into()),
        FredValue::Double(number) => Value::Text(Bytes::from(number.to_string())),
        FredValue::String(text) => Value::Text(text.into_inner()),
        FredValue::Bytes(text) => Value::Text(text),
        FredValue::Array(items) => Value::List(items.into_iter().map(read).collect()),
        FredValue::Map(pairs) => {
            let pairs = pairs.inner().into_iter();
            let items =
                pairs.flat_map(|(key, value)| [read(key.convert().unwrap_or(FredValue::Null)), read(value)]);
            Value::List(items.collect())
        }
        FredValue::Queued | FredValue::Null => Value::Nil,
    }
}

/// Classifies fred's errors by what they say about the command.
fn sort(error: FredError) -> CallError {
    let text = in_words(error.details());
    match error.kind() {
        ErrorKind::Backpressure => CallError::NotSent(text),
        _ if NOT_SENT.iter().any(|words| text.contains(words)) => CallError::NotSent(text),
        ErrorKind::Timeout => CallError::Timeout(text),
        ErrorKind::IO | ErrorKind::Canceled => CallError::Lost(text),
        ErrorKind::Auth => CallError::answer(&text),
        _ if is_server_text(&text) => CallError::answer(&text),
        _ => CallError::Lost(text),
    }
}

/// What an error of the operating system says: fred prints it as `Os { code: 111, .. message: "Connection refused" }`.
fn in_words(details: &str) -> String {
    let quoted = ["message: \"", "error: \""].iter().find_map(|start| details.split_once(start));
    let words = quoted.and_then(|(_, rest)| rest.split_once('"')).map(|(words, _)| words);
    words.unwrap_or(details).to_owned()
}

/// fred's own errors after which the command has certainly not been sent.
const NOT_SENT: [&str; 4] = [
    "Failed to send command to router",
    "Failed to route command",
    "Too many failed write attempts",
    "Too many redirections",
];

/// Whether the error comes from the server: its errors start with a word in capitals.
fn is_server_text(text: &str) -> bool {
    let word = text.split(' ').next().unwrap_or_default();
    word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase())
}
