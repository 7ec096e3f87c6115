//! Changing records: those that are quiet by reading and then writing what nobody else has changed, a crowded one in turns.

use std::collections::HashMap;
use std::time::Instant;

use super::record::{Changed, Clock, Next, Read, Stored, Written};
use super::session::{Answer, Session};
use super::statement;
use crate::backend::records::{self, Done, Failure, Phase, failed};

type Work = records::Work<Written>;
type Outcome = records::Outcome<Written>;

/// Writes the records as they are remembered in one exchange, if all are. Those that somebody else has changed, or that are not remembered,
/// are read in one exchange and written in another one.
pub(super) async fn change_quiet(session: &mut Session, works: Vec<Work>) -> Outcome {
    if works.iter().any(|work| work.written.is_none()) {
        return read_and_write(session, works).await;
    }
    let client = session.watch.client();
    let (mut outcome, mut changed, mut left) = (Vec::new(), Vec::new(), Vec::new());
    for mut work in works {
        match work.written.take().map(|written| written.read().change(&work, client)) {
            Some(Ok(Next::Write(record))) => changed.push((work, record)),
            // That nothing changes, or is wrong, is true only of what is stored now.
            Some(Ok(Next::Keep(..)) | Err(_)) | None => left.push(work),
        }
    }
    let mut failure = None;
    if !changed.is_empty() {
        let (written, failed) = write(session, changed).await;
        for (work, done) in written {
            match done {
                Done::Conflict => left.push(work),
                done => outcome.push((work, done)),
            }
        }
        failure = failed;
    }
    if failure.is_some() || left.is_empty() {
        outcome.extend(left.into_iter().map(|work| (work, Done::Again)));
        return (outcome, failure);
    }
    let (read, failure) = read_and_write(session, left).await;
    outcome.extend(read);
    (outcome, failure)
}

async fn read_and_write(session: &mut Session, works: Vec<Work>) -> Outcome {
    let (clock, mut stored) = match read(session, &works).await {
        Ok(read) => read,
        Err(failure) => return failed(works, failure, Phase::Reading),
    };
    let client = session.watch.client();
    let (mut outcome, mut changed) = (Vec::new(), Vec::new());
    for mut work in works {
        let is_for_later = session.add_later(&mut work);
        let read = Read::at(clock, stored.remove(work.key.as_bytes()), is_for_later);
        match read.change(&work, client) {
            Ok(Next::Write(record)) => changed.push((work, record)),
            // "No change" and errors must be based on a record that was read after the request.
            Ok(Next::Keep(..)) | Err(_) if is_for_later => outcome.push((work, Done::Again)),
            Ok(Next::Keep(version, view)) => {
                session.watch.note(&work.key, version, view);
                outcome.push((work, Done::Finished));
            }
            Err(error) => outcome.push((work, Done::Failed { error, unsure: false })),
        }
    }
    if changed.is_empty() {
        return (outcome, None);
    }
    let (written, failure) = write(session, changed).await;
    outcome.extend(written);
    (outcome, failure)
}

/// The records that there are, by their keys, and then the time.
async fn read(session: &mut Session, works: &[Work]) -> Result<(Clock, HashMap<Vec<u8>, Stored>), Failure> {
    let statements = statement::read(works.iter().map(|work| &*work.key));
    let asked = Instant::now();
    let answers = session.run_in_time(&statements).await?;
    let [records, clock] = &answers[..] else { return Err(Failure::away("an answer is missing")) };
    let records = records.rows.iter().map(|row| Stored::of(row).map(|stored| (stored.key.clone(), stored)));
    Ok((Clock::of(clock, asked)?, records.collect::<Result<_, _>>()?))
}

/// Writes records that have been changed. A single one is a transaction by itself.
async fn write(session: &mut Session, changed: Vec<(Work, Changed)>) -> Outcome {
    let each = changed.iter().map(|(work, record)| statement::write(&work.key, record));
    let mut statements: Vec<_> = each.collect();
    let are_several = changed.len() > 1;
    if are_several {
        let locked = statement::lock_without_waiting(changed.iter().map(|(work, _)| &*work.key));
        statements.splice(0..0, ["BEGIN".to_owned(), locked]);
        statements.push("COMMIT".to_owned());
    }
    let asked = Instant::now();
    match session.run_in_time(&statements).await {
        Ok(answers) => {
            let answers = answers.iter().skip(if are_several { 2 } else { 0 });
            let done = changed.into_iter().zip(answers);
            let done = done.map(|((work, record), answer)| finished(session, work, record, answer, asked));
            (done.collect(), None)
        }
        Err(failure) => {
            let failure = if are_several { roll_back(session, failure).await } else { failure };
            failed(changed.into_iter().map(|(work, _)| work).collect(), failure, Phase::Writing)
        }
    }
}

/// What a statement that was to write a record has done.
fn finished(
    session: &Session,
    mut work: Work,
    record: Changed,
    answer: &Answer,
    asked: Instant,
) -> (Work, Done) {
    if answer.changed == 0 {
        return (work, Done::Conflict);
    }
    work.written = Written::of(answer, record.doc, asked);
    let version = work.written.as_ref().map(|written| written.version);
    session.watch.note(&work.key, version, record.view);
    (work, Done::Finished)
}

/// Waits for its turn and reads the record in one exchange, and writes it in another. Other clients may still write in between, if they
/// do not know that the record is contended, or have waited for too long.
pub(super) async fn change_crowded(session: &mut Session, mut work: Work) -> Outcome {
    let (clock, stored) = match read_in_turn(session, &work).await {
        Ok(read) => read,
        Err(failure) => return end_turn(session, failed(vec![work], failure, Phase::Reading)).await,
    };
    // It may have waited for long.
    let is_for_later = session.add_later(&mut work);
    let read = Read::at(clock, stored, is_for_later);
    let done = match read.change(&work, session.watch.client()) {
        Ok(Next::Write(record)) => return write_in_turn(session, work, record).await,
        // That nothing changes, or is wrong, has to be true after it was asked for.
        Ok(Next::Keep(..)) | Err(_) if is_for_later => Done::Again,
        Ok(Next::Keep(version, view)) => {
            session.watch.note(&work.key, version, view);
            Done::Finished
        }
        Err(error) => Done::Failed { error, unsure: false },
    };
    end_turn(session, (vec![(work, done)], None)).await
}

async fn read_in_turn(session: &mut Session, work: &Work) -> Result<(Clock, Option<Stored>), Failure> {
    let asked = Instant::now();
    let answers = session.run_in_time(&statement::read_in_turn(&work.key)).await?;
    let [.., record, clock] = &answers[..] else { return Err(Failure::away("an answer is missing")) };
    let stored = record.rows.first().map(Stored::of).transpose()?;
    Ok((Clock::of(clock, asked)?, stored))
}

async fn write_in_turn(session: &mut Session, work: Work, record: Changed) -> Outcome {
    let [release, idle] = statement::end_turn(&work.key);
    let statements = [statement::write(&work.key, &record), release, idle];
    let asked = Instant::now();
    match session.run_in_time(&statements).await {
        Ok(answers) => (vec![finished(session, work, record, &answers[0], asked)], None),
        Err(failure) => end_turn(session, failed(vec![work], failure, Phase::Writing)).await,
    }
}

/// Ends the turn, unless the session has ended. The result of the batch is known by then.
async fn end_turn(session: &mut Session, (works, failure): Outcome) -> Outcome {
    let Some((work, _)) = works.first().filter(|_| failure.as_ref().is_none_or(|failure| !failure.is_broken))
    else {
        return (works, failure);
    };
    let ended = session.run_in_time(&statement::end_turn(&work.key)).await;
    // A session that may still have the lock is closed.
    let broken = ended.err().map(|ended| Failure { is_broken: true, ..failure.clone().unwrap_or(ended) });
    (works, broken.or(failure))
}

/// Ends the transaction in which something failed, unless the session has ended with it.
async fn roll_back(session: &mut Session, failure: Failure) -> Failure {
    if failure.is_broken {
        return failure;
    }
    match session.run_in_time(&["ROLLBACK".to_owned()]).await {
        Ok(_) => failure,
        Err(_) => Failure { is_broken: true, ..failure },
    }
}
