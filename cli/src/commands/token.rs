//! `token`: the fencing token under which something is held.

use std::process::ExitCode;

use leasehold::Client;

use crate::args::{Args, Token};
use crate::exit::{Failure, NO};
use crate::{find, output, report, visit, wording};

pub(crate) async fn run(args: &Args, wanted: &Token) -> Result<ExitCode, Failure> {
    visit::connected(args, async |client| print(args, wanted, client).await).await
}

async fn print(args: &Args, wanted: &Token, client: &Client) -> Result<ExitCode, Failure> {
    let found = find::in_use(client, &wanted.which).await?;
    let name = &wanted.which.name;
    let mut printed = 0;
    for one in &found {
        // All holds of an owner have the same.
        let mut tokens: Vec<_> = one.now.holders.iter().filter_map(|holder| holder.token).collect();
        tokens.sort_unstable();
        tokens.dedup();
        for token in tokens {
            let token = token.get();
            let line = report::Token { name: name.clone(), kind: one.purpose.as_str(), token };
            if args.json {
                output::json(&line)?
            } else {
                output::line(&token.to_string())?
            }
            printed += 1;
        }
    }
    if printed == 0 {
        let why = if found.iter().any(find::Found::is_held) {
            "is held by a client of another library, which has no token"
        } else {
            "is not held"
        };
        output::note(&format!("{} {why}", wording::clean(name)));
    }
    Ok(ExitCode::from(if printed == 0 { NO } else { 0 }))
}
