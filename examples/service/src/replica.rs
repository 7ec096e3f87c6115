//! A running instance: a process of its own, or, on the memory store, tasks of this one.

use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use leasehold::{Client, ClientBuilder, MemoryBackend, MutexOptions, SemaphoreOptions};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::AbortHandle;

use crate::Result;
use crate::instance::App;
use leasehold_support::child::ChildProcess;

/// The lease of everything.
pub(crate) const TTL: Duration = Duration::from_secs(2);
/// How long a request that is under way may take when the instance ends.
const GRACE: Duration = Duration::from_secs(5);

/// The URL of the store travels in the environment: command lines are public, and there may be a password in it.
const URL: &str = "LEASEHOLD_URL";

#[derive(Args, Debug)]
pub(crate) struct Serve {
    /// What the instance is called
    #[arg(long)]
    name: String,
    /// What it works on
    #[arg(long)]
    world: SocketAddr,
}

impl Serve {
    pub(crate) async fn run(self) -> Result<()> {
        let url = env::var(URL).map_err(|_| format!("{URL} says where the locks are"))?;
        let metrics = PrometheusBuilder::new().install_recorder()?;
        let client = options(Client::builder(url)).label(&self.name).metrics().connect().await?;
        let app = App::new(client.clone(), self.world, metrics)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        println!("{}", listener.local_addr()?);
        let mut terminated = signal(SignalKind::terminate())?;
        tokio::select! {
            served = app.clone().serve(listener) => served?,
            led = app.lead(self.name.into()) => led?,
            _ = terminated.recv() => client.close(GRACE).await?,
        }
        Ok(())
    }
}

fn options(builder: ClientBuilder) -> ClientBuilder {
    builder.mutex_options(MutexOptions::new().ttl(TTL)).semaphore_options(SemaphoreOptions::new().ttl(TTL))
}

#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    runs: Runs,
}

#[derive(Debug)]
enum Runs {
    Process(ChildProcess),
    /// The client of an instance, which can crash and be cut off, and its tasks.
    Tasks(Arc<MemoryBackend>, [AbortHandle; 2]),
}

impl Replica {
    pub(crate) fn process(name: String, url: &str, world: SocketAddr) -> Result<Self> {
        let world = world.to_string();
        let args = ["serve", "--name", &name, "--world", &world].map(OsString::from);
        let mut process = ChildProcess::start(env::current_exe()?.as_os_str(), args, |command| {
            command.env(URL, url).stdout(Stdio::piped());
        });
        let mut line = String::new();
        BufReader::new(process.take_stdout()).read_line(&mut line)?;
        let address = line.trim().parse().map_err(|_| format!("{name} has not started"))?;
        Ok(Self { name, address, runs: Runs::Process(process) })
    }

    pub(crate) async fn tasks(
        name: String,
        store: &MemoryBackend,
        world: SocketAddr,
        metrics: &PrometheusHandle,
    ) -> Result<Self> {
        let backend = Arc::new(store.peer());
        let client = options(Client::builder_with_backend(Arc::clone(&backend) as _))
            .label(&name)
            .metrics()
            .connect_lazy()?;
        let app = App::new(client, world, metrics.clone())?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let tasks = [
            tokio::spawn(app.clone().serve(listener)).abort_handle(),
            tokio::spawn(app.lead(name.as_str().into())).abort_handle(),
        ];
        Ok(Self { name, address, runs: Runs::Tasks(backend, tasks) })
    }

    /// It does nothing more, and releases nothing.
    pub(crate) fn kill(self) {
        match self.runs {
            Runs::Process(mut process) => {
                process.kill();
            }
            Runs::Tasks(backend, tasks) => {
                backend.crash();
                tasks.iter().for_each(AbortHandle::abort);
            }
        }
    }

    /// A process stands still. Tasks of this process cannot be stopped: they lose their store.
    pub(crate) fn pause(&self) {
        match &self.runs {
            Runs::Process(process) => process.pause(),
            Runs::Tasks(backend, _) => backend.cut_off(),
        }
    }

    pub(crate) fn resume(&self) {
        match &self.runs {
            Runs::Process(process) => process.resume(),
            Runs::Tasks(backend, _) => backend.restore(),
        }
    }
}
