//! Opening a session: its settings, and whether the server and its tables can be used.

use tokio::time::timeout;

use super::schema;
use super::session::{Session, value};
use super::settings::Settings;
use super::statement::IDLE;
use crate::backend::records::Failure;

/// How long a statement waits for a row that another client has locked, in seconds: as long as a stalled client can keep it.
const LOCK_WAIT: u32 = 1;
/// The oldest versions that have all that is needed.
const OLDEST: (u32, u32) = (8, 0);
const OLDEST_MARIADB: (u32, u32) = (10, 5);

/// Opens a session and makes sure that it can be used.
pub(super) async fn open(settings: &Settings) -> Result<Session, Failure> {
    let limit = settings.connect_timeout;
    let connecting = async {
        let mut session = Session::connect(settings).await?;
        set_up(&mut session, settings).await?;
        Ok(session)
    };
    let connected = timeout(limit, connecting).await;
    connected.unwrap_or_else(|_| Err(Failure::unavailable(format!("no answer within {limit:?}"))))
}

/// Makes the settings of a session, and makes sure that the server and its tables can be used.
async fn set_up(session: &mut Session, settings: &Settings) -> Result<(), Failure> {
    let statements = [
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".to_owned(),
        format!(
            "SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', \
             innodb_lock_wait_timeout = {LOCK_WAIT}, lock_wait_timeout = {LOCK_WAIT}, wait_timeout = {IDLE}, \
             sql_safe_updates = 0"
        ),
        "SELECT VERSION(), CAST(@@GLOBAL.read_only AS CHAR)".to_owned(),
        schema::EXIST.to_owned(),
    ];
    let answers = session.run(&statements).await.map_err(|failure| {
        let has_no_innodb = failure.why.contains("innodb_lock_wait_timeout");
        if has_no_innodb { Failure::refused("it lacks InnoDB, which is needed") } else { failure }
    })?;
    let [.., server, tables] = &answers[..] else { return Err(missing()) };
    let Some(server) = server.rows.first() else { return Err(missing()) };
    check_version(&value::<String>(server, 0)?)?;
    let is_read_only: String = value(server, 1)?;
    if !["0", "OFF"].contains(&&*is_read_only) {
        let why = "it is read-only, perhaps a replica: connect to the server that accepts writes";
        return Err(Failure::unavailable(why));
    }
    let tables: Result<Vec<(String, Option<String>)>, Failure> =
        tables.rows.iter().map(|row| Ok((value(row, 0)?, value(row, 1)?))).collect();
    schema::prepare(session, &tables?, settings.create).await
}

fn missing() -> Failure {
    Failure::unavailable("an answer is missing")
}

/// `8.0.36`, `10.11.19-MariaDB-0+deb12u1`
fn check_version(version: &str) -> Result<(), Failure> {
    let mut numbers = version.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let Some(known) = numbers.next().zip(numbers.next()) else { return Ok(()) };
    let (oldest, what) =
        if version.contains("MariaDB") { (OLDEST_MARIADB, "MariaDB 10.5") } else { (OLDEST, "MySQL 8.0") };
    if known < oldest {
        return Err(Failure::refused(format!("it has version {version}, but {what} or later is needed")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_are_too_old_are_refused_and_unknown_ones_are_not() {
        for version in
            ["8.0.36", "9.1.0-log", "10.5.0-MariaDB", "11.4.2-MariaDB-ubu2404", "8.0.mysql_aurora.3.05.2"]
        {
            check_version(version).unwrap();
        }
        check_version("unknown").unwrap();
        for version in ["5.7.44-log", "10.4.32-MariaDB"] {
            check_version(version).unwrap_err();
        }
    }
}
