//! The command line of `sluice lab`.

use crate::down::{down, exists};
use crate::error::{Error, IoContext, Result};
use crate::guest::channel;
use crate::lab::Lab;
use crate::output::{print_text, print_unless_closed};
use crate::paths::{DEFAULT_NAME, Paths};
use crate::topology::Topology;
use crate::up::Options;
use clap::Subcommand;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// A process that cannot start reports it within this time.
const FIRST_MOMENTS: Duration = Duration::from_millis(500);

/// Run a whole cloud in network namespaces on this machine
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Clone, Debug)]
enum Verb {
    /// Bring a lab up and leave it running
    Up(Build),
    /// Bring a lab up, show that it works, stay until Ctrl-C, then remove it
    Run(Build),
    /// End a lab and remove everything that belongs to it
    Down(Named),
    /// Show the processes and VMs of a lab, and whether all of them work
    Status(Named),
    /// Kill the controller or a node's agent at once, to see what happens then
    Kill(OfProcess),
    /// Start the controller or a node's agent again; if it runs, end it first
    Restart(OfProcess),
    /// Run a command in a VM, node, switch or place of the Internet
    Exec {
        #[command(flatten)]
        named: Named,
        /// VM, node, switch or place of the Internet
        #[arg(value_name = "PLACE")]
        place: String,
        /// Command and arguments
        #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

#[derive(clap::Args, Clone, Debug)]
struct Named {
    /// The lab's name: lower-case letters and digits
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
}

#[derive(clap::Args, Clone, Debug)]
struct OfProcess {
    #[command(flatten)]
    named: Named,
    /// `controller`, or the node
    #[arg(value_name = "PROCESS")]
    process: String,
}

#[derive(clap::Args, Clone, Debug)]
struct Build {
    #[command(flatten)]
    named: Named,
    /// Topology to build [default: two gateways, three hosts, eight VMs, an Internet]
    #[arg(long, value_name = "YAML")]
    file: Option<PathBuf>,
    /// The controller's database [default: SQLite in the lab's directory]
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// Forwarding model: zeta, or one of the models that it is compared with, as
    /// `sluice controller --model` names them [default: zeta]
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Keep what exists if the lab does not come up, for inspection
    #[arg(long)]
    keep: bool,
}

/// Runs a command of `sluice lab`; its exit code, which for `exec` is the
/// command's and for `status` and `run` says whether all is well.
///
/// # Errors
/// See [`Error`].
pub async fn run(args: Args) -> Result<ExitCode> {
    match args.verb {
        Verb::Up(build) => {
            print_unless_closed(&up(build).await?.addresses_and_files())?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Run(build) => stay(build).await,
        Verb::Down(named) => {
            let existed = exists(&Paths::new(&named.name)?);
            down(&named.name).await?;
            if !existed {
                eprintln!("lab {} is not running", named.name);
            }
            Ok(ExitCode::SUCCESS)
        }
        Verb::Status(named) => {
            let lab = Lab::open(&named.name)?;
            let (text, well) = lab.status().await?;
            print_unless_closed(&format!("{text}{}", lab.addresses_and_files()))?;
            Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Verb::Kill(OfProcess { named, process }) => {
            Lab::open(&named.name)?.kill(&process).await.map(|()| ExitCode::SUCCESS)
        }
        Verb::Restart(OfProcess { named, process }) => {
            let lab = Lab::open(&named.name)?;
            lab.stop(&process).await?;
            if lab.is_guest(&process) {
                return lab.restart_guest(&process).await.map(|()| ExitCode::SUCCESS);
            }
            let started = lab.restart(&process)?;
            started.ended(FIRST_MOMENTS).await;
            started.check(lab.paths()).map(|()| ExitCode::SUCCESS)
        }
        Verb::Exec { named, place, command } => exec(&named.name, &place, &command).await,
    }
}

fn options(build: Build) -> Result<Options> {
    // A bad name is reported before errors of the topology file.
    Paths::new(&build.named.name)?;
    let binary = std::env::current_exe().context("cannot find", "the sluice binary")?;
    let topology = build.file.map_or_else(Topology::standard, |file| Topology::load(&file))?;
    let mut options = Options::standard(&build.named.name, &binary)?;
    options.topology = topology;
    options.database = build.database;
    options.model = build.model;
    options.keep = build.keep;
    Ok(options)
}

/// Brings a lab up. A signal meanwhile is an error like any other: what exists of the lab is removed, unless it is to
/// be kept.
async fn up(build: Build) -> Result<Lab> {
    let begin = Instant::now();
    let name = build.named.name.clone();
    let options = options(build)?;
    eprintln!("bringing up lab {name} ...");
    let interrupted = async {
        match interrupted().await {
            Ok(()) => Error::Interrupted(name.clone()),
            Err(error) => error,
        }
    };
    let lab = Lab::up_unless(options, interrupted).await?;
    eprintln!("lab {name} is up after {:.1} s", begin.elapsed().as_secs_f64());
    Ok(lab)
}

async fn interrupted() -> Result<()> {
    let hook = |kind| signal(kind).context("cannot wait for", "signals");
    let (mut terminate, mut interrupt) = (hook(SignalKind::terminate())?, hook(SignalKind::interrupt())?);
    let mut hangup = hook(SignalKind::hangup())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        _ = hangup.recv() => Ok(()),
    }
}

async fn stay(build: Build) -> Result<ExitCode> {
    let name = build.named.name.clone();
    let lab = up(build).await?;
    let show = async {
        let (status, _) = lab.status().await?;
        print_text(&format!("\n{status}\n"))?;
        let well = lab.demonstrate().await?;
        print_text(&format!("\n{}\nCtrl-C ends the lab.\n", lab.addresses_and_files()))?;
        Ok::<bool, Error>(well)
    };
    let outcome = tokio::select! {
        outcome = show => match outcome {
            Ok(well) => interrupted().await.map(|()| well),
            Err(error) => Err(error),
        },
        outcome = interrupted() => outcome.map(|()| true),
    };
    eprintln!("removing lab {name} ...");
    let removed = down(&name).await;
    let well = outcome?;
    removed?;
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn exec(name: &str, place: &str, argv: &[String]) -> Result<ExitCode> {
    let lab = Lab::open(name)?;
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    if lab.is_guest(place) {
        return channel::run(lab.paths(), place, &argv).await.map(ExitCode::from);
    }
    let mut command = lab.command(place, &argv)?;
    command.stdin(std::process::Stdio::inherit());
    let status = command.status().await.context("cannot run", argv[0])?;
    // A process that a signal ended has no exit code; shells report 128 and the number of the signal.
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
