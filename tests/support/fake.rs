//! A server that is not there: it answers commands as a test wants it, such as a version that is not installed would.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use super::resp::parse_request;

/// Answers every command with what `answer` returns, in the protocol's words.
#[derive(Debug)]
pub struct FakeServer {
    port: u16,
}

impl FakeServer {
    pub fn start(answer: fn(&[&str]) -> String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("an address").port();
        thread::spawn(move || {
            for connection in listener.incoming() {
                let Ok(connection) = connection else { return };
                thread::spawn(move || serve(connection, answer));
            }
        });
        Self { port }
    }

    /// A server of this kind, which says that it has this version, and accepts everything.
    pub fn of_version_6_0() -> Self {
        Self::start(|words| {
            match words {
            ["HELLO", ..] => {
                "%4\r\n+server\r\n+redis\r\n+version\r\n+6.0.16\r\n+mode\r\n+standalone\r\n+role\r\n+master\r\n".to_owned()
            }
            ["ROLE"] => "*3\r\n+master\r\n:0\r\n*0\r\n".to_owned(),
            ["CLIENT", "ID"] => ":1\r\n".to_owned(),
            ["PING"] => "+PONG\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        }
        })
    }

    /// A server that does not know HELLO.
    pub fn of_version_5() -> Self {
        Self::start(|words| {
            let (name, rest) = words.split_first().expect("a command has a name");
            let rest: Vec<_> = rest.iter().map(|word| format!("`{word}`")).collect();
            format!("-ERR unknown command `{name}`, with args beginning with: {}, \r\n", rest.join(", "))
        })
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

fn serve(mut connection: TcpStream, answer: fn(&[&str]) -> String) {
    let (mut pending, mut bytes) = (Vec::new(), [0; 4096]);
    loop {
        match connection.read(&mut bytes) {
            Ok(read) if read > 0 => pending.extend_from_slice(&bytes[..read]),
            _ => return,
        }
        while let Some((words, len)) = parse_request(&pending) {
            pending.drain(..len);
            let words: Vec<_> = words.iter().map(|word| &**word).collect();
            if connection.write_all(answer(&words).as_bytes()).is_err() {
                return;
            }
        }
    }
}
