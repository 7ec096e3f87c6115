//! Which file it is, and what can be said about it without opening it.
//!
//! Nothing here opens the file: on Unix, closing any descriptor of it ends the locks that SQLite has on it in this process.

use std::fs;
use std::io;
use std::path::Path;

use crate::backend::{Finding, Severity};

/// Tells a file from another one that later has its name. Where files cannot be deleted while they are open, nothing is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity(#[cfg(unix)] (u64, u64));

impl Identity {
    #[cfg(unix)]
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt;

        let metadata = fs::metadata(path)?;
        Ok(Self((metadata.dev(), metadata.ino())))
    }

    #[cfg(not(unix))]
    pub(super) fn of(_: &Path) -> io::Result<Self> {
        Ok(Self())
    }
}

/// What makes it impossible to open the file, whether or not it is to be created. SQLite would only say that it cannot be opened.
pub(super) fn obstacle(path: &Path) -> Option<String> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Some("it is a directory".to_owned()),
        Ok(_) => None,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty())?;
            let missing = || format!("there is no directory {}", directory.display());
            (!directory.is_dir()).then(missing)
        }
        Err(error) => Some(error.to_string()),
    }
}

/// What the user of this file should know.
pub(super) fn findings(path: &Path) -> Vec<Finding> {
    let Ok(path) = path.canonicalize() else { return Vec::new() };
    // Only Linux has this list.
    let Ok(mounts) = fs::read_to_string("/proc/self/mounts") else { return Vec::new() };
    let network = kind_of(&path, &mounts).filter(|kind| is_network(kind));
    let finding = |kind: &str| {
        let text = format!(
            "{} is on a network file system ({kind}), where locks of several machines do not exclude each other",
            path.display()
        );
        Finding::new(Severity::Warning, text)
    };
    network.map(finding).into_iter().collect()
}

/// The kind of the file system on which the file is, by a list of mounts.
fn kind_of<'a>(path: &Path, mounts: &'a str) -> Option<&'a str> {
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        // Spaces and the like are octal.
        let directory = words.next()?.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\");
        Some((directory, words.next()?))
    });
    let above = mounts.filter(|(directory, _)| path.starts_with(directory));
    // The last one of a directory hides the others.
    above.max_by_key(|(directory, _)| directory.len()).map(|(_, kind)| kind)
}

fn is_network(kind: &str) -> bool {
    ["nfs", "cifs", "smb", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs", "fuse.s3fs"]
        .iter()
        .any(|network| kind.starts_with(network))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_file_system_is_recognized() {
        let mounts =
            "/dev/sda / ext4 rw 0 0\nhost:/x /mnt/a\\040b nfs4 rw 0 0\ntmpfs /mnt/a\\040b/c tmpfs rw 0 0\n";
        let kind = |path: &str| kind_of(Path::new(path), mounts);
        assert_eq!(kind("/mnt/a"), Some("ext4"));
        assert_eq!(kind("/mnt/a b/locks.db"), Some("nfs4"));
        assert_eq!(kind("/mnt/a b/c/locks.db"), Some("tmpfs"));
        assert!(is_network("nfs4") && is_network("cifs") && !is_network("ext4") && !is_network("overlay"));
    }
}
