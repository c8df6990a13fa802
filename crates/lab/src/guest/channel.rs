//! Runs commands in a guest of QEMU over its channels, ports of virtio-serial that are sockets here. `guest/serve.sh`
//! is the other end and says what the lines mean. Input and output are lines of text: a zero byte and the lack of a last
//! line feed are not kept, and more than 64 KiB of input that the command does not read make the channel useless.

use crate::error::{Error, IoContext, Result};
use crate::paths::Paths;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

/// Channels of a guest: commands that can run at the same time.
pub(crate) const COUNT: usize = 12;
/// Longest wait for a channel that no other command uses, and for QEMU to open it.
const FREE_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs a command in a guest, with the standard input and output of this process; returns its exit status.
pub(crate) async fn run(paths: &Paths, guest: &str, argv: &[&str]) -> Result<u8> {
    let (socket, _lock) = claim(paths, guest).await?;
    let stream = connect(&socket, FREE_TIMEOUT).await.context("cannot connect to", &socket)?;
    let (reader, mut writer) = stream.into_split();
    // The lock makes the process id unique among the sessions of a channel that may overlap.
    let tag = std::process::id().to_string();
    let words: Vec<String> = argv.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
    let command: String = words.join(" ").bytes().map(|byte| format!("{byte:02x}")).collect();
    writer.write_all(format!("# {tag} {command}\n").as_bytes()).await.context("cannot write to", &socket)?;
    let mut input = standard_input();
    let mut output = BufReader::new(reader).split(b'\n');
    let mut open = true;
    loop {
        tokio::select! {
            line = input.recv(), if open => {
                open = line.is_some();
                let line = line.unwrap_or_else(|| b".\n".to_vec());
                writer.write_all(&line).await.context("cannot write to", &socket)?;
            }
            line = output.next_segment() => {
                let line = line.context("cannot read from", &socket)?.ok_or_else(|| gone(guest))?;
                if let Some(status) = take(&tag, &line) {
                    return Ok(status);
                }
            }
        }
    }
}

/// Connects to a socket of QEMU; repeated while QEMU starts.
pub(super) async fn connect(socket: &Path, within: Duration) -> std::io::Result<UnixStream> {
    let until = Instant::now() + within;
    loop {
        match UnixStream::connect(socket).await {
            Err(_) if Instant::now() < until => tokio::time::sleep(Duration::from_millis(50)).await,
            outcome => return outcome,
        }
    }
}

fn gone(guest: &str) -> Error {
    Error::Form { what: format!("the channel of {guest}"), problem: "QEMU has closed it".to_owned() }
}

/// A channel that no other command uses, until the lock is dropped.
async fn claim(paths: &Paths, guest: &str) -> Result<(PathBuf, Flock<File>)> {
    let until = Instant::now() + FREE_TIMEOUT;
    loop {
        for socket in (0..COUNT).map(|number| paths.guest_channel(guest, number)) {
            let path = socket.with_extension("lock");
            let file = File::create(&path).context("cannot open", &path)?;
            if let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                return Ok((socket, lock));
            }
        }
        if Instant::now() > until {
            let what = format!("end of one of the {COUNT} commands in {guest}");
            return Err(Error::Timeout { what, seconds: FREE_TIMEOUT.as_secs(), hint: String::new() });
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The lines of standard input, as the guest expects them. The thread is not waited for: its read cannot be ended.
fn standard_input() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().split(b'\n').map_while(std::io::Result::ok) {
            if sender.blocking_send([b"I ", line.as_slice(), b"\n"].concat()).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Prints a line of output, or returns the exit status that it reports. Lines of another session are ignored.
fn take(tag: &str, line: &[u8]) -> Option<u8> {
    let line = line.strip_prefix(tag.as_bytes())?.strip_prefix(b" ")?;
    let (kind, text) = (line.get(..2)?, line.get(2..)?);
    let print = |mut to: Box<dyn Write>| {
        // A closed pipe does not end the command.
        let _ = to.write_all(&[text, b"\n"].concat()).and_then(|()| to.flush());
    };
    match kind {
        b"O " => print(Box::new(std::io::stdout())),
        b"E " => print(Box::new(std::io::stderr())),
        b"X " => return std::str::from_utf8(text).ok()?.parse().ok(),
        _ => {}
    }
    None
}
