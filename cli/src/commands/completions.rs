//! `completions`: for a shell, made from the arguments.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::{Args, Completions};
use crate::exit::Failure;
use crate::output;

pub(crate) fn run(wanted: &Completions) -> Result<ExitCode, Failure> {
    output::line_if_read(script(wanted.shell).trim_end())?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "leasehold", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// What is committed is what would be made now. `LEASEHOLD_BLESS=1` writes it.
#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::{env, fs};

    use clap_mangen::Man;

    use super::*;

    const BLESS: &str = "LEASEHOLD_BLESS";

    fn compare(directory: &str, made: &[(String, String)]) {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
        if env::var_os(BLESS).is_some_and(|value| value == "1") {
            fs::create_dir_all(&directory).unwrap();
            for (name, text) in made {
                fs::write(directory.join(name), text).unwrap();
            }
        }
        for (name, text) in made {
            let committed = fs::read_to_string(directory.join(name)).unwrap_or_default();
            assert!(
                committed == *text,
                "{name} is out of date: run the tests of this package with {BLESS}=1"
            );
        }
        let files =
            fs::read_dir(&directory).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        let names = made.iter().map(|(name, _)| name.clone());
        assert_eq!(files.collect::<BTreeSet<_>>(), names.collect(), "{}", directory.display());
    }

    #[test]
    fn completions_are_up_to_date() {
        let shells =
            [(Shell::Bash, "leasehold.bash"), (Shell::Zsh, "_leasehold"), (Shell::Fish, "leasehold.fish")];
        compare("completions", &shells.map(|(shell, name)| (name.to_owned(), script(shell))));
    }

    #[test]
    fn manual_pages_are_up_to_date() {
        let mut command = Args::command();
        command.build();
        let page = |name: String, command: clap::Command| {
            let mut page = Vec::new();
            let source = concat!("leasehold ", env!("CARGO_PKG_VERSION"));
            let man = Man::new(command.display_name(name.clone())).date("").source(source);
            man.render(&mut page).unwrap();
            (format!("{name}.1"), String::from_utf8(page).unwrap())
        };
        let mut pages = vec![page("leasehold".to_owned(), command.clone())];
        for one in command.get_subcommands().filter(|one| one.get_name() != "help") {
            // The page is called as git's are, and the synopsis has a space.
            let name = format!("leasehold-{}", one.get_name());
            pages.push(page(name, one.clone()));
        }
        compare("man", &pages);
    }
}
