//! ZooKeeper's protocol by hand, so that no test depends on the client under test: a session of another program.

// Each of the binaries that include this uses a part.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_millis(200);

/// A session of another program, which ends when it is dropped.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    xid: i32,
}

/// What a server knows about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub version: i32,
    /// The session that it ends with; 0 if it does not.
    pub owner: i64,
}

/// The code of an error.
pub const NO_NODE: i32 = -101;

impl Wire {
    pub fn open(port: u16) -> Self {
        Self::resume(port, 0, [0; 16], TIMEOUT).flatten().expect("the server accepts sessions")
    }

    /// Whether the server accepts sessions. One that is about to start may leave a connection without an answer.
    pub fn is_ready(port: u16) -> bool {
        Self::resume(port, 0, [0; 16], SOON).flatten().is_some()
    }

    /// Whether a server leads or follows, in its words; `None` if it serves nobody now.
    pub fn mode(port: u16) -> Option<String> {
        let text = Self::ask(port, "srvr")?;
        text.lines().find_map(|line| line.strip_prefix("Mode: ").map(str::to_owned))
    }

    /// What a server answers to a command of four letters, which its settings have to allow.
    pub fn ask(port: u16, command: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).expect("a setting");
        stream.write_all(command.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Ends the session of somebody else. Its password follows from its number.
    pub fn end_session(port: u16, session: i64) {
        assert!(Self::end_session_if_any(port, session), "there is no such session");
    }

    /// The same; `false` if there is no such session.
    pub fn end_session_if_any(port: u16, session: i64) -> bool {
        let resume = || Self::resume(port, session, password(session), TIMEOUT);
        let mut taken = resume();
        let is_there = !matches!(taken, Some(None));
        // Its owner may take it back before it is ended.
        while !matches!(taken, Some(None)) {
            if let Some(Some(mut wire)) = taken {
                wire.send(-11, &[]);
                // The reply to that, or the end of the connection.
                let _ = wire.receive();
            }
            taken = resume();
        }
        is_there
    }

    /// `None` if the connection is closed, and `Some(None)` if there is no such session.
    fn resume(port: u16, session: i64, password: [u8; 16], timeout: Duration) -> Option<Option<Self>> {
        let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(timeout)).expect("a setting");
        stream.set_nodelay(true).expect("a setting");
        let mut wire = Self { stream, xid: 0 };
        let mut message = Vec::new();
        int(&mut message, 0);
        long(&mut message, 0);
        int(&mut message, 4000);
        long(&mut message, session);
        bytes(&mut message, &password);
        message.push(0);
        wire.write(&message)?;
        let reply = wire.receive()?;
        wire.stream.set_read_timeout(Some(TIMEOUT)).expect("a setting");
        Some((number(&reply[4..8]) > 0).then_some(wire))
    }

    pub fn create(&mut self, path: &str, data: &str) {
        self.create_for(path, data, "world", "anyone", 31);
    }

    /// With an ACL of one entry.
    pub fn create_for(&mut self, path: &str, data: &str, scheme: &str, id: &str, rights: i32) {
        let mut message = Vec::new();
        bytes(&mut message, path.as_bytes());
        bytes(&mut message, data.as_bytes());
        int(&mut message, 1);
        int(&mut message, rights);
        bytes(&mut message, scheme.as_bytes());
        bytes(&mut message, id.as_bytes());
        int(&mut message, 0);
        self.call(1, &message).unwrap_or_else(|code| panic!("{path} is not created: {code}"));
    }

    pub fn set(&mut self, path: &str, data: &str) {
        let mut message = Vec::new();
        bytes(&mut message, path.as_bytes());
        bytes(&mut message, data.as_bytes());
        int(&mut message, -1);
        self.call(5, &message).unwrap_or_else(|code| panic!("{path} is not written: {code}"));
    }

    /// `None` if the node does not exist.
    pub fn get(&mut self, path: &str) -> Option<(String, Stat)> {
        let mut message = Vec::new();
        bytes(&mut message, path.as_bytes());
        message.push(0);
        match self.call(4, &message) {
            Ok(reply) => {
                let length = number(&reply[..4]).max(0) as usize;
                let data = String::from_utf8_lossy(&reply[4..4 + length]).into_owned();
                let stat = &reply[4 + length..];
                let owner = i64::from_be_bytes(stat[44..52].try_into().expect("eight bytes"));
                Some((data, Stat { version: number(&stat[32..36]), owner }))
            }
            Err(NO_NODE) => None,
            Err(code) => panic!("{path} is not read: {code}"),
        }
    }

    /// Their names, sorted. None if the node does not exist.
    pub fn children(&mut self, path: &str) -> Vec<String> {
        let mut message = Vec::new();
        bytes(&mut message, path.as_bytes());
        message.push(0);
        let reply = match self.call(8, &message) {
            Ok(reply) => reply,
            Err(NO_NODE) => return Vec::new(),
            Err(code) => panic!("the children of {path} are not read: {code}"),
        };
        let (mut names, mut rest) = (Vec::new(), &reply[4..]);
        while !rest.is_empty() {
            let length = number(&rest[..4]) as usize;
            names.push(String::from_utf8_lossy(&rest[4..4 + length]).into_owned());
            rest = &rest[4 + length..];
        }
        names.sort();
        names
    }

    /// `false` if it did not exist.
    pub fn delete(&mut self, path: &str) -> bool {
        self.try_delete(path).is_ok()
    }

    fn try_delete(&mut self, path: &str) -> Result<(), i32> {
        let mut message = Vec::new();
        bytes(&mut message, path.as_bytes());
        int(&mut message, -1);
        self.call(2, &message).map(drop)
    }

    /// Deletes a node and all below it, whatever others create meanwhile.
    pub fn delete_all(&mut self, path: &str) {
        loop {
            for child in self.children(path) {
                self.delete_all(&format!("{path}/{child}"));
            }
            match self.try_delete(path) {
                Ok(()) | Err(NO_NODE) => return,
                Err(_) => {}
            }
        }
    }

    /// The reply, or the code of an error.
    fn call(&mut self, code: i32, message: &[u8]) -> Result<Vec<u8>, i32> {
        self.send(code, message);
        loop {
            let reply = self.receive().expect("the server answers");
            if number(&reply[..4]) == self.xid {
                let code = number(&reply[12..16]);
                return if code == 0 { Ok(reply[16..].to_vec()) } else { Err(code) };
            }
        }
    }

    fn send(&mut self, code: i32, message: &[u8]) {
        self.xid += 1;
        let mut whole = Vec::new();
        int(&mut whole, self.xid);
        int(&mut whole, code);
        whole.extend_from_slice(message);
        self.write(&whole).expect("the server reads");
    }

    fn write(&mut self, message: &[u8]) -> Option<()> {
        let mut whole = Vec::new();
        bytes(&mut whole, message);
        self.stream.write_all(&whole).ok()
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).ok()?;
        let mut message = vec![0; number(&length) as usize];
        self.stream.read_exact(&mut message).ok()?;
        Some(message)
    }
}

/// What a server makes from the number of a session: sixteen bytes of Java's generator of random numbers.
fn password(session: i64) -> [u8; 16] {
    const SECRET: i64 = 0xB341_5C00;
    const FACTOR: u64 = 0x5_DEEC_E66D;
    const MASK: u64 = (1 << 48) - 1;
    let mut state = ((session ^ SECRET).cast_unsigned() ^ FACTOR) & MASK;
    let mut password = [0; 16];
    for four in password.chunks_mut(4) {
        state = state.wrapping_mul(FACTOR).wrapping_add(11) & MASK;
        four.copy_from_slice(&((state >> 16) as u32).to_le_bytes());
    }
    password
}

fn int(message: &mut Vec<u8>, value: i32) {
    message.extend_from_slice(&value.to_be_bytes());
}

fn long(message: &mut Vec<u8>, value: i64) {
    message.extend_from_slice(&value.to_be_bytes());
}

fn bytes(message: &mut Vec<u8>, value: &[u8]) {
    int(message, value.len() as i32);
    message.extend_from_slice(value);
}

fn number(bytes: &[u8]) -> i32 {
    i32::from_be_bytes(bytes.try_into().expect("four bytes"))
}
