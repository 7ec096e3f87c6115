//! One established connection to one server: all that this crate needs from a client library.
//!
//! There is one implementation per library (`fred`, `redis_rs`). A link is never reconnected: when it has ended, the
//! `connection` opens another one. So whatever was sent on a link is executed before that link's end, or not at all
//! once the server has closed it.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use tokio_util::sync::CancellationToken;

use super::refusal;
use super::script::{Arguments, Script};
use super::target::{Login, Server};
use crate::backend::BackendError;

pub(super) type Opened<'a> = BoxFuture<'a, Result<Arc<dyn Link>, CallError>>;

/// Opens connections to servers.
pub(super) trait Connector: fmt::Debug + Send + Sync {
    /// Connects, authenticates, selects the database, and switches to RESP3. Fails within the timeout for connecting.
    /// The future must not be dropped before it is done. So many messages may wait until they are read; if more arrive,
    /// that is noticed ([`Message::Lost`]). All of them have their place from the beginning.
    fn open<'a>(&'a self, server: &'a Server, login: &'a Login, messages: usize) -> Opened<'a>;
}

/// Opens connections with one client library.
pub(super) trait Library: fmt::Debug + Send + Sync {
    /// As [`Connector::open`], at an address of the server.
    fn open<'a>(&'a self, address: &'a Address, login: &'a Login, messages: usize) -> Opened<'a>;
}

/// Where a server is reached.
#[derive(Clone, Debug)]
pub(super) enum Address {
    /// The host is the one that a certificate must name.
    Tcp {
        host: String,
        at: SocketAddr,
    },
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { at, .. } => at.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// An answer of the server, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Nil,
    Integer(i64),
    Text(Bytes),
    List(Vec<Self>),
}

impl Value {
    pub(super) fn as_bytes(&self) -> Option<&[u8]> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        self.as_bytes().and_then(|text| str::from_utf8(text).ok())
    }

    /// A number, also one that is written as a text.
    pub(super) fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            _ => self.as_str()?.parse().ok(),
        }
    }

    pub(super) fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Integer(number) => u64::try_from(*number).ok(),
            // From the bytes: a token comes with every grant.
            Self::Text(digits) if !digits.is_empty() => digits.iter().try_fold(0_u64, |number, digit| {
                number.checked_mul(10)?.checked_add(char::from(*digit).to_digit(10)?.into())
            }),
            _ => None,
        }
    }

    /// The items of a list; of anything else, none.
    pub(super) fn as_list(&self) -> &[Self] {
        if let Self::List(items) = self { items } else { &[] }
    }
}

/// What a server will answer to a command.
pub(super) type Reply<'a> = BoxFuture<'a, Result<Value, CallError>>;

/// An established connection. Nothing is sent twice.
///
/// Commands are sent in the order in which their futures are polled for the first time. A future that is dropped after
/// that does not withdraw its command. Each fails after the timeout for replies, and soon after the connection has
/// ended.
pub(super) trait Link: fmt::Debug + Send + Sync {
    /// Runs a script that the server should know.
    fn evalsha(&self, script: &'static Script, arguments: Arguments) -> Reply<'_>;

    /// Runs a script, and sends its text.
    fn eval(&self, script: &'static Script, arguments: Arguments) -> Reply<'_>;

    /// Sends ASKING and a script with its text, and nothing in between: the node serves a slot that is being moved to
    /// it.
    fn eval_asking(&self, script: &'static Script, arguments: Arguments) -> Reply<'_>;

    /// Any other command, by its words.
    fn command(&self, words: Vec<String>) -> Reply<'_>;

    /// Subscribes to a channel. The server may not have processed it when this is done, but it has when a later command
    /// is answered.
    fn subscribe<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, Result<(), CallError>>;

    /// The opposite.
    fn unsubscribe<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, Result<(), CallError>>;

    /// The messages of all channels from now on, until the connection ends.
    fn messages(&self) -> BoxStream<'static, Message>;

    /// Cancelled when the connection has ended.
    fn ended(&self) -> &CancellationToken;

    /// Closes the connection cleanly. Takes no longer than twice the timeout for replies.
    fn close(&self) -> BoxFuture<'_, ()>;

    /// Closes the connection at once.
    fn abort(&self);
}

/// Sends a command on a link.
pub(super) async fn command(link: &dyn Link, words: &[&str]) -> Result<Value, CallError> {
    link.command(words.iter().map(|word| (*word).to_owned()).collect()).await
}

/// What arrives on a link that is subscribed.
#[derive(Debug)]
pub(super) enum Message {
    /// A message of a channel.
    Text { channel: Bytes, text: Bytes },
    /// This many messages were lost.
    Lost(u64),
}

/// Why a call failed, by what is known about its execution.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum CallError {
    /// It has certainly not been executed.
    #[error("{0}")]
    NotSent(String),
    /// It was not answered in time.
    #[error("{0}")]
    Timeout(String),
    /// The connection was lost.
    #[error("{0}")]
    Lost(String),
    /// The server has answered with an error.
    #[error("{0}")]
    Answer(String),
}

impl CallError {
    /// The error that a server has sent. Until version 6.2, Redis reports the error of a command in a script as one of
    /// the script, `ERR Error running script (call to f_1234): @user_script:6: @user_script: 6: -OOM ...`: later ones
    /// send the command's own.
    pub(super) fn answer(text: &str) -> Self {
        let of_command = text.split_once("@user_script: ").and_then(|(_, rest)| {
            let rest = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
            rest.strip_prefix(": -")
        });
        Self::Answer(of_command.unwrap_or(text).to_owned())
    }

    /// Whether the call may have been executed, although there was no answer.
    pub(super) const fn is_unanswered(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Lost(_))
    }

    /// Whether the server says that another one serves the slot.
    pub(super) fn is_redirection(&self) -> bool {
        self.answers("MOVED ") || self.answers("ASK ")
    }

    /// Whether the server declines the connection, or what belongs to opening it, for a reason that can be over within
    /// seconds.
    pub(super) fn is_refusal_for_now(&self) -> bool {
        matches!(self, Self::Answer(text) if refusal::of_connection_is_for_now(text))
    }

    /// Whether the server has answered with an error that starts with this word.
    pub(super) fn answers(&self, word: &str) -> bool {
        matches!(self, Self::Answer(text) if text.starts_with(word))
    }
}

impl From<CallError> for BackendError {
    fn from(error: CallError) -> Self {
        match &error {
            CallError::NotSent(_) => Self::NotSent { source: error.into() },
            CallError::Timeout(_) | CallError::Lost(_) => Self::Unanswered { source: error.into() },
            CallError::Answer(text) if text.contains("WRONGTYPE") => Self::WrongType { source: error.into() },
            CallError::Answer(text) if refusal::is_for_now(text) => {
                Self::RefusedForNow { source: error.into() }
            }
            CallError::Answer(_) => Self::Refused { source: error.into() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_commands_are_taken_out_of_those_of_scripts() {
        let of_6_2 = "ERR Error running script (call to f_5b18): @user_script:6: @user_script: 6: ";
        for (sent, text) in [
            ("OOM command not allowed when used memory > 'maxmemory'.", None),
            (&*format!("{of_6_2}-OOM command not allowed"), Some("OOM command not allowed")),
            (&*format!("{of_6_2}-READONLY You can't write"), Some("READONLY You can't write")),
            // Of the script itself.
            ("ERR Error running script (call to f_5b18): @user_script:6: attempt to index a nil value", None),
            (&*format!("{of_6_2}Unknown Redis command called from Lua script"), None),
        ] {
            let CallError::Answer(read) = CallError::answer(sent) else { panic!("{sent}") };
            assert_eq!(read, text.unwrap_or(sent));
        }
    }

    #[test]
    fn a_number_is_read_from_its_digits_and_from_nothing_else() {
        let read = |text: &'static str| Value::Text(Bytes::from_static(text.as_bytes())).as_u64();
        assert_eq!(read("0"), Some(0));
        assert_eq!(read("1764090000123456"), Some(1_764_090_000_123_456));
        assert_eq!(read("18446744073709551615"), Some(u64::MAX));
        for text in ["", "18446744073709551616", "-1", "+1", "1.5", "1e3", " 1", "1 ", "é"] {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(Value::Integer(7).as_u64(), Some(7));
        assert_eq!((Value::Integer(-7).as_u64(), Value::Nil.as_u64()), (None, None));
    }
}
