//! Opening a session: at whichever server and address answers, its settings, and whether the server and its tables can
//! be used.

use std::net::SocketAddr;

use mysql_async::{Opts, OptsBuilder};

use super::failure::while_opening;
use super::schema::{self, Table};
use super::session::{Session, value};
use super::shared::Mysql;
use super::statement::IDLE;
use crate::backend::records::Failure;
use crate::backend::sql::{self, Host, Place};

/// How long a statement waits for a row that another client has locked, in seconds: as long as a stalled client can
/// keep it.
const LOCK_WAIT: u32 = 1;
/// The oldest versions that have all that is needed.
const OLDEST: (u32, u32) = (8, 0);
const OLDEST_MARIADB: (u32, u32) = (10, 5);
/// What is said of a server that accepts no changes.
const READ_ONLY: &str = "it is read-only, perhaps a replica: connect to the server that accepts writes";

/// A session with a server that accepts changes, whose tables are still to be checked.
struct Reached {
    session: Session,
    tables: Vec<Table>,
}

/// Opens a session and makes sure that it can be used: with the first of the servers that answers and accepts changes.
pub(super) async fn open(server: &Mysql) -> Result<Session, Failure> {
    let settings = &server.settings;
    let (end, places) = (settings.connected_by(), &settings.target.places);
    let reached = sql::reach(settings, places, end, |n, address| attempt(server, &places[n], address));
    let Reached { mut session, tables } = reached.await.map_err(while_opening)?;
    let prepared = settings.in_time(end, schema::prepare(&mut session, &tables, settings.create)).await;
    prepared.map_err(while_opening)?;
    Ok(session)
}

/// What keeps each of several servers from being used; `None` for those that can be.
pub(super) async fn try_each(server: &Mysql) -> Vec<(&Place, Option<Failure>)> {
    let settings = &server.settings;
    let end = settings.connected_by();
    let each = settings.target.places.iter().map(async |place| {
        let reached = sql::reach_one(settings, place, end, |address| attempt(server, place, address));
        (place, reached.await.err())
    });
    futures::future::join_all(each).await
}

/// Connects, makes the settings of a session, and makes sure that the server can be used.
async fn attempt(server: &Mysql, place: &Place, address: Option<SocketAddr>) -> Result<Reached, Failure> {
    let opts = of_place(&server.settings.target.opts, place, address);
    let mut session = Session::connect(opts, server).await.map_err(while_opening)?;
    let statements = [
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".to_owned(),
        // Limits that a session may lift for itself are lifted: MariaDB executes the first comment, MySQL the second.
        format!(
            "SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', \
             innodb_lock_wait_timeout = {LOCK_WAIT}, lock_wait_timeout = {LOCK_WAIT}, wait_timeout = {IDLE}, \
             sql_safe_updates = 0 /*M!100500 , max_statement_time = 0 */ /*!80000 , max_execution_time = 0 */"
        ),
        "SELECT VERSION(), CAST(@@GLOBAL.read_only AS CHAR)".to_owned(),
        schema::EXIST.to_owned(),
    ];
    let answers = session.run(&statements).await.map_err(|failure| {
        let has_no_innodb = failure.why.contains("innodb_lock_wait_timeout");
        let failure = while_opening(failure);
        if has_no_innodb { Failure::refused("it lacks InnoDB, which is needed") } else { failure }
    })?;
    let [.., server, tables] = &answers[..] else { return Err(sql::missing()) };
    let Some(server) = server.rows.first() else { return Err(sql::missing()) };
    check_version(&value::<String>(server, 0)?)?;
    let is_read_only: String = value(server, 1)?;
    if !["0", "OFF"].contains(&&*is_read_only) {
        return Err(Failure::not_now(READ_ONLY));
    }
    let tables = tables.rows.iter().map(Table::of).collect::<Result<_, _>>()?;
    Ok(Reached { session, tables })
}

/// The certificate is verified for the name of the host.
fn of_place(opts: &Opts, place: &Place, address: Option<SocketAddr>) -> Opts {
    let Some(address) = address else { return opts.clone() };
    let opts = OptsBuilder::from_opts(opts.clone()).tcp_port(place.port);
    let opts = match &place.host {
        Host::Name(host) => opts.ip_or_hostname(host.clone()),
        Host::Address(_) | Host::Socket => opts,
    };
    opts.resolved_ips(Some(vec![address.ip()])).into()
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
