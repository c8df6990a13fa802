//! Commands to a thread that waits for sockets: a queue, and a descriptor that is readable while it has some.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

/// The end of the senders. The thread must end when it is dropped.
#[derive(Debug)]
pub struct Mailbox<T> {
    commands: Sender<T>,
    waker: UnixStream,
}

/// The end of the thread.
#[derive(Debug)]
pub struct Inbox<T> {
    commands: Receiver<T>,
    woken: UnixStream,
}

/// Makes both ends.
///
/// # Errors
/// If the system has no more sockets.
pub fn mailbox<T>() -> io::Result<(Mailbox<T>, Inbox<T>)> {
    let (waker, woken) = UnixStream::pair()?;
    for end in [&waker, &woken] {
        end.set_nonblocking(true)?;
    }
    let (sender, commands) = channel();
    Ok((Mailbox { commands: sender, waker }, Inbox { commands, woken }))
}

impl<T> Mailbox<T> {
    /// Sends a command.
    pub fn send(&self, command: T) {
        // Both fail only if the thread has ended, which it does when this is dropped.
        let _ = self.commands.send(command);
        let _ = (&self.waker).write(&[1]);
    }
}

impl<T> Inbox<T> {
    /// Waits until there is a command, one of the other descriptors is readable, or the time is over. Returns false if the other end
    /// was dropped.
    pub fn wait<'a>(&mut self, others: impl Iterator<Item = BorrowedFd<'a>>, at_most: Duration) -> bool {
        let mut polled = vec![PollFd::new(self.woken.as_fd(), PollFlags::POLLIN)];
        polled.extend(others.map(|other| PollFd::new(other, PollFlags::POLLIN)));
        let waited = ppoll(&mut polled, Some(TimeSpec::from(at_most)), None);
        drop(polled);
        match waited {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => {
                // The system may be out of memory for a moment: retry.
                let thread = std::thread::current();
                tracing::error!(%error, thread = thread.name(), "cannot wait for commands and datagrams");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let mut woken = [0; 64];
        !matches!(self.woken.read(&mut woken), Ok(0))
    }

    /// The next command, without waiting. Fails if no command waits, or if the other end was dropped.
    pub fn take(&self) -> Result<T, TryRecvError> {
        self.commands.try_recv()
    }
}
