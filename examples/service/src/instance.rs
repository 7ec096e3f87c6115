//! One instance of the service: what an application writes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use leasehold::{Client, CountingSemaphore, Error, ErrorKind, Leader};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use crate::loopback::Connection;
use crate::world::UPSTREAM_LIMIT;

/// How long a request waits for a lock or a permit.
const WAIT: Duration = Duration::from_secs(5);
/// How long a call to the world may take.
const CALL: Duration = Duration::from_secs(5);

/// What all requests share.
#[derive(Clone, Debug)]
pub(crate) struct App {
    client: Client,
    upstream: CountingSemaphore,
    world: SocketAddr,
    metrics: PrometheusHandle,
}

impl App {
    pub(crate) fn new(client: Client, world: SocketAddr, metrics: PrometheusHandle) -> Result<Self, Error> {
        let upstream = client.counting_semaphore("upstream", UPSTREAM_LIMIT)?;
        Ok(Self { client, upstream, world, metrics })
    }

    pub(crate) async fn serve(self, listener: TcpListener) -> std::io::Result<()> {
        let routes = Router::new()
            .route("/machines/{id}/parts", post(add_part))
            .route("/upstream", post(call_upstream))
            .route("/ready", get(ready))
            .route("/metrics", get(show_metrics))
            .layer(from_fn(count))
            .with_state(self);
        axum::serve(listener, routes).await
    }

    /// Leads whenever nobody else does, and reports for as long as it leads.
    pub(crate) async fn lead(self, name: Arc<str>) -> Result<(), Error> {
        let election = self.client.election("reports")?;
        election.run(&name, |leader| report(self.clone(), leader)).await
    }

    async fn ask(&self, request: &str) -> Result<String, Failure> {
        let asked = async { Connection::open(self.world).await?.ask(request).await };
        let answer = timeout(CALL, asked).await.map_err(|_| Failure::World("no answer".to_owned()))?;
        let answer = answer.map_err(|error| Failure::World(error.to_string()))?;
        if answer == "stale" { Err(Failure::Stale) } else { Ok(answer) }
    }
}

/// What the leader does. If it fails, the election is run again.
async fn report(app: App, leader: Leader) -> Result<(), Failure> {
    loop {
        app.ask(&format!("report {} {}", leader.token, leader.value)).await?;
        sleep(Duration::from_millis(20)).await;
    }
}

/// Reads the whole record, adds a part, and writes the whole record back.
async fn add_part(State(app): State<App>, Path(id): Path<String>) -> Result<String, Failure> {
    let guard = app.client.mutex(&format!("machine:{id}"))?.lock_timeout(WAIT).await?;
    let added = guard.try_protect(async {
        let record = app.ask(&format!("read {id}")).await?;
        let (value, version) = record.split_once(' ').unwrap_or_default();
        let value = value.parse::<u64>().map_err(|error| Failure::World(error.to_string()))? + 1;
        app.ask(&format!("write {id} {value} {version} {}", guard.token())).await?;
        Ok::<_, Failure>(value)
    });
    Ok(added.await?.to_string())
}

/// Calls the upstream service, which bears a few calls at a time.
async fn call_upstream(State(app): State<App>) -> Result<String, Failure> {
    let permit = app.upstream.acquire_timeout(WAIT).await?;
    permit.try_protect(app.ask("call")).await
}

/// Counts requests, beside what the client counts.
async fn count(request: Request, next: Next) -> Response {
    let route = if request.uri().path().ends_with("/parts") { "parts" } else { "upstream" };
    let is_counted = request.method() == Method::POST;
    let response = next.run(request).await;
    if is_counted {
        let status = response.status().as_u16().to_string();
        metrics::counter!("requests_total", "route" => route, "status" => status).increment(1);
    }
    response
}

async fn ready(State(app): State<App>) -> Result<&'static str, (StatusCode, String)> {
    let state = app.client.state();
    if state.status.is_connected() {
        return Ok("ready");
    }
    Err((StatusCode::SERVICE_UNAVAILABLE, state.nodes.iter().map(|node| format!("{node}\n")).collect()))
}

async fn show_metrics(State(app): State<App>) -> String {
    app.metrics.render()
}

/// Why a request failed.
#[derive(Debug)]
enum Failure {
    Lock(Error),
    /// The record has been written under a newer token.
    Stale,
    World(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
            Self::Stale => f.write_str("stale token"),
            Self::World(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for Failure {}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::Lock(error) => match error.kind() {
                ErrorKind::Lost => StatusCode::CONFLICT,
                _ if error.is_retryable() => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            },
            Self::Stale => StatusCode::CONFLICT,
            Self::World(_) => StatusCode::BAD_GATEWAY,
        };
        (status, self.to_string()).into_response()
    }
}
