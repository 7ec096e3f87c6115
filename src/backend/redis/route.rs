//! How a connection finds its server, each time before it connects.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::cluster::Slots;
use super::connection::{Timeouts, command};
use super::link::{CallError, Connector, Link, Server};
use super::url::Login;
use super::value::Value;

/// Where a connection leads.
#[derive(Clone, Debug)]
pub(super) enum Route {
    /// Always to this server.
    Server(Server),
    /// To the server that is the primary at present.
    Sentinel(Arc<Sentinels>),
    /// To any node of a cluster.
    AnyNode(Arc<Slots>),
}

impl Route {
    /// The server to connect to.
    pub(super) async fn server(&self) -> Result<Server, CallError> {
        match self {
            Self::Server(server) => Ok(server.clone()),
            Self::Sentinel(sentinels) => sentinels.primary().await,
            Self::AnyNode(slots) => slots.any_node(),
        }
    }

    /// Whether the server is the right one: what sentinels say may be out of date.
    pub(super) async fn check(&self, link: &dyn Link) -> Result<(), CallError> {
        let Self::Sentinel(_) = self else { return Ok(()) };
        let role = command(link, &["ROLE"]).await?;
        match role.as_list().first().and_then(Value::as_str) {
            Some("master") => Ok(()),
            role => {
                let role = role.unwrap_or("of no known role");
                Err(CallError::NotSent(format!(
                    "the sentinels name a server that is not the primary, but {role}"
                )))
            }
        }
    }
}

/// The sentinels that know which server is the primary.
#[derive(Debug)]
pub(super) struct Sentinels {
    sentinels: Vec<Server>,
    service: String,
    connector: Arc<dyn Connector>,
    login: Login,
    timeouts: Timeouts,
}

impl Sentinels {
    pub(super) const fn new(
        sentinels: Vec<Server>,
        service: String,
        connector: Arc<dyn Connector>,
        login: Login,
        timeouts: Timeouts,
    ) -> Self {
        Self { sentinels, service, connector, login, timeouts }
    }

    /// Asks all sentinels at once. The first one that knows it decides.
    async fn primary(self: &Arc<Self>) -> Result<Server, CallError> {
        let (tell, mut told) = mpsc::unbounded_channel();
        for sentinel in self.sentinels.clone() {
            let (sentinels, tell) = (Arc::clone(self), tell.clone());
            // A task, because connecting must not be given up halfway.
            tokio::spawn(async move {
                let answer = sentinels.ask(&sentinel).await;
                // Nobody waits for it any more if another one was faster.
                let _ = tell.send(answer.map_err(|error| format!("{sentinel}: {error}")));
            });
        }
        drop(tell);
        let mut reasons = Vec::new();
        while let Some(answer) = told.recv().await {
            match answer {
                Ok(primary) => return Ok(primary),
                Err(reason) => reasons.push(reason),
            }
        }
        let service = &self.service;
        Err(CallError::NotSent(format!(
            "no sentinel knows the primary of `{service}`: {}",
            reasons.join("; ")
        )))
    }

    async fn ask(&self, sentinel: &Server) -> Result<Server, CallError> {
        let link = self.connector.open(sentinel, &self.login).await?;
        let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &self.service];
        let answer = timeout(self.timeouts.reply, command(&*link, &question)).await;
        link.abort();
        let answer = answer.unwrap_or_else(|late| Err(CallError::Timeout(late.to_string())))?;
        let port = answer.as_list().get(1).and_then(Value::as_u64);
        match (
            answer.as_list().first().and_then(Value::as_str),
            port.and_then(|port| u16::try_from(port).ok()),
        ) {
            (Some(host), Some(port)) => Ok(Server::Tcp { host: host.to_owned(), port }),
            _ => Err(CallError::NotSent("it does not know this service".to_owned())),
        }
    }
}
