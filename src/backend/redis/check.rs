//! Checks of a server: whether it can be used for locks, and what its user should know.

use futures::FutureExt;
use futures::future::try_join4;

use super::link::Value;
use super::link::{CallError, Link, command};
use crate::backend::{Finding, Severity};

/// The commands that the scripts use.
const COMMANDS: &str = "DEL EXISTS GET GETRANGE SET PSETEX APPEND PEXPIRE PEXPIREAT PTTL TIME PUBLISH HDEL HEXISTS HGET HGETALL HKEYS HLEN HMGET \
     HSET HSETNX ZADD ZCARD ZCOUNT ZRANDMEMBER ZRANGE ZRANGEBYSCORE ZRANK ZREM ZREMRANGEBYSCORE ZREVRANGE ZSCORE PUBSUB";

/// Calls each command of a list on keys that are deleted afterwards, and returns those that this user may not run, or
/// that the server does not have. Other errors, for instance because the user may not use these keys, do not matter.
/// The answers of servers differ: "no permissions to run the 'x' command" from version 7, "can't run this command"
/// before.
const TRY_COMMANDS: &str = "local denied, key = {}, KEYS[1]
local args = {
  DEL = {key}, EXISTS = {key}, GET = {key}, GETRANGE = {key, 0, 1}, SET = {key, '', 'XX'}, PSETEX = {key .. '1', 1, ''}, APPEND = {key .. '1', ''},
  PEXPIRE = {key, 1}, PEXPIREAT = {key, 1}, PTTL = {key}, TIME = {}, PUBLISH = {ARGV[2], 'probe'}, HDEL = {key, 'a'}, HEXISTS = {key, 'a'}, HGET = {key, 'a'}, HGETALL = {key},
  HKEYS = {key}, HLEN = {key}, HMGET = {key, 'a'}, HSET = {key .. '2', 'a', ''}, HSETNX = {key .. '2', 'a', ''},
  ZADD = {key, 'XX', 1, 'a'}, ZCARD = {key}, ZCOUNT = {key, 0, 1}, ZRANDMEMBER = {key}, ZRANGE = {key, 0, 1},
  ZRANGEBYSCORE = {key, 0, 1}, ZRANK = {key, 'a'}, ZREM = {key, 'a'}, ZREMRANGEBYSCORE = {key, 0, 1}, ZREVRANGE = {key, 0, 1},
  ZSCORE = {key, 'a'}, PUBSUB = {'NUMSUB', ARGV[2]},
}
for name in string.gmatch(ARGV[1], '%S+') do
  local answer = redis.pcall(name, unpack(args[name]))
  local problem = type(answer) == 'table' and answer.err or ''
  if string.find(problem, 'permissions to run', 1, true) or string.find(problem, 'run this command', 1, true)
    or string.find(problem, 'Unknown Redis command', 1, true) then
    denied[#denied + 1] = name
  end
end
redis.pcall('DEL', key .. '1')
redis.pcall('DEL', key .. '2')
return denied";

/// What a client expects of its servers.
#[derive(Debug)]
pub(super) struct Expected {
    /// Whether they should be nodes of a cluster.
    pub(super) in_cluster: bool,
    /// Whether grants wait for replicas.
    pub(super) has_replicas: bool,
    /// The channel of the client.
    pub(super) channel: String,
    /// The address of the store, for tracing.
    pub(super) store: String,
}

/// Checks the server of a link. Whatever the user may not query is left out.
pub(super) async fn findings(link: &dyn Link, expected: &Expected) -> Result<Vec<Finding>, CallError> {
    let (hello, info, save, denied) = try_join4(
        Hello::of(link),
        command(link, &["INFO"]).map(allowed),
        command(link, &["CONFIG", "GET", "save"]).map(allowed),
        denied(link, expected),
    )
    .await?;
    let info = info.as_ref().and_then(Value::as_str).unwrap_or_default();
    let field = |name: &str| {
        let mut lines = info.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(field, _)| *field == name).map(|(_, value)| value.trim())
    };
    let mut findings = Vec::new();
    findings.extend(hello.refusal(expected.in_cluster).map(|text| Finding::new(Severity::Refused, text)));
    if !denied.is_empty() {
        let text = format!(
            "this user lacks permission for required commands: {} (or the server has them under other names)",
            denied.join(", ")
        );
        findings.push(Finding::new(Severity::Refused, text));
    }
    if let Some(policy) = field("maxmemory_policy").filter(|policy| *policy != "noeviction") {
        findings.push(Finding::new(
            Severity::Warning,
            format!(
                "`maxmemory-policy` is `{policy}`: a server that is short of memory may evict locks while they are held. Set it to \
                 `noeviction`"
            ),
        ));
    }
    let has_no_snapshots = save.is_some_and(|save| save.as_list().get(1).and_then(Value::as_str) == Some(""));
    if field("aof_enabled") == Some("0") && has_no_snapshots && !expected.has_replicas {
        let text = "the server has no persistence and grants do not wait for replicas: if it restarts, locks are forgotten while they \
                    are held. Tokens keep increasing";
        findings.push(Finding::new(Severity::Info, text));
    }
    Ok(findings)
}

/// What a server tells every user about itself, in its answer to HELLO.
#[derive(Debug, Default)]
pub(super) struct Hello {
    version: Option<String>,
    mode: Option<String>,
    role: Option<String>,
}

impl Hello {
    /// Repeats a query that the client library has already sent: it changes nothing, and every user may send it.
    pub(super) async fn of(link: &dyn Link) -> Result<Self, CallError> {
        let answer = allowed(command(link, &["HELLO", "3"]).await)?;
        let field = |name: &str| {
            let mut fields = answer.as_ref().map(Value::as_list).unwrap_or_default().chunks_exact(2);
            let [_, value] = fields.find(|field| field[0].as_str() == Some(name))? else { return None };
            value.as_str().map(str::to_owned)
        };
        Ok(Self { version: field("version"), mode: field("mode"), role: field("role") })
    }

    pub(super) fn is_replica(&self) -> bool {
        self.role.as_deref() == Some("replica")
    }

    /// Why the server cannot be used, by any user, whether or not it is a replica.
    pub(super) fn refusal(&self, in_cluster: bool) -> Option<String> {
        match self.mode.as_deref() {
            Some("cluster") if !in_cluster => {
                let text = "this server is a node of a cluster: use `redis-cluster://`, because one node serves only some of the names";
                return Some(text.to_owned());
            }
            Some("sentinel") => {
                return Some(
                    "this server is a sentinel: use `redis-sentinel://HOST:PORT/SERVICE`".to_owned(),
                );
            }
            _ => {}
        }
        let version = self.version.as_deref().filter(|version| is_too_old(version))?;
        Some(too_old(&format!("it has version {version}")))
    }
}

/// The required commands that this user may not run.
async fn denied(link: &dyn Link, expected: &Expected) -> Result<Vec<String>, CallError> {
    let mut denied = Vec::new();
    // No script has this digest. First, because a client library may give up a link on which a node answers that its
    // cluster is down.
    denied.extend(denies(link, &["EVALSHA", &"0".repeat(40), "0"]).await?);
    if expected.has_replicas {
        denied.extend(denies(link, &["WAIT", "0", "0"]).await?);
    }
    // Under the default prefix, so that a user with only the permissions of `docs/stores/acl.md` may use it.
    let key = format!("{{lock:leasehold-check-{}}}", uuid::Uuid::new_v4().simple());
    match command(link, &["EVAL", TRY_COMMANDS, "1", &key, COMMANDS, &expected.channel]).await {
        Ok(answer) => {
            denied.extend(answer.as_list().iter().filter_map(Value::as_str).map(str::to_owned));
        }
        Err(error) if is_denied(&error) => denied.push("EVAL".to_owned()),
        Err(error) if error.is_refusal_for_now() => return Err(error),
        // The user may not use this key, or another node would serve it.
        Err(CallError::Answer(_)) => {}
        Err(error) => return Err(error),
    }
    Ok(denied)
}

/// The name of a command if this user may not run it.
async fn denies(link: &dyn Link, words: &[&str]) -> Result<Option<String>, CallError> {
    match command(link, words).await {
        Err(error) if is_denied(&error) => Ok(Some(words[0].to_owned())),
        Err(error) if error.is_refusal_for_now() => Err(error),
        Ok(_) | Err(CallError::Answer(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether this user may not run the command at all, or the server does not have it (`rename-command`). (If it may not
/// use the keys or channels, the answer says "to access" them.)
fn is_denied(error: &CallError) -> bool {
    matches!(error, CallError::Answer(text)
        if text.starts_with("NOPERM") && text.contains("to run") || text.contains("unknown command"))
}

/// The answer, unless this user has no permission for it.
fn allowed(answer: Result<Value, CallError>) -> Result<Option<Value>, CallError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(CallError::Answer(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What is said about a server that is too old.
pub(super) fn too_old(how: &str) -> String {
    format!("Redis 6.2 or later, or Valkey, is needed: this server is older ({how})")
}

fn is_too_old(version: &str) -> bool {
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default()) < (6, 2)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// What the scripts call: `call('NAME'`.
    fn called(dir: &Path, names: &mut BTreeSet<String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                called(&path, names);
                continue;
            }
            let source = fs::read_to_string(&path).unwrap();
            names.extend(
                source.split("call('").skip(1).map(|rest| rest[..rest.find('\'').unwrap()].to_owned()),
            );
        }
    }

    #[test]
    fn every_command_of_the_scripts_is_tried() {
        let mut names = BTreeSet::new();
        called(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/backend/redis/lua"), &mut names);
        let tried: BTreeSet<_> = COMMANDS.split_whitespace().map(str::to_owned).collect();
        assert_eq!(tried, names);
        for name in tried {
            assert!(TRY_COMMANDS.contains(&format!(" {name} = {{")), "{name}");
        }
    }

    #[test]
    fn versions_below_six_two_are_too_old() {
        for (version, old) in
            [("5.0.14", true), ("6.0.9", true), ("6.2.0", false), ("7.2.4", false), ("10.0", false)]
        {
            assert_eq!(is_too_old(version), old, "{version}");
        }
    }
}
