//! `down` leaves nothing behind, whatever was killed: a whole lab's processes,
//! or the very command that was bringing it up.

use crate::Ground;
use crate::support::{Failure, Outcome, ensure};
use sluice_lab::{CONTROLLER, Lab, Options, Paths, down};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = Lab::up(Options::standard(&ground.name, &ground.binary)?).await?;
    ensure!(!traces(&ground.name).await?.is_empty(), "a lab that is up has no traces: the test is blind");
    let names: Vec<&str> = lab.state().nodes.keys().map(String::as_str).chain([CONTROLLER]).collect();
    for name in names {
        lab.kill(name).await?;
    }
    gone(&ground.name).await?;
    for millis in [150, 700, 2000, 4000] {
        let mut up = tokio::process::Command::new(&ground.binary)
            .args(["lab", "up", "--name", &ground.name])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        tokio::time::sleep(Duration::from_millis(millis)).await;
        up.kill().await?;
        gone(&ground.name).await?;
    }
    // Removing a lab that does not exist succeeds.
    gone(&ground.name).await
}

async fn gone(name: &str) -> Outcome {
    down(name).await?;
    let left = traces(name).await?;
    ensure!(left.is_empty(), "left behind: {left:?}");
    Ok(())
}

/// Everything that exists of a lab: files, namespaces, links, pins, processes.
pub async fn traces(name: &str) -> Result<Vec<String>, Failure> {
    let paths = Paths::new(name)?;
    let mut found = Vec::new();
    if paths.root().exists() {
        found.push(paths.root().display().to_string());
    }
    let prefix = paths.namespace_prefix();
    for directory in [Path::new("/run/netns"), &Paths::pins()] {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let own = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
        found.extend(own.map(|entry| entry.path().display().to_string()));
    }
    let links = tokio::process::Command::new("ip").args(["-o", "link", "show"]).output().await?;
    let links = String::from_utf8_lossy(&links.stdout).into_owned();
    found.extend(links.lines().filter(|line| line.contains(&paths.bridge_mac())).map(str::to_owned));
    let mark = format!("SLUICE_LAB_PROCESS={name}");
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()) {
            found.push(entry.path().display().to_string());
        }
    }
    Ok(found)
}
