//! An application with a TCP connection that is used all the time. It changes with what applications do when a connection ends or is
//! silent.

use super::capture::now;
use sluice_bench_report::shell::Failure;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// For how long an attempt to connect waits, and for how long it is repeated.
const ATTEMPT: Duration = Duration::from_secs(3);
const CONNECT_MAX: Duration = Duration::from_secs(15);

/// What the application saw.
#[derive(Clone, Debug, Default)]
pub struct Talked {
    /// Each time without an answer that was longer than two intervals: when it ended, since the UNIX epoch, and its length.
    pub gaps: Vec<(Duration, Duration)>,
    /// When the last answer came, since the UNIX epoch.
    pub last: Duration,
    /// Connections that ended, or that it gave up because they were silent.
    pub lost: u32,
}

impl Talked {
    /// The longest time without an answer that ended after `since`. Shorter ones than two intervals count as none.
    pub fn longest_gap(&self, since: Duration) -> Duration {
        let after = self.gaps.iter().filter(|(end, _)| *end > since);
        after.map(|(_, length)| *length).max().unwrap_or_default()
    }
}

/// Sends a byte in each interval until `end`, and reads what comes back. It connects again at once when its connection ends, and
/// when no answer has come for `patience`.
pub fn talk(
    at: SocketAddr,
    interval: Duration,
    patience: Duration,
    end: &AtomicBool,
) -> Result<Talked, Failure> {
    let mut talked = Talked::default();
    let mut stream = connect(at, end)?;
    let (mut answered, mut used) = (Instant::now(), Instant::now());
    while !end.load(Ordering::Relaxed) {
        match exchange(&mut stream) {
            Ok(true) => {
                let (time, gap) = (now(), answered.elapsed());
                if gap > 2 * interval {
                    talked.gaps.push((time, gap));
                }
                (talked.last, answered, used) = (time, Instant::now(), Instant::now());
            }
            Ok(false) if used.elapsed() < patience => {}
            Ok(false) | Err(_) => {
                talked.lost += 1;
                stream = connect(at, end)?;
                used = Instant::now();
                continue;
            }
        }
        std::thread::sleep(interval);
    }
    Ok(talked)
}

fn connect(at: SocketAddr, end: &AtomicBool) -> Result<TcpStream, Failure> {
    let begun = Instant::now();
    loop {
        match TcpStream::connect_timeout(&at, ATTEMPT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                return Ok(stream);
            }
            Err(error) if begun.elapsed() > CONNECT_MAX || end.load(Ordering::Relaxed) => {
                return Err(format!("cannot connect to {at}: {error}").into());
            }
            // Its server, or its network, may not be there yet.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Sends a byte. Returns whether any has come back.
fn exchange(stream: &mut TcpStream) -> std::io::Result<bool> {
    let mut is_answered = false;
    let mut bytes = [0; 256];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => is_answered = true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    match stream.write_all(&[7]) {
        // A full buffer: the connection is silent.
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
        _ => Ok(is_answered),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Catches an application that does not notice that its connection has ended, or counts an earlier gap.
    #[test]
    fn a_connection_that_ends_is_counted_and_followed_by_another() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let end = AtomicBool::new(false);
        let (interval, pause) = (Duration::from_millis(1), Duration::from_millis(80));
        let talked = std::thread::scope(|threads| {
            let talking = threads.spawn(|| talk(at, interval, Duration::from_secs(60), &end).unwrap());
            for round in 0..2 {
                let (mut stream, _) = listener.accept().unwrap();
                let mut bytes = [0; 256];
                for _ in 0..20 {
                    let length = stream.read(&mut bytes).unwrap();
                    stream.write_all(&bytes[..length]).unwrap();
                }
                if round == 0 {
                    std::thread::sleep(pause);
                }
            }
            end.store(true, Ordering::Relaxed);
            // Its connection may have ended just before, so it needs to be able to connect.
            talking.join().unwrap()
        });
        assert!(talked.lost == 1 || talked.lost == 2, "{talked:?}");
        assert!(talked.longest_gap(Duration::ZERO) >= pause, "{talked:?}");
        assert_eq!(talked.longest_gap(now()), Duration::ZERO, "{talked:?}");
    }
}
