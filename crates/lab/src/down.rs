//! Ends a lab. It uses names alone, so that a lab whose state was never written, or
//! whose processes were killed, is removed as well.

use crate::error::{Error, IoContext, Result};
use crate::net;
use crate::paths::Paths;
use crate::process;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Lock of a lab while a command brings it up or down; released when the process ends.
pub(crate) type Lock = Flock<File>;

/// Creates the lab's directory if necessary and locks it. After a command was killed, a child that it was
/// starting may hold the lock for a moment.
pub(crate) async fn lock(paths: &Paths) -> Result<Lock> {
    let root = paths.root();
    let until = Instant::now() + Duration::from_secs(2);
    loop {
        // It contains tokens and keys of the cloud.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&root).context("cannot make", &root)?;
        let directory = File::open(&root).context("cannot open", &root)?;
        match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err(_) if Instant::now() > until => return Err(Error::Busy(paths.name().to_owned())),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Whether a lab has a directory or namespaces.
pub(crate) fn exists(paths: &Paths) -> bool {
    paths.root().exists() || !net::namespaces(paths).is_empty()
}

/// Ends the lab of a name: processes, mounts, links, namespaces, pins, files.
/// A lab that does not exist is no error.
///
/// # Errors
/// [`Error::Busy`] while another command uses the lab; [`Error::LeftBehind`] if something could not be removed.
pub async fn down(name: &str) -> Result<()> {
    let paths = Paths::new(name)?;
    let lock = lock(&paths).await?;
    clear(&paths).await?;
    finish(&paths, lock)
}

/// Removes the lab's directory, and the common one if it is the last lab's.
pub(crate) fn finish(paths: &Paths, lock: Lock) -> Result<()> {
    fs::remove_dir(paths.root()).context("cannot remove", paths.root())?;
    drop(lock);
    // This fails while other labs exist.
    let _ = fs::remove_dir(Paths::labs());
    Ok(())
}

/// Removes everything but the locked directory itself.
pub(crate) async fn clear(paths: &Paths) -> Result<()> {
    let stubborn = process::end_all(paths).await;
    unmount(paths)?;
    net::remove(paths).await?;
    remove_pins(paths)?;
    let root = paths.root();
    for entry in fs::read_dir(&root).context("cannot list", &root)?.flatten() {
        let path = entry.path();
        let directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if directory { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.context("cannot remove", path)?;
    }
    check(paths, &stubborn).await
}

/// Unmounts what is mounted in the lab's directory, innermost first.
fn unmount(paths: &Paths) -> Result<()> {
    let root = paths.root();
    let mut mounts: Vec<_> = net::mounts().into_iter().filter(|mount| mount.starts_with(&root)).collect();
    mounts.sort();
    for mount in mounts.iter().rev() {
        nix::mount::umount(mount).map_err(std::io::Error::from).context("cannot unmount", mount)?;
    }
    Ok(())
}

/// Removes the agents' pins, and with them the maps and programs that only they keep in the kernel.
fn remove_pins(paths: &Paths) -> Result<()> {
    let prefix = paths.namespace_prefix();
    let entries = fs::read_dir(Paths::pins()).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)) {
        remove_tree(&entry.path())?;
    }
    let _ = fs::remove_dir(Paths::pins());
    Ok(())
}

fn remove_tree(path: &Path) -> Result<()> {
    fs::remove_dir_all(path).context("cannot remove", path)
}

/// Checks whether anything is left; the kernel takes a moment to remove namespaces.
async fn check(paths: &Paths, stubborn: &[i32]) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let mut left: Vec<String> = stubborn.iter().map(|pid| format!("process {pid}")).collect();
        left.extend(net::namespaces(paths).into_iter().map(|name| format!("namespace {name}")));
        let own = |(_, mac): &(String, String)| *mac == paths.bridge_mac();
        left.extend(net::links().await?.into_iter().filter(own).map(|(name, _)| format!("bridge {name}")));
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(Error::LeftBehind { name: paths.name().to_owned(), left: left.join(", ") });
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
