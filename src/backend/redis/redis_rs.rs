//! Links of [redis-rs](https://docs.rs/redis). The only module that uses it.
//!
//! Properties of its multiplexed connection, and how they are handled here:
//!
//! * It is driven by a future that ends with the connection: a task of the link, which is aborted with it.
//! * A command is queued when its future is polled for the first time. While the queue is full, those that wait for
//!   room are queued in the order in which they came.
//! * A command whose future is dropped before the command is written is not sent; later, its answer is dropped.
//! * It splits errors of the server into code and details: they are joined again.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo,
    RedisError, Value as RedisValue,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::{AbortHandle, unconstrained};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::connection::Timeouts;
use super::link::{Address, CallError, Library, Link, Message, Opened, Reply, Value};
use super::script::{Arguments, Script};
use super::target::{Login, Server, Target, Topology};
use super::tls::Tls;
use crate::error::Error;
use crate::runtime::spawn;

/// How many commands may wait in the library's queue before others wait for room in it.
const QUEUED_COMMANDS: usize = 4096;

/// The target of a redis-rs client.
pub(super) fn target(client: &redis::Client) -> Result<Target, Error> {
    let info = client.get_connection_info();
    let server = match info.addr() {
        ConnectionAddr::Tcp(host, port)
        | ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None } => {
            Server::Tcp { host: host.clone(), port: *port }
        }
        ConnectionAddr::Unix(path) => Server::Unix(path.clone()),
        address => {
            // Certificates cannot be taken out of it.
            let reason = "TLS with settings of redis-rs: pass certificates to `RedisBuilder::tls`".to_owned();
            return Err(Error::Unsupported { store: address.to_string(), reason });
        }
    };
    let tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
    let settings = info.redis_settings();
    let database = u8::try_from(settings.db());
    let database = database.map_err(|_| Error::invalid("database", "it is not a number from 0 to 255"))?;
    let login = Login {
        user: settings.username().map(str::to_owned),
        password: settings.password().map(str::to_owned),
        database: (database > 0).then_some(database),
        ..Login::default()
    };
    Ok(Target { topology: Topology::Single(server), login, tls })
}

/// Opens links.
#[derive(Debug)]
pub(super) struct RedisRsConnector {
    tls: Option<Tls>,
    timeouts: Timeouts,
}

impl RedisRsConnector {
    pub(super) const fn new(tls: Option<Tls>, timeouts: Timeouts) -> Self {
        Self { tls, timeouts }
    }

    async fn open_on(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        login: &Login,
        messages: usize,
    ) -> Result<Arc<dyn Link>, CallError> {
        let mut info = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_skip_set_lib_name()
            .set_db(login.database.unwrap_or_default().into());
        if let Some(user) = &login.user {
            info = info.set_username(user);
        }
        if let Some(password) = &login.password {
            info = info.set_password(password);
        }
        let (messages, _) = broadcast::channel(messages);
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(self.timeouts.reply))
            .set_pipeline_buffer_size(QUEUED_COMMANDS)
            .set_push_sender(messages.clone());
        let opened = MultiplexedConnection::new_with_config(&info, stream, config);
        let opened = timeout(self.timeouts.connect, opened).await;
        let (connection, driver) = match opened {
            Ok(opened) => opened.map_err(|error| sort(&error))?,
            Err(late) => return Err(CallError::Timeout(late.to_string())),
        };
        let ended = CancellationToken::new();
        // Dropped with the task, perhaps because its runtime ends.
        let on_end = ended.clone().drop_guard();
        let driver = spawn(async move {
            driver.await;
            drop(on_end);
        });
        let (reply_timeout, abort) = (self.timeouts.reply, driver.abort_handle());
        Ok(Arc::new(RedisRsLink { connection, messages, reply_timeout, ended, abort }))
    }
}

impl Library for RedisRsConnector {
    fn open<'a>(&'a self, address: &'a Address, login: &'a Login, messages: usize) -> Opened<'a> {
        async move {
            match address {
                Address::Tcp { host, at } => {
                    let stream = connected(self.timeouts, TcpStream::connect(*at)).await?;
                    stream.set_nodelay(true).map_err(|error| CallError::Lost(error.to_string()))?;
                    match &self.tls {
                        Some(tls) => {
                            let stream = connected(self.timeouts, tls.connect(host, stream)).await?;
                            self.open_on(stream, login, messages).await
                        }
                        None => self.open_on(stream, login, messages).await,
                    }
                }
                #[cfg(unix)]
                Address::Unix(path) => {
                    let stream = connected(self.timeouts, UnixStream::connect(path)).await?;
                    self.open_on(stream, login, messages).await
                }
                #[cfg(not(unix))]
                Address::Unix(_) => Err(CallError::NotSent("this platform has no Unix sockets".to_owned())),
            }
        }
        .boxed()
    }
}

async fn connected<S>(
    timeouts: Timeouts,
    connecting: impl Future<Output = std::io::Result<S>>,
) -> Result<S, CallError> {
    match timeout(timeouts.connect, connecting).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(CallError::Lost(error.to_string())),
        Err(late) => Err(CallError::Timeout(late.to_string())),
    }
}

struct RedisRsLink {
    connection: MultiplexedConnection,
    messages: broadcast::Sender<PushInfo>,
    reply_timeout: Duration,
    ended: CancellationToken,
    /// Of the driver.
    abort: AbortHandle,
}

impl RedisRsLink {
    fn send(&self, command: Cmd) -> Reply<'_> {
        let mut connection = self.connection.clone();
        let sent = async move {
            connection.send_packed_command(&command).await.map_err(|error| sort(&error)).and_then(read)
        };
        in_order(sent)
    }
}

impl Link for RedisRsLink {
    fn evalsha(&self, script: &'static Script, arguments: Arguments) -> Reply<'_> {
        self.send(call("EVALSHA", script.hash(), &arguments))
    }

    fn eval(&self, script: &'static Script, arguments: Arguments) -> Reply<'_> {
        self.send(call("EVAL", script.source(), &arguments))
    }

    fn eval_asking(&self, script: &'static Script, arguments: Arguments) -> Reply<'_> {
        let mut connection = self.connection.clone();
        in_order(async move {
            let mut pipeline = redis::pipe();
            pipeline.cmd("ASKING").add_command(call("EVAL", script.source(), &arguments));
            let answers = connection.send_packed_commands(&pipeline, 0, 2).await;
            let answer = answers.map_err(|error| sort(&error))?.pop();
            answer.map_or_else(|| Err(CallError::Lost("no answer to EVAL".to_owned())), read)
        })
    }

    fn command(&self, words: Vec<String>) -> Reply<'_> {
        let mut command = Cmd::new();
        for word in &words {
            command.arg(word);
        }
        self.send(command)
    }

    fn subscribe<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, Result<(), CallError>> {
        let mut connection = self.connection.clone();
        async move { connection.subscribe(channel).await.map_err(|error| sort(&error)) }.boxed()
    }

    fn unsubscribe<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, Result<(), CallError>> {
        let mut connection = self.connection.clone();
        async move { connection.unsubscribe(channel).await.map_err(|error| sort(&error)) }.boxed()
    }

    fn messages(&self) -> BoxStream<'static, Message> {
        let messages = stream::unfold(self.messages.subscribe(), |mut messages| async {
            let message = loop {
                match messages.recv().await {
                    Ok(PushInfo { kind: PushKind::Message, mut data }) => {
                        let (text, channel) = (data.pop().map(read), data.pop().map(read));
                        if let (Some(Ok(Value::Text(text))), Some(Ok(Value::Text(channel)))) = (text, channel)
                        {
                            break Message::Text { channel, text };
                        }
                    }
                    // Confirmations of the subscription.
                    Ok(_) => {}
                    Err(RecvError::Lagged(lost)) => break Message::Lost(lost),
                    Err(RecvError::Closed) => return None,
                }
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
            if let Err(error) = self.command(vec!["QUIT".to_owned()]).await {
                tracing::debug!(%error, "connection closed without QUIT");
            }
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

impl fmt::Debug for RedisRsLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisRsLink").field("ended", &self.ended.is_cancelled()).finish_non_exhaustive()
    }
}

impl Drop for RedisRsLink {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

/// Sends when it is polled for the first time, even if its task has used up its budget and the client library's queue
/// is therefore said to be full: a command that is sent later must not overtake it.
fn in_order<'a, T>(command: impl Future<Output = T> + Send + 'a) -> BoxFuture<'a, T> {
    unconstrained(command).boxed()
}

/// A call of a script.
fn call(name: &str, script: &Bytes, Arguments { keys, args }: &Arguments) -> Cmd {
    let mut command = Cmd::new();
    command.arg(name).arg(&script[..]).arg(keys.len());
    for text in keys.iter().chain(args) {
        command.arg(&text[..]);
    }
    command
}

fn read(value: RedisValue) -> Result<Value, CallError> {
    let list =
        |items: Vec<RedisValue>| items.into_iter().map(read).collect::<Result<_, _>>().map(Value::List);
    Ok(match value {
        RedisValue::Nil => Value::Nil,
        RedisValue::Int(number) => Value::Integer(number),
        RedisValue::Boolean(is_true) => Value::Integer(is_true.into()),
        RedisValue::BulkString(text) => Value::Text(text.into()),
        RedisValue::SimpleString(text) | RedisValue::VerbatimString { text, .. } => Value::Text(text.into()),
        RedisValue::Okay => Value::Text(Bytes::from_static(b"OK")),
        RedisValue::Double(number) => Value::Text(number.to_string().into()),
        RedisValue::Array(items) | RedisValue::Set(items) | RedisValue::Push { data: items, .. } => {
            list(items)?
        }
        RedisValue::Map(pairs) => list(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect())?,
        RedisValue::Attribute { data, .. } => read(*data)?,
        RedisValue::ServerError(error) => return Err(answer(error.code(), error.details())),
        value => return Err(CallError::Lost(format!("an answer of an unknown type: {value:?}"))),
    })
}

/// An error of the server, as it has sent it.
fn answer(code: &str, details: Option<&str>) -> CallError {
    CallError::answer([code, details.unwrap_or_default()].join(" ").trim_end())
}

/// Classifies errors by what they say about the command.
fn sort(error: &RedisError) -> CallError {
    if let Some(code) = error.code() {
        return answer(code, error.detail());
    }
    let text = error.to_string();
    if let redis::ErrorKind::RESP3NotSupported = error.kind() {
        CallError::Answer("ERR unknown command `HELLO`".to_owned())
    } else if error.is_timeout() {
        CallError::Timeout(text)
    } else if let redis::ErrorKind::AuthenticationFailed = error.kind() {
        CallError::answer(error.detail().unwrap_or(&text))
    } else {
        CallError::Lost(text)
    }
}
