//! `sluice lab run`, which is what `make run` does: VMs reach each other and the Internet, the Internet reaches a VM, a gateway dies during a download
//! that goes on, and Ctrl-C removes everything.
//!
//! Catches: a demonstration that fails or says too little; a lab that does not end.

use crate::Ground;
use crate::leftovers::traces;
use crate::support::{Failure, Outcome, ensure};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// The whole demonstration, of which the download takes the longest. It took 25 s.
const SHOWN: Duration = Duration::from_secs(120);
/// Until a lab is removed.
const ENDED: Duration = Duration::from_secs(30);
/// What a user waits for.
const LAST: &str = "Ctrl-C ends the lab.";
/// What must be said, at the beginning of a line and somewhere in it.
const SAID: [(&str, &str); 9] = [
    ("Within a VPC, across hosts:", ""),
    ("Between peered VPCs:", ""),
    ("Between tenants (must be refused):", ""),
    ("To the Internet: ", "gets http://198.51.100.130/: Welcome to the Internet."),
    ("To the Internet: ", "gets http://[2001:db8:100:3::2]/: Welcome to the Internet."),
    ("From the Internet: ", " answers "),
    ("A gateway dies: ", " is cut off and killed during a download"),
    ("  ", " by the same connection"),
    ("  ", " is back"),
];

pub async fn scenario(ground: &Ground) -> Outcome {
    let mut run = Command::new(&ground.binary)
        .args(["lab", "run", "--name", &ground.name])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let said = timeout(SHOWN, until_the_end(&mut run)).await;
    let said = said.map_err(|_| Failure::new(format!("the demonstration took longer than {SHOWN:?}")))??;
    for (begin, part) in SAID {
        let is_said = said.iter().any(|line| line.starts_with(begin) && line.contains(part));
        ensure!(is_said, "no line `{begin}...{part}` in {said:#?}");
    }
    let pid = run.id().ok_or_else(|| Failure::new("the lab has ended"))?.to_string();
    Command::new("kill").args(["-INT", &pid]).status().await?;
    let status = timeout(ENDED, run.wait()).await;
    let status = status.map_err(|_| Failure::new(format!("the lab did not end within {ENDED:?}")))??;
    ensure!(status.success(), "the lab ended with {status}");
    let left = traces(&ground.name).await?;
    ensure!(left.is_empty(), "left behind: {left:?}");
    Ok(())
}

/// The lines of the output, up to the last one.
async fn until_the_end(run: &mut Child) -> Result<Vec<String>, Failure> {
    let output = run.stdout.take().ok_or_else(|| Failure::new("no output"))?;
    let mut lines = BufReader::new(output).lines();
    let mut said = Vec::new();
    while let Some(line) = lines.next_line().await? {
        if line == LAST {
            return Ok(said);
        }
        said.push(line);
    }
    Err(Failure::new(format!("it ended after {said:#?}")))
}
