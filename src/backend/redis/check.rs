//! A look at a server: whether it can carry locks, and what its user should know.

use super::connection::{command, too_old};
use super::link::{CallError, Link};
use super::value::Value;
use crate::backend::{Finding, Severity};

/// The commands that the scripts use.
const COMMANDS: &str = "DEL EXISTS GET SET APPEND PEXPIRE PEXPIREAT PTTL TIME PUBLISH HDEL HEXISTS HGET HGETALL HKEYS HLEN HMGET HSET \
     HSETNX ZADD ZCARD ZCOUNT ZRANDMEMBER ZRANGE ZRANGEBYSCORE ZRANK ZREM ZREMRANGEBYSCORE ZREVRANGE ZSCORE PUBSUB";

/// Calls each command of a list on keys that are gone afterwards, and returns those that this user may not run. What else goes
/// wrong, because the user may not use these keys, say, does not matter. The answers of servers differ: "no permissions to run the
/// 'x' command" from version 7, "can't run this command" before.
const TRY_COMMANDS: &str = "local denied, key = {}, KEYS[1]
local args = {
  DEL = {key}, EXISTS = {key}, GET = {key}, SET = {key, '', 'XX'}, APPEND = {key .. '1', ''}, PEXPIRE = {key, 1}, PEXPIREAT = {key, 1},
  PTTL = {key}, TIME = {}, PUBLISH = {ARGV[2], 'probe'}, HDEL = {key, 'a'}, HEXISTS = {key, 'a'}, HGET = {key, 'a'}, HGETALL = {key},
  HKEYS = {key}, HLEN = {key}, HMGET = {key, 'a'}, HSET = {key .. '2', 'a', ''}, HSETNX = {key .. '2', 'a', ''},
  ZADD = {key, 'XX', 1, 'a'}, ZCARD = {key}, ZCOUNT = {key, 0, 1}, ZRANDMEMBER = {key}, ZRANGE = {key, 0, 1},
  ZRANGEBYSCORE = {key, 0, 1}, ZRANK = {key, 'a'}, ZREM = {key, 'a'}, ZREMRANGEBYSCORE = {key, 0, 1}, ZREVRANGE = {key, 0, 1},
  ZSCORE = {key, 'a'}, PUBSUB = {'NUMSUB', ARGV[2]},
}
for name in string.gmatch(ARGV[1], '%S+') do
  local answer = redis.pcall(name, unpack(args[name]))
  local problem = type(answer) == 'table' and answer.err or ''
  if string.find(problem, 'permissions to run', 1, true) or string.find(problem, 'run this command', 1, true) then
    denied[#denied + 1] = name
  end
end
redis.pcall('DEL', key .. '1')
redis.pcall('DEL', key .. '2')
return denied";

/// What is asked about besides what holds everywhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    /// Whether the server should be a node of a cluster.
    pub(super) in_cluster: bool,
    /// Whether grants wait for replicas.
    pub(super) has_replicas: bool,
}

/// Looks at the server of a link. What the user may not ask for is left out.
pub(super) async fn look(
    link: &dyn Link,
    expected: Expected,
    channel: &str,
) -> Result<Vec<Finding>, CallError> {
    let mut findings = Vec::new();
    let info = allowed(command(link, &["INFO"]).await)?;
    let info = info.as_ref().and_then(Value::as_str).unwrap_or_default();
    let field = |name: &str| {
        let mut lines = info.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(field, _)| *field == name).map(|(_, value)| value.trim())
    };
    if field("cluster_enabled") == Some("1") && !expected.in_cluster {
        let text = "this server is a node of a cluster: use `redis-cluster://`, or it would serve a part of all names only";
        findings.push(Finding::new(Severity::Refused, text));
    }
    if let Some(version) = field("redis_version").filter(|version| is_too_old(version)) {
        findings.push(Finding::new(Severity::Refused, too_old(&format!("it has version {version}"))));
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
    let save = allowed(command(link, &["CONFIG", "GET", "save"]).await)?;
    let has_no_snapshots = save.is_some_and(|save| save.as_list().get(1).and_then(Value::as_str) == Some(""));
    if field("aof_enabled") == Some("0") && has_no_snapshots && !expected.has_replicas {
        let text = "the server keeps nothing on disk and grants wait for no replicas: when it restarts, locks are forgotten while they \
                    are held. Tokens keep increasing";
        findings.push(Finding::new(Severity::Info, text));
    }
    findings.extend(missing_rights(link, channel).await?);
    Ok(findings)
}

/// What this user may not do, but has to.
async fn missing_rights(link: &dyn Link, channel: &str) -> Result<Option<Finding>, CallError> {
    // No script has this digest. First, because a client library may give up a link on which a node answers that its cluster is down.
    let denies_digests = match command(link, &["EVALSHA", &"0".repeat(40), "0"]).await {
        Err(CallError::Answer(text)) => text.starts_with("NOPERM"),
        Ok(_) => false,
        Err(error) => return Err(error),
    };
    // Under the default prefix, so that a user with no other rights than those of `docs/acl.md` may use it.
    let key = format!("{{lock:leasehold-check-{}}}", uuid::Uuid::new_v4().simple());
    let mut denied = match command(link, &["EVAL", TRY_COMMANDS, "1", &key, COMMANDS, channel]).await {
        Ok(denied) => denied.as_list().iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        Err(CallError::Answer(text)) if text.contains("run") && text.contains("eval") => {
            vec!["EVAL".to_owned()]
        }
        // The user may not use this key, or another node would serve it.
        Err(CallError::Answer(_)) => Vec::new(),
        Err(error) => return Err(error),
    };
    denied.extend(denies_digests.then(|| "EVALSHA".to_owned()));
    Ok((!denied.is_empty()).then(|| {
        let denied = denied.join(", ");
        Finding::new(Severity::Refused, format!("this user may not run commands that are needed: {denied}"))
    }))
}

/// The answer, unless this user may not have it.
fn allowed(answer: Result<Value, CallError>) -> Result<Option<Value>, CallError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(CallError::Answer(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_too_old(version: &str) -> bool {
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default()) < (6, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_below_six_two_are_too_old() {
        for (version, old) in
            [("5.0.14", true), ("6.0.9", true), ("6.2.0", false), ("7.2.4", false), ("10.0", false)]
        {
            assert_eq!(is_too_old(version), old, "{version}");
        }
    }
}
