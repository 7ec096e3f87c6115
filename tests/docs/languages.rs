//! Every block of code names its language, and something checks it.

use std::collections::BTreeSet;

use yaml_rust2::YamlLoader;

use crate::page::{Code, files, pages, root, text_of};

/// Those on which the blocks of [`commands`](crate::commands) are run.
const STORES: [&str; 6] = ["redis", "postgres", "mysql", "sqlite", "etcd", "zookeeper"];

#[test]
fn every_block_of_code_is_checked() {
    let compiled = text_of(&root().join("tests/docs/lib.rs"));
    let mut wrong = Vec::new();
    for page in pages() {
        let is_compiled = compiled.contains(&format!("\"{}\"", page.name()));
        for code in &page.code {
            if let Err(why) = check(code, is_compiled) {
                wrong.push(format!("{}: {why}:\n{}", page.name(), code.text));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn check(code: &Code, is_compiled: bool) -> Result<(), String> {
    match code.language() {
        "rust" if !is_compiled => Err("tests/docs/lib.rs does not have this page".to_owned()),
        "rust" if code.has("ignore") => Err("`ignore` means that nothing compiles it".to_owned()),
        "rust" | "text" => Ok(()),
        "sh" if code.tags.len() == 1 => code.text.lines().try_for_each(command_of_the_repository),
        "sh" | "sql" | "lua" => match code.store() {
            Some(store) if STORES.contains(&store) => Ok(()),
            store => Err(format!("it runs on {store:?}, not on one of {STORES:?}")),
        },
        "json" => serde_json::from_str(&code.text).map(|_: serde_json::Value| ()).map_err(|e| e.to_string()),
        "toml" => toml::from_str(&code.text).map(|_: toml::Table| ()).map_err(|error| error.to_string()),
        "yaml" => YamlLoader::load_from_str(&code.text).map(drop).map_err(|error| error.to_string()),
        other => Err(format!("nothing checks the language {other:?}")),
    }
}

/// It is not run, because it would take too long or needs a network, but what it names exists.
fn command_of_the_repository(line: &str) -> Result<(), String> {
    let line = line.split('#').next().unwrap_or_default().trim();
    let words: Vec<_> = line.split_whitespace().skip_while(|word| word.contains('=')).collect();
    let known = |what: &str, is_there: bool| {
        if is_there { Ok(()) } else { Err(format!("there is no {what}")) }
    };
    match words[..] {
        [] | ["export", _] => Ok(()),
        [script, ..] if script.contains('/') => known(script, root().join(script).is_file()),
        ["cargo", "add" | "run" | "test" | "bench" | "install", ..] => {
            let values = |option: &str| -> Vec<&str> {
                let pairs = words.windows(2).take_while(|pair| pair[0] != "--");
                pairs.filter(|pair| pair[0] == option).flat_map(|pair| pair[1].split(',')).collect()
            };
            for example in values("--example").into_iter().filter(|example| *example != "NAME") {
                known(example, root().join(format!("examples/{example}.rs")).is_file())?;
            }
            for test in values("--test") {
                known(test, root().join(format!("tests/{test}.rs")).is_file())?;
            }
            let features = features();
            values("--features")
                .into_iter()
                .try_for_each(|feature| known(feature, features.contains(feature)))
        }
        // The command line.
        ["leasehold", ..] => {
            let source: String = files(&root().join("cli/src")).iter().map(|path| text_of(path)).collect();
            let mut options = words[1..].iter().take_while(|word| **word != "--");
            let name = options.find(|word| !word.starts_with('-')).copied().unwrap_or_default();
            let variant =
                name.get(..1).unwrap_or_default().to_uppercase() + name.get(1..).unwrap_or_default();
            known(name, source.split(|c: char| !c.is_alphanumeric()).any(|word| word == variant))
        }
        _ => Err(format!("say on which store `{line}` is run")),
    }
}

pub(crate) fn features() -> BTreeSet<String> {
    let manifest = text_of(&root().join("Cargo.toml"));
    let manifest: toml::Table = toml::from_str(&manifest).expect("it is TOML");
    manifest["features"].as_table().expect("a table").keys().cloned().collect()
}
