//! `elect`: a command while leading.

use std::process::ExitCode;
use std::time::Duration;

use leasehold::{Election, Error, Leadership};
use tokio::time::{Instant, sleep};

use super::run::{lost, shut_down};
use crate::args::{self, Args};
use crate::exit::{End, Failure};
use crate::job::{Ended, Job, say};
use crate::signals::Signals;
use crate::watcher::Watcher;
use crate::{store, waiting};

/// The first pause before another attempt; the next ones are twice as long each.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// And never longer than this. Who has led for so long begins anew.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

pub(crate) async fn run(args: &Args, elect: &args::Elect) -> Result<ExitCode, Failure> {
    Ok(stand(args, elect).await?.finish())
}

async fn stand(args: &Args, elect: &args::Elect) -> Result<End, Failure> {
    let builder = store::builder(args)?;
    let mut signals = Signals::that_end()?;
    let client = tokio::select! {
        client = builder.connect() => client?,
        signal = signals.end() => return Ok(End::Signal(signal)),
    };
    let options = client.mutex_options();
    let options = elect.ttl.ttl.map_or(options.clone(), |ttl| options.ttl(ttl));
    let candidate = Candidate {
        election: client.election_with(&elect.name, options)?,
        value: elect.value.clone().or_else(|| client.label().map(str::to_owned)).unwrap_or_default(),
        job: &elect.job,
    };
    let end = candidate.run(&mut signals).await;
    shut_down(&client, &mut signals).await;
    end
}

struct Candidate<'a> {
    election: Election,
    value: String,
    job: &'a args::Job,
}

impl Candidate<'_> {
    /// Leads again and again, until the command succeeds or this program is asked to end.
    async fn run(&self, signals: &mut Signals) -> Result<End, Failure> {
        let mut pause = FIRST_PAUSE;
        loop {
            let leadership = tokio::select! {
                leadership = self.campaign() => leadership,
                signal = signals.end() => return Ok(End::Signal(signal)),
            };
            match leadership {
                Ok(leadership) => {
                    let since = Instant::now();
                    let ended = self.lead(leadership, signals).await?;
                    if ended.is_last || (ended.end == End::Status(0) && !ended.is_lost) {
                        return Ok(ended.end);
                    }
                    if since.elapsed() >= LONGEST_PAUSE {
                        pause = FIRST_PAUSE;
                    }
                }
                Err(error) if error.is_retryable() => say(&format!("{error}; trying again")),
                Err(error) => return Err(error.into()),
            }
            tokio::select! {
                () = sleep(pause) => pause = LONGEST_PAUSE.min(pause * 2),
                signal = signals.end() => return Ok(End::Signal(signal)),
            }
        }
    }

    async fn campaign(&self) -> Result<Leadership, Error> {
        let name = self.election.name();
        waiting::show(name, self.election.campaign(&self.value), async || {
            Ok(match self.election.leader().await? {
                Some(leader) => format!("led by {}", leader.label.unwrap_or(leader.value)),
                None => "led by nobody".to_owned(),
            })
        })
        .await
    }

    async fn lead(&self, leadership: Leadership, signals: &mut Signals) -> Result<Ended, Failure> {
        let name = self.election.name();
        let environment =
            vec![("LEASEHOLD_NAME", name.to_owned()), ("LEASEHOLD_TOKEN", leadership.token().to_string())];
        let job = Job { job: self.job, environment };
        let mut watcher = Watcher::start()?;
        let ended = job.run(&mut watcher, signals, lost(name, leadership.lost())).await;
        let resigned = signals.unless_asked_again(leadership.resign()).await;
        let ended = ended?;
        let is_lost = ended.is_lost || matches!(resigned, Some(Err(Error::Lost { .. })));
        if !is_lost {
            let status = ended.end.status();
            if status != 0 && !ended.is_last {
                say(&format!("the command has ended with status {status}; giving up leadership of `{name}`"));
            }
            match resigned {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    say(&format!("another candidate can lead once the lease expires: {error}"));
                }
                None => say("interrupted: another candidate can lead once the lease expires"),
            }
        }
        Ok(Ended { is_lost, ..ended })
    }
}
