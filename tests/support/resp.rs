//! The Redis protocol by hand: enough of it to play another library's client, and to count frames on a wire.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::str::from_utf8;
use std::time::Duration;

/// How long a command may take before the test fails.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// What a server answers. RESP3 is read as what RESP2 would have said, except for what is pushed.
#[derive(Clone, PartialEq, Eq)]
pub enum Reply {
    Simple(String),
    Error(String),
    Int(i64),
    /// A string, or nothing. An absent array looks the same.
    Bulk(Option<Vec<u8>>),
    Array(Vec<Reply>),
    /// What RESP3 sends unasked: messages, and what becomes of subscriptions.
    Push(Vec<Reply>),
}

impl Reply {
    pub fn ok() -> Self {
        Self::Simple("OK".to_owned())
    }

    pub const fn nil() -> Self {
        Self::Bulk(None)
    }

    pub fn bulk(text: &str) -> Self {
        Self::Bulk(Some(text.as_bytes().to_vec()))
    }

    /// The text of a simple or bulk string.
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Simple(text) => Some(text.clone()),
            Self::Bulk(Some(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    }

    #[track_caller]
    pub fn int(&self) -> i64 {
        let Self::Int(n) = self else { panic!("expected an integer, got {self:?}") };
        *n
    }

    #[track_caller]
    pub fn array(self) -> Vec<Self> {
        let Self::Array(items) = self else { panic!("expected an array, got {self:?}") };
        items
    }

    /// The items of an array or a push, as texts; nothing for what has no text.
    pub fn words(&self) -> Vec<String> {
        match self {
            Self::Array(items) | Self::Push(items) => {
                items.iter().map(|item| item.text().unwrap_or_default()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Reads one reply off the front of `bytes` and tells how long it is; `None` if more bytes are needed.
    ///
    /// # Panics
    ///
    /// If that is neither RESP2 nor RESP3.
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let line_len = bytes.windows(2).position(|pair| pair == b"\r\n")?;
        let line = from_utf8(&bytes[..line_len]).expect("a header line is text");
        let (kind, rest) = line.split_at_checked(1).unwrap_or_else(|| panic!("an empty header line"));
        let body = &bytes[line_len + 2..];
        let number = || rest.parse::<i64>().unwrap_or_else(|_| panic!("not a number: {line:?}"));
        let (reply, body_len) = match kind {
            "+" => (Self::Simple(rest.to_owned()), 0),
            "-" => (Self::Error(rest.to_owned()), 0),
            ":" => (Self::Int(number()), 0),
            "_" => (Self::nil(), 0),
            "," | "(" => (Self::bulk(rest), 0),
            "#" => (Self::Int(i64::from(rest == "t")), 0),
            "$" | "=" | "!" => match usize::try_from(number()) {
                Err(_) => (Self::nil(), 0),
                Ok(size) => (Self::blob(kind, body.get(..size + 2)?.split_at(size).0), size + 2),
            },
            "*" | "~" | ">" => match usize::try_from(number()) {
                Err(_) => (Self::nil(), 0),
                Ok(count) => {
                    let (items, len) = Self::parse_items(body, count)?;
                    (if kind == ">" { Self::Push(items) } else { Self::Array(items) }, len)
                }
            },
            "%" | "|" => {
                let count = usize::try_from(number()).expect("a map has a size");
                let (items, len) = Self::parse_items(body, 2 * count)?;
                if kind == "%" {
                    (Self::Array(items), len)
                } else {
                    // Attributes precede what they describe.
                    let (reply, reply_len) = Self::parse(&body[len..])?;
                    (reply, len + reply_len)
                }
            }
            _ => panic!("neither RESP2 nor RESP3: {line:?}"),
        };
        Some((reply, line_len + 2 + body_len))
    }

    fn blob(kind: &str, bytes: &[u8]) -> Self {
        match kind {
            "!" => Self::Error(String::from_utf8_lossy(bytes).into_owned()),
            // Verbatim text says of what kind it is: `txt:`.
            "=" => Self::Bulk(Some(bytes.get(4..).unwrap_or_default().to_vec())),
            _ => Self::Bulk(Some(bytes.to_vec())),
        }
    }

    fn parse_items(bytes: &[u8], count: usize) -> Option<(Vec<Self>, usize)> {
        let (mut items, mut len) = (Vec::with_capacity(count), 0);
        for _ in 0..count {
            let (item, item_len) = Self::parse(&bytes[len..])?;
            items.push(item);
            len += item_len;
        }
        Some((items, len))
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simple(text) => write!(f, "+{text}"),
            Self::Error(text) => write!(f, "-{text}"),
            Self::Int(n) => write!(f, ":{n}"),
            Self::Bulk(None) => f.write_str("nil"),
            Self::Bulk(Some(bytes)) => write!(f, "{:?}", String::from_utf8_lossy(bytes)),
            Self::Array(items) => f.debug_list().entries(items).finish(),
            Self::Push(items) => f.debug_tuple("Push").field(items).finish(),
        }
    }
}

/// A connection to a server, with nothing between the test and the wire.
///
/// It blocks: talk to the server itself with it, not to a [`Proxy`](super::Proxy) on the same runtime.
#[derive(Debug)]
pub struct Raw {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Raw {
    pub fn connect(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        Ok(Self { stream, unread: Vec::new() })
    }

    /// Sends one command and waits for its answer.
    #[track_caller]
    pub fn send(&mut self, command: &[&str]) -> Reply {
        self.try_send(command).unwrap_or_else(|error| panic!("{command:?} was not answered: {error}"))
    }

    pub fn try_send(&mut self, command: &[&str]) -> io::Result<Reply> {
        self.write(command)?;
        self.read()
    }

    /// Sends a command without waiting for its answer.
    pub fn write(&mut self, command: &[&str]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", command.len());
        for word in command {
            bytes.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.write_all(bytes.as_bytes())
    }

    /// The next answer, or the next message of a subscription.
    pub fn read(&mut self) -> io::Result<Reply> {
        loop {
            if let Some((reply, len)) = Reply::parse(&self.unread) {
                self.unread.drain(..len);
                return Ok(reply);
            }
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.unread.extend_from_slice(&chunk[..n]),
                // By the end of a child.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The string under `key`.
    #[track_caller]
    pub fn get(&mut self, key: &str) -> Option<String> {
        self.send(&["GET", key]).text()
    }

    /// For how many more milliseconds `key` is kept: -1 if it does not expire, -2 if it is not there.
    #[track_caller]
    pub fn pttl(&mut self, key: &str) -> i64 {
        self.send(&["PTTL", key]).int()
    }

    /// The server's time of day, in microseconds.
    #[track_caller]
    pub fn now_us(&mut self) -> u64 {
        let time = self.send(&["TIME"]).words();
        let part = |i: usize| time[i].parse::<u64>().expect("a number");
        part(0) * 1_000_000 + part(1)
    }

    /// The keys that match, in order, but for the labels of clients.
    #[track_caller]
    pub fn keys(&mut self, pattern: &str) -> Vec<String> {
        let replies = self.send(&["KEYS", pattern]).array();
        let mut keys: Vec<_> = replies.iter().filter_map(Reply::text).filter(|key| !is_label(key)).collect();
        keys.sort();
        keys
    }

    /// The keys of the labels of clients.
    #[track_caller]
    pub fn label_keys(&mut self) -> Vec<String> {
        let replies = self.send(&["KEYS", "{leasehold}:*"]).array();
        replies.iter().filter_map(Reply::text).filter(|key| is_label(key)).collect()
    }

    /// How often the server ran each command since it started or was told `CONFIG RESETSTAT`, by command name
    /// in small letters. Subcommands read `config|get`; what scripts call counts as well.
    #[track_caller]
    pub fn info_commandstats(&mut self) -> BTreeMap<String, u64> {
        let info = self.send(&["INFO", "commandstats"]).text().expect("INFO answers with text");
        info.lines().filter_map(command_calls).collect()
    }
}

/// Whether a key has the label of a client: every client has one, which expires.
fn is_label(key: &str) -> bool {
    key.starts_with("{leasehold}:") && key.ends_with(":client")
}

/// The words of a request and its length: an array of strings, or a line of words, which is how fred says HELLO.
pub fn parse_request(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    if *bytes.first()? == b'*' {
        let (request, len) = Reply::parse(bytes)?;
        return Some((request.words(), len));
    }
    let len = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let line = String::from_utf8_lossy(&bytes[..len]);
    Some((line.split_whitespace().map(str::to_owned).collect(), len + 2))
}

/// `cmdstat_get:calls=3,usec=...` as `("get", 3)`.
fn command_calls(line: &str) -> Option<(String, u64)> {
    let (command, stats) = line.strip_prefix("cmdstat_")?.split_once(':')?;
    let calls = stats.strip_prefix("calls=")?.split(',').next()?;
    Some((command.to_owned(), calls.parse().ok()?))
}
