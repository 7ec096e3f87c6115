//! Requests to ZooKeeper, and its replies.

use super::failure::{Code, Malformed};
use super::jute::{Message, Reader};

/// The longest request that is sent: servers end the connection of a client that sends more than `jute.maxbuffer`,
/// which is 1 MB unless configured otherwise.
pub(super) const MAX_REQUEST: usize = 1_000_000;

/// Any version.
pub(super) const ANY: i32 = -1;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Create {
        path: String,
        data: Vec<u8>,
        mode: Mode,
    },
    Delete {
        path: String,
        version: i32,
    },
    Set {
        path: String,
        data: Vec<u8>,
        version: i32,
    },
    /// Fails if the node does not exist or has another version.
    Check {
        path: String,
        version: i32,
    },
    /// All of them, or none.
    Multi(Vec<Op>),
    Get {
        path: String,
        watch: bool,
    },
    Children {
        path: String,
        /// For when a child is created or deleted.
        watch: bool,
    },
    /// Whether the node exists, and a watch for when it is created, written or deleted.
    Exists {
        path: String,
    },
    /// Forgets the watches of this session for this node.
    RemoveWatches {
        path: String,
    },
    /// What follows is read from a server that knows what has been written so far.
    Sync {
        path: String,
    },
}

/// What kind of node is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Persistent,
    /// Its name ends with a number that the server chooses.
    PersistentSequential,
    /// The same, and it ends with the session.
    EphemeralSequential,
}

/// Who may do what with the nodes that are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Anyone,
    /// A user with the credentials of this client.
    Creator,
}

/// The reply to a request that has succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Its path; in a multi, servers return no more.
    Created(String, Option<Stat>),
    Set(Stat),
    Data(Vec<u8>, Stat),
    Children(Vec<String>, Stat),
    /// All requests of a multi.
    All(Vec<Reply>),
    /// Deleted, checked, synchronized, watched or no longer so.
    Done,
}

impl Reply {
    /// The node after it was written.
    pub(super) const fn written(&self) -> Option<Stat> {
        match self {
            Self::Set(stat) => Some(*stat),
            Self::Created(_, stat) => *stat,
            Self::Data(..) | Self::Children(..) | Self::All(_) | Self::Done => None,
        }
    }
}

/// What the server knows about a node, as far as it is of use here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stat {
    /// By the clock of the server that leads, in milliseconds.
    pub(super) ctime: i64,
    /// When it was created or last written.
    pub(super) mtime: i64,
    /// How often it was written.
    pub(super) version: i32,
    /// How often a child was created or deleted.
    pub(super) child_version: i32,
}

const CREATE: i32 = 15;
/// What replies to a multi call it.
const CREATE_WITHOUT_STAT: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const GET: i32 = 4;
const SET: i32 = 5;
const SYNC: i32 = 9;
const CHILDREN: i32 = 12;
const CHECK: i32 = 13;
const MULTI: i32 = 14;
const REMOVE_WATCHES: i32 = 18;
/// Watches of all kinds.
const ANY_WATCHES: i32 = 3;
const ERROR: i32 = -1;
const ALL_PERMISSIONS: i32 = 31;

impl Op {
    /// The whole message.
    pub(super) fn message(&self, xid: i32, access: Access) -> Vec<u8> {
        let mut message = Message::new();
        message.int(xid).int(self.code());
        self.write(&mut message, access);
        message.finish()
    }

    /// How long the message is, roughly.
    pub(super) fn size(&self) -> usize {
        const REST: usize = 64;
        match self {
            Self::Create { path, data, .. } | Self::Set { path, data, .. } => path.len() + data.len() + REST,
            Self::Delete { path, .. }
            | Self::Check { path, .. }
            | Self::Get { path, .. }
            | Self::Children { path, .. }
            | Self::Exists { path }
            | Self::RemoveWatches { path }
            | Self::Sync { path } => path.len() + REST,
            Self::Multi(ops) => ops.iter().map(Self::size).sum(),
        }
    }

    /// Whether it may change something.
    pub(super) const fn writes(&self) -> bool {
        match self {
            Self::Create { .. } | Self::Delete { .. } | Self::Set { .. } | Self::Multi(_) => true,
            Self::Check { .. }
            | Self::Get { .. }
            | Self::Children { .. }
            | Self::Exists { .. }
            | Self::RemoveWatches { .. }
            | Self::Sync { .. } => false,
        }
    }

    /// Whether it creates or deletes a child of the node at this path.
    pub(super) fn changes_children_of(&self, parent: &str) -> bool {
        let (Self::Create { path, .. } | Self::Delete { path, .. }) = self else { return false };
        path.rsplit_once('/').is_some_and(|(of, _)| of == parent)
    }

    const fn code(&self) -> i32 {
        match self {
            Self::Create { .. } => CREATE,
            Self::Delete { .. } => DELETE,
            Self::Set { .. } => SET,
            Self::Check { .. } => CHECK,
            Self::Multi(_) => MULTI,
            Self::Get { .. } => GET,
            Self::Children { .. } => CHILDREN,
            Self::Exists { .. } => EXISTS,
            Self::RemoveWatches { .. } => REMOVE_WATCHES,
            Self::Sync { .. } => SYNC,
        }
    }

    fn write(&self, message: &mut Message, access: Access) {
        match self {
            Self::Create { path, data, mode } => {
                message.bytes(path.as_bytes()).bytes(data);
                access.write(message);
                message.int(match mode {
                    Mode::Persistent => 0,
                    Mode::PersistentSequential => 2,
                    Mode::EphemeralSequential => 3,
                });
            }
            Self::Set { path, data, version } => {
                message.bytes(path.as_bytes()).bytes(data).int(*version);
            }
            Self::Delete { path, version } | Self::Check { path, version } => {
                message.bytes(path.as_bytes()).int(*version);
            }
            Self::Multi(ops) => {
                for op in ops {
                    message.int(op.code()).bool(false).int(-1);
                    op.write(message, access);
                }
                message.int(-1).bool(true).int(-1);
            }
            Self::Get { path, watch } => {
                message.bytes(path.as_bytes()).bool(*watch);
            }
            Self::Children { path, watch } => {
                message.bytes(path.as_bytes()).bool(*watch);
            }
            Self::Exists { path } => {
                message.bytes(path.as_bytes()).bool(true);
            }
            Self::RemoveWatches { path } => {
                message.bytes(path.as_bytes()).int(ANY_WATCHES);
            }
            Self::Sync { path } => {
                message.bytes(path.as_bytes());
            }
        }
    }

    /// Reads the reply that follows its header.
    pub(super) fn read(&self, reader: &mut Reader<'_>) -> Result<Result<Reply, Code>, Malformed> {
        Ok(Ok(match self {
            Self::Multi(ops) => return read_multi(ops.len(), reader),
            Self::Sync { .. } => {
                reader.bytes()?;
                Reply::Done
            }
            Self::Get { .. } => Reply::Data(reader.bytes()?.to_vec(), Stat::read(reader)?),
            Self::Children { .. } => Reply::Children(reader.strings()?, Stat::read(reader)?),
            Self::Exists { .. } => {
                Stat::read(reader)?;
                Reply::Done
            }
            Self::RemoveWatches { .. } => Reply::Done,
            one => read_one(one.code(), reader)?,
        }))
    }
}

impl Access {
    fn write(self, message: &mut Message) {
        let (scheme, id) = match self {
            Self::Anyone => ("world", "anyone"),
            Self::Creator => ("auth", ""),
        };
        message.int(1).int(ALL_PERMISSIONS).bytes(scheme.as_bytes()).bytes(id.as_bytes());
    }
}

fn read_one(code: i32, reader: &mut Reader<'_>) -> Result<Reply, Malformed> {
    Ok(match code {
        CREATE => Reply::Created(reader.string()?, Some(Stat::read(reader)?)),
        CREATE_WITHOUT_STAT => Reply::Created(reader.string()?, None),
        SET => Reply::Set(Stat::read(reader)?),
        DELETE | CHECK => Reply::Done,
        _ => return Err(Malformed),
    })
}

/// Either all have succeeded, or there is an error for each; that of those that did not fail themselves says so.
fn read_multi(ops: usize, reader: &mut Reader<'_>) -> Result<Result<Reply, Code>, Malformed> {
    let (mut replies, mut failed) = (Vec::new(), None);
    loop {
        let (code, is_end, _) = (reader.int()?, reader.bool()?, reader.int()?);
        if is_end {
            break;
        }
        if code == ERROR {
            let code = Code(reader.int()?);
            if !matches!(code, Code::NONE | Code::NOT_TRIED) {
                failed.get_or_insert(code);
            }
        } else {
            replies.push(read_one(code, reader)?);
        }
    }
    match failed {
        Some(code) => Ok(Err(code)),
        None if replies.len() == ops => Ok(Ok(Reply::All(replies))),
        None => Err(Malformed),
    }
}

impl Stat {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (_czxid, _mzxid) = (reader.long()?, reader.long()?);
        let (ctime, mtime) = (reader.long()?, reader.long()?);
        let (version, child_version, _aversion) = (reader.int()?, reader.int()?, reader.int()?);
        let (_owner, _length, _children, _pzxid) =
            (reader.long()?, reader.int()?, reader.int()?, reader.long()?);
        Ok(Self { ctime, mtime, version, child_version })
    }
}
