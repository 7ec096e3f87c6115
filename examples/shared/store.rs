//! Where the locks of an example are: in this process, or on a server.

use std::sync::Arc;

use leasehold::{Client, Error, MemoryBackend};

/// Cheap to clone; all clones are one store.
#[derive(Clone, Debug)]
pub(crate) enum Store {
    Memory(Arc<MemoryBackend>),
    Server(String),
}

impl Store {
    /// The store at `url`; `memory:` is a new one.
    pub(crate) fn at(url: &str) -> Self {
        if url == "memory:" { Self::Memory(Arc::default()) } else { Self::Server(url.to_owned()) }
    }

    /// A client of its own, as another process would have one.
    pub(crate) async fn client(&self) -> Result<Client, Error> {
        match self {
            Self::Memory(store) => Ok(Client::with_backend(Arc::new(store.peer()))),
            Self::Server(url) => Client::connect(url).await,
        }
    }
}
