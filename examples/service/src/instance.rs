//! One instance of the service: what an application writes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use leasehold::{Client, CountingSemaphore, Error};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use crate::loopback::Connection;
use crate::world::UPSTREAM_LIMIT;

/// How long a request waits for a lock or a permit.
const WAIT: Duration = Duration::from_secs(5);
/// How long a call to the world may take.
const CALL: Duration = Duration::from_secs(1);

/// What all requests share.
#[derive(Clone, Debug)]
pub(crate) struct App {
    client: Client,
    upstream: CountingSemaphore,
    world: SocketAddr,
    metrics: PrometheusHandle,
}

impl App {
    pub(crate) fn new(
        client: Client,
        world: SocketAddr,
        metrics: PrometheusHandle,
    ) -> Result<Self, Error> {
        let upstream = client.counting_semaphore("upstream", UPSTREAM_LIMIT)?;
        Ok(Self { client, upstream, world, metrics })
    }

    pub(crate) async fn serve(self, listener: TcpListener) -> std::io::Result<()> {
        let routes = Router::new()
            .route("/machines/{id}/parts", post(add_part))
            .route("/upstream", post(call_upstream))
            .route("/ready", get(ready))
            .route("/metrics", get(metrics))
            .with_state(self);
        axum::serve(listener, routes).await
    }

    /// Leads whenever nobody else does, and reports for as long as it leads.
    pub(crate) async fn lead(self, name: Arc<str>) -> Result<(), Error> {
        let election = self.client.election("reports")?;
        election
            .run(&*name, async |leadership| {
                loop {
                    self.ask(&format!("report {} {name}", leadership.token())).await?;
                    sleep(Duration::from_millis(20)).await;
                }
            })
            .await
    }

    async fn ask(&self, request: &str) -> Result<String, Failure> {
        let asked = async { Connection::open(self.world).await?.ask(request).await };
        let answer = timeout(CALL, asked).await.map_err(|_| Failure::World("no answer".to_owned()))?;
        let answer = answer.map_err(|error| Failure::World(error.to_string()))?;
        if answer == "stale" { Err(Failure::Stale) } else { Ok(answer) }
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

async fn ready(State(app): State<App>) -> Result<&'static str, (StatusCode, String)> {
    let state = app.client.state();
    if state.status.is_connected() {
        return Ok("ready");
    }
    Err((StatusCode::SERVICE_UNAVAILABLE, state.nodes.iter().map(|node| format!("{node}\n")).collect()))
}

async fn metrics(State(app): State<App>) -> String {
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

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Self::Lock(error) => (status_of(&error), error.to_string()),
            Self::Stale => (StatusCode::CONFLICT, "stale token".to_owned()),
            Self::World(reason) => (StatusCode::BAD_GATEWAY, reason),
        }
        .into_response()
    }
}
