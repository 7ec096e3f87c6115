//! Whether clients log in as the user of `docs/stores/acl.md`, who has the rights that are needed and no others.

use std::env;

/// Set to 1, clients are that user; commands by hand are sent by the default user in any case.
const ACL: &str = "LEASEHOLD_TEST_ACL";
const DOCS: &str = include_str!("../../docs/stores/acl.md");
/// With characters that are encoded in URLs.
const PASSWORD: &str = "p@ss:word";

/// Whether clients are the user of the docs in this run.
pub fn is_restricted() -> bool {
    env::var_os(ACL).is_some_and(|value| value == "1")
}

/// The user and password in URLs, with the `@`.
pub fn login() -> &'static str {
    if is_restricted() { "leasehold:p%40ss%3Aword@" } else { "" }
}

/// The user that clients are in this run.
pub fn user() -> &'static str {
    if is_restricted() { "leasehold" } else { "default" }
}

/// The URL of the server on a port of this machine.
pub fn url_of(port: u16) -> String {
    format!("redis://{}127.0.0.1:{port}", login())
}

/// The commands of the docs that set up the user, in words: that with all that one server requires, then those with
/// rights that not everybody needs.
pub fn commands() -> Vec<Vec<String>> {
    let docs = DOCS.replace("PASSWORD", PASSWORD).replace("\\|", "|");
    let lines = docs.split(['\n', '`']).filter(|line| line.starts_with("ACL SETUSER leasehold "));
    lines.map(|line| line.split(' ').map(str::to_owned).collect()).collect()
}

/// The rules for the user who can do what every client does.
pub fn rules() -> Vec<String> {
    commands()[0][3..].to_vec()
}

/// The rules that the docs name for more than that, of which one is `right`.
pub fn more_rules(right: &str) -> Vec<String> {
    let all = commands();
    let found = all[1..].iter().find(|words| words.iter().any(|word| word == right));
    found.unwrap_or_else(|| panic!("docs/stores/acl.md does not say what {right} is for"))[3..].to_vec()
}
