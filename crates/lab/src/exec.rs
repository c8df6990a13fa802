//! Runs commands in the root namespace or in a place (VM, node, switch) of the lab.
//!
//! A place is entered by `nsenter --net`: only the network changes, so that
//! bpffs and /run stay visible (`ip netns exec` would hide them).

use crate::error::{Error, IoContext, Result};
use crate::paths::Paths;
use std::process::{Output, Stdio};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Environment variable that marks every process of a lab, so that `down`
/// finds those whose record was never written.
pub(crate) const MARK: &str = "SLUICE_LAB_PROCESS";

/// The argument vector that runs `argv` at a place; `None` is the root namespace.
pub(crate) fn argv_at(paths: &Paths, place: Option<&str>, argv: &[String]) -> Vec<String> {
    let Some(place) = place else { return argv.to_vec() };
    let enter = format!("--net={}", paths.namespace_file(place).display());
    ["nsenter".to_owned(), enter, "--".to_owned()].into_iter().chain(argv.iter().cloned()).collect()
}

/// A command at a place, with the mark of the lab; it is killed when its future is dropped.
pub(crate) fn command(paths: &Paths, place: Option<&str>, argv: &[String]) -> Command {
    let argv = argv_at(paths, place, argv);
    let mut command = Command::new(&argv[0]);
    command.args(&argv[1..]).env(MARK, paths.name()).stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// The words as owned strings.
pub(crate) fn words(argv: &[&str]) -> Vec<String> {
    argv.iter().map(|word| (*word).to_owned()).collect()
}

/// Runs a command with `input` and returns what it prints; an error contains the output.
pub(crate) async fn feed(what: &str, mut command: Command, input: &str) -> Result<String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let program = command.as_std().get_program().to_owned();
    let mut child = command.spawn().context("cannot start", &program)?;
    let mut stdin = child.stdin.take();
    let write = async {
        if let Some(pipe) = stdin.as_mut() {
            // A command that fails early closes the pipe; its exit status reports the failure.
            let _ = pipe.write_all(input.as_bytes()).await;
        }
        drop(stdin);
    };
    let (output, ()) = tokio::join!(child.wait_with_output(), write);
    succeed(what, output.context("cannot wait for", program)?)
}

/// The standard output of a command; an error if it failed.
pub(crate) fn succeed(what: &str, output: Output) -> Result<String> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = [output.stderr, output.stdout].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Err(Error::Command {
        what: what.to_owned(),
        status: output.status.to_string(),
        output: text.join("\n").trim().to_owned(),
    })
}

/// Runs `ip -batch` in the root namespace.
pub(crate) async fn ip_batch(paths: &Paths, what: &str, lines: &str) -> Result<()> {
    feed(what, command(paths, None, &words(&["ip", "-batch", "-"])), lines).await.map(drop)
}

/// Runs a shell script at a place.
pub(crate) async fn script(paths: &Paths, place: &str, what: &str, text: &str) -> Result<String> {
    feed(what, command(paths, Some(place), &words(&["sh", "-e"])), text).await
}

/// Fails if the caller is not root or a program that a lab needs is missing.
pub(crate) fn check_tools() -> Result<()> {
    const TOOLS: [(&str, &str); 8] = [
        ("ip", "iproute2"),
        ("nsenter", "util-linux"),
        ("ethtool", "ethtool"),
        ("nft", "nftables"),
        ("busybox", "busybox-static"),
        ("dhclient", "isc-dhcp-client"),
        ("ping", "iputils-ping"),
        ("curl", "curl"),
    ];
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::NotRoot);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |tool: &str| std::env::split_paths(&path).any(|dir| dir.join(tool).exists());
    match TOOLS.iter().find(|(tool, _)| !there(tool)) {
        Some((tool, package)) => Err(Error::MissingTool { tool, package }),
        None => Ok(()),
    }
}

/// The last lines of a log, for an error.
pub(crate) fn tail(paths: &Paths, process: &str) -> String {
    const LINES: usize = 12;
    let text = std::fs::read_to_string(paths.log(process)).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
