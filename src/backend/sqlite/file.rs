//! Which file it is, and what can be said about it without opening it.
//!
//! Nothing here opens the file: on Unix, closing any descriptor of it ends the locks that SQLite has on it in this
//! process.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::backend::{Finding, Severity};

/// The files that SQLite keeps beside a file in use.
const BESIDE: [&str; 2] = ["-wal", "-shm"];

/// Distinguishes a file, and those beside it, from others that later have their names. Where open files cannot be
/// deleted, nothing is needed.
#[derive(Debug)]
pub(super) struct Identity {
    file: Option<Id>,
    beside: [Option<Id>; BESIDE.len()],
}

/// What became of a file in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Intact,
    /// It was deleted, or another one has its name.
    Replaced,
    /// The same is true of this file beside it. A program that opens it now does not see the changes of those that have
    /// it open.
    Torn(&'static str),
}

#[cfg(unix)]
type Id = (u64, u64);
#[cfg(not(unix))]
type Id = ();

/// `None` if there is no such file.
#[cfg(unix)]
fn id_of(path: &Path) -> Option<Id> {
    use std::os::unix::fs::MetadataExt;

    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
const fn id_of(_: &Path) -> Option<Id> {
    Some(())
}

impl Identity {
    /// Of a file that has been written to, and is open.
    pub(super) fn of(path: &Path) -> Self {
        Self { file: id_of(path), beside: BESIDE.map(|suffix| id_of(&beside(path, suffix))) }
    }

    /// What has become of it.
    pub(super) fn fate(&self, path: &Path) -> Fate {
        if self.file.is_none() || id_of(path) != self.file {
            return Fate::Replaced;
        }
        let mut beside_it = BESIDE.into_iter().zip(&self.beside);
        let torn = beside_it.find(|(suffix, id)| id.is_none() || id_of(&beside(path, suffix)) != **id);
        torn.map_or(Fate::Intact, |(suffix, _)| Fate::Torn(suffix))
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// What makes it impossible to open the file, whether or not it should be created. SQLite would say only that it cannot
/// be opened.
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

/// What this process or the machine lacks at the moment to open the file and those beside it.
pub(super) fn lack(path: &Path) -> Option<String> {
    let directory = path.parent()?;
    // As many as SQLite needs, at the same time.
    let opened: io::Result<Vec<_>> = (0..=BESIDE.len()).map(|_| fs::File::open(directory)).collect();
    opened.err().filter(is_lack).map(|error| format!("it cannot be opened at the moment: {error}"))
}

/// Whether a file could not be opened because there are too many open ones (in the process or on the machine), or too
/// little memory.
#[cfg(unix)]
fn is_lack(error: &io::Error) -> bool {
    // ENFILE and EMFILE: these numbers are the same on every Unix.
    matches!(error.raw_os_error(), Some(23 | 24)) || error.kind() == io::ErrorKind::OutOfMemory
}

#[cfg(not(unix))]
fn is_lack(error: &io::Error) -> bool {
    // ERROR_TOO_MANY_OPEN_FILES.
    error.raw_os_error() == Some(4) || error.kind() == io::ErrorKind::OutOfMemory
}

/// What the user of this file should know.
pub(super) fn findings(path: &Path) -> Vec<Finding> {
    let Ok(path) = path.canonicalize() else { return Vec::new() };
    // Only Linux has this list.
    let Ok(mounts) = fs::read_to_string("/proc/self/mounts") else { return Vec::new() };
    let other = kind_of(&path, &mounts).filter(|kind| !is_local(kind));
    let finding = |kind: &str| {
        let text = format!(
            "{} is on a file system of the type `{kind}`, which is not known to be local: if several machines share it, their locks do not \
             exclude each other",
            path.display()
        );
        Finding::new(Severity::Warning, text)
    };
    other.map(finding).into_iter().collect()
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

/// Whether a file system of this type is used by one machine only. There are too many of the others to name them.
fn is_local(kind: &str) -> bool {
    const LOCAL: [&str; 38] = [
        "apfs",
        "aufs",
        "bcachefs",
        "btrfs",
        "devtmpfs",
        "ecryptfs",
        "exfat",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "fuse.fuse-overlayfs",
        "fuseblk",
        "hfs",
        "hfsplus",
        "hugetlbfs",
        "iso9660",
        "jffs2",
        "jfs",
        "lxfs",
        "minix",
        "msdos",
        "nilfs2",
        "ntfs",
        "ntfs3",
        "overlay",
        "overlayfs",
        "ramfs",
        "reiser4",
        "reiserfs",
        "rootfs",
        "squashfs",
        "tmpfs",
        "ubifs",
        "udf",
        "ufs",
        "vfat",
        "wslfs",
    ];
    matches!(kind, "xfs" | "zfs") || LOCAL.contains(&kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_system_of_a_file_is_found() {
        let mounts =
            "/dev/sda / ext4 rw 0 0\nhost:/x /mnt/a\\040b nfs4 rw 0 0\ntmpfs /mnt/a\\040b/c tmpfs rw 0 0\n";
        let kind = |path: &str| kind_of(Path::new(path), mounts);
        assert_eq!(kind("/mnt/a"), Some("ext4"));
        assert_eq!(kind("/mnt/a b/locks.db"), Some("nfs4"));
        assert_eq!(kind("/mnt/a b/c/locks.db"), Some("tmpfs"));
    }

    #[test]
    fn only_what_is_known_to_be_local_is_not_reported() {
        for kind in "apfs btrfs ext2 ext3 ext4 f2fs fuseblk hfs overlay ramfs tmpfs xfs zfs".split(' ') {
            assert!(is_local(kind), "{kind}");
        }
        let shared = "nfs nfs4 cifs smb3 smbfs 9p afs ceph glusterfs lustre gpfs ocfs2 gfs2 virtiofs vboxsf vmhgfs prl_fs beegfs pvfs2 orangefs \
                      fuse.sshfs fuse.s3fs fuse.glusterfs fuse.juicefs fuse.ceph-fuse fuse.rclone fuse.mfs fuse.lustre fuse.vmhgfs-fuse fuse new";
        for kind in shared.split_whitespace() {
            assert!(!is_local(kind), "{kind}");
        }
    }
}
