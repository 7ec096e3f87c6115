//! A service on loopback: what the workers of an example work on, in whatever processes they are. Each line that
//! arrives is a request, and is answered by a line.

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// What a service does with a request.
pub(crate) trait Answer: Send + Sync + 'static {
    fn answer(&self, request: &str) -> impl Future<Output = String> + Send;
}

/// Ends when dropped, with all its connections.
#[derive(Debug)]
pub(crate) struct Service {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Service {
    pub(crate) async fn start(behind: Arc<impl Answer>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        Ok(Self { address, accepting: tokio::spawn(accept(listener, behind)) })
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, behind: Arc<impl Answer>) {
    let mut connections = JoinSet::new(); // aborted with this task
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(serve(stream, Arc::clone(&behind)));
    }
}

async fn serve(stream: TcpStream, behind: Arc<impl Answer>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (reads, mut writes) = stream.into_split();
    let mut requests = BufReader::new(reads).lines();
    while let Some(request) = requests.next_line().await? {
        let answer = behind.answer(&request).await;
        writes.write_all(format!("{answer}\n").as_bytes()).await?;
    }
    Ok(())
}

/// A client's side. Not to be used again once a request was dropped before its answer came.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub(crate) async fn open(service: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(service).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    pub(crate) async fn ask(&mut self, request: &str) -> io::Result<String> {
        self.stream.write_all(format!("{request}\n").as_bytes()).await?;
        let mut answer = String::new();
        match self.stream.read_line(&mut answer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(answer.trim_end().to_owned()),
        }
    }
}
