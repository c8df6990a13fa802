//! What two VMs of a host get, and what is sampled meanwhile. It changes with the load of the stages and with what is recorded.

use sluice_bench_report::shell::Failure;
use sluice_bench_spine::vswitch::namespace::Namespace;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two samples.
pub const SAMPLE: Duration = Duration::from_millis(100);

/// What is sent by datagrams to each VM, in Mbit/s, and whether the busy VM gets as much as TCP can send, from a time on.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Milliseconds from the begin.
    pub at_ms: u64,
    /// To the busy VM.
    pub busy_mbps: u32,
    /// To the quiet VM.
    pub quiet_mbps: u32,
    /// Whether TCP sends to the busy VM.
    pub is_flood: bool,
    /// Whether the latency of the quiet VM is recorded.
    pub is_timed: bool,
}

/// A VM and the one that sends to it, and the address of the receiver.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Namespace of the receiver.
    pub receiver: PathBuf,
    /// Namespace of the sender.
    pub sender: PathBuf,
    /// Address of the receiver.
    pub address: IpAddr,
}

/// A sample of what a VM has received so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Seconds since the begin.
    pub at_s: f64,
    /// Bytes of IP packets that its interface has received.
    pub received: u64,
    /// Bytes of IP packets that were sent to it by datagrams.
    pub offered: u64,
}

/// What was recorded.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// Samples of the busy VM.
    pub busy: Vec<Sample>,
    /// Samples of the quiet VM.
    pub quiet: Vec<Sample>,
    /// Round trips to the quiet VM, in microseconds.
    pub latencies_us: Vec<f64>,
}

const SINK: u16 = 7801;
const ECHO: u16 = 7802;
const FLOOD: u16 = 7803;
/// TCP connections to the busy VM.
const CONNECTIONS: usize = 4;
const PAYLOAD: usize = 1300;
/// Headers of IPv4 and UDP.
const HEADERS: usize = 28;
const ETHERNET_BYTES: u64 = 14;
const TICK: Duration = Duration::from_millis(1);
/// After a late wake-up, at most what was due within this time is sent at once.
const CATCH_UP: Duration = Duration::from_millis(20);
/// Between two round trips, and the longest wait for an answer, which counts as its time if none comes.
const PING_EVERY: Duration = Duration::from_millis(2);
const PING_MAX: Duration = Duration::from_millis(100);
const PING_BYTES: usize = 8;
/// How soon threads notice the end.
const PATIENCE: Duration = Duration::from_millis(50);

/// What all threads share.
#[derive(Default)]
struct Now {
    busy_mbps: AtomicU32,
    quiet_mbps: AtomicU32,
    is_flood: AtomicBool,
    is_timed: AtomicBool,
    end: AtomicBool,
    busy_offered: AtomicU64,
    quiet_offered: AtomicU64,
}

impl Now {
    fn goes_on(&self) -> bool {
        !self.end.load(Ordering::Relaxed)
    }

    fn set(&self, step: &Step) {
        self.busy_mbps.store(step.busy_mbps, Ordering::Relaxed);
        self.quiet_mbps.store(step.quiet_mbps, Ordering::Relaxed);
        self.is_flood.store(step.is_flood, Ordering::Relaxed);
        self.is_timed.store(step.is_timed, Ordering::Relaxed);
    }
}

/// The sockets of a run.
struct Sockets {
    /// Receive what is sent by datagrams. Nothing reads them: interfaces count.
    _sinks: [UdpSocket; 2],
    busy: UdpSocket,
    quiet: UdpSocket,
    ping: UdpSocket,
    echo: UdpSocket,
    /// The ends of the connections to the busy VM.
    floods: Vec<TcpStream>,
    receivers: Vec<TcpStream>,
}

impl Sockets {
    fn open(busy: &Pair, quiet: &Pair) -> Result<Self, Failure> {
        let bound = |pair: &Pair, port: u16| {
            let at = SocketAddr::new(pair.address, port);
            Namespace::open(&pair.receiver)?.within(|| Ok(UdpSocket::bind(at)?))
        };
        let connected = |pair: &Pair, port: u16| {
            let at = SocketAddr::new(pair.address, port);
            Namespace::open(&pair.sender)?.within(|| {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                socket.connect(at)?;
                Ok(socket)
            })
        };
        let flood = SocketAddr::new(busy.address, FLOOD);
        let listener = Namespace::open(&busy.receiver)?.within(|| Ok(TcpListener::bind(flood)?))?;
        let (mut floods, mut receivers) = (Vec::new(), Vec::new());
        for _ in 0..CONNECTIONS {
            let stream = Namespace::open(&busy.sender)?.within(|| Ok(TcpStream::connect(flood)?))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            floods.push(stream);
            let (stream, _) = listener.accept()?;
            stream.set_read_timeout(Some(PATIENCE))?;
            receivers.push(stream);
        }
        let (ping, echo) = (connected(quiet, ECHO)?, bound(quiet, ECHO)?);
        ping.set_read_timeout(Some(PING_MAX))?;
        echo.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            _sinks: [bound(busy, SINK)?, bound(quiet, SINK)?],
            busy: connected(busy, SINK)?,
            quiet: connected(quiet, SINK)?,
            ping,
            echo,
            floods,
            receivers,
        })
    }
}

/// Sends as the steps say until `end_ms`.
///
/// # Errors
/// Errors of the sockets, and interfaces that count nothing.
pub fn play(busy: &Pair, quiet: &Pair, steps: &[Step], end_ms: u64) -> Result<Recorded, Failure> {
    let mut sockets = Sockets::open(busy, quiet)?;
    let (floods, receivers) = (std::mem::take(&mut sockets.floods), std::mem::take(&mut sockets.receivers));
    let (now, sockets) = (&Now::default(), &sockets);
    let begun = Instant::now();
    std::thread::scope(|threads| {
        for stream in floods {
            threads.spawn(move || flood(stream, now));
        }
        for stream in receivers {
            threads.spawn(move || forget(stream, now));
        }
        threads.spawn(move || pace(&sockets.busy, &now.busy_mbps, &now.busy_offered, now));
        threads.spawn(move || pace(&sockets.quiet, &now.quiet_mbps, &now.quiet_offered, now));
        threads.spawn(move || answer(&sockets.echo, now));
        let pings = threads.spawn(move || ping(&sockets.ping, now));
        let of_busy = threads.spawn(move || sample(busy, &now.busy_offered, begun, now));
        let of_quiet = threads.spawn(move || sample(quiet, &now.quiet_offered, begun, now));
        for step in steps {
            sleep_until(begun + Duration::from_millis(step.at_ms));
            now.set(step);
        }
        sleep_until(begun + Duration::from_millis(end_ms));
        now.end.store(true, Ordering::Relaxed);
        let panicked = |_| Failure::from("a thread of the load panicked");
        Ok(Recorded {
            busy: of_busy.join().map_err(panicked)??,
            quiet: of_quiet.join().map_err(panicked)??,
            latencies_us: pings.join().map_err(panicked)?,
        })
    })
}

fn sleep_until(at: Instant) {
    sleep(at.saturating_duration_since(Instant::now()));
}

/// Reads and forgets what a connection brings.
fn forget(mut stream: TcpStream, now: &Now) {
    let mut bytes = vec![0; 1 << 18];
    while now.goes_on() {
        // Without enough to read, it waits until the time-out.
        let _ = stream.read_exact(&mut bytes);
    }
}

fn flood(mut stream: TcpStream, now: &Now) {
    let bytes = vec![0; 1 << 16];
    while now.goes_on() {
        if now.is_flood.load(Ordering::Relaxed) {
            // It waits until TCP takes the bytes, or until the time-out, after a part of them.
            let _ = stream.write_all(&bytes);
        } else {
            sleep(TICK);
        }
    }
}

/// Sends datagrams at a rate of IP packets.
fn pace(socket: &UdpSocket, mbps: &AtomicU32, offered: &AtomicU64, now: &Now) {
    const PACKET: usize = PAYLOAD + HEADERS;
    let (mut due, mut last) = (0.0, Instant::now());
    while now.goes_on() {
        sleep(TICK);
        let per_s = f64::from(mbps.load(Ordering::Relaxed)) * 1e6 / 8.0;
        due = (due + per_s * last.elapsed().as_secs_f64()).min(per_s * CATCH_UP.as_secs_f64());
        last = Instant::now();
        while due >= PACKET as f64 {
            due -= PACKET as f64;
            if socket.send(&[0; PAYLOAD]).is_ok() {
                offered.fetch_add(PACKET as u64, Ordering::Relaxed);
            }
        }
    }
}

fn answer(socket: &UdpSocket, now: &Now) {
    let mut packet = [0; PING_BYTES];
    while now.goes_on() {
        if let Ok((length, from)) = socket.recv_from(&mut packet) {
            let _ = socket.send_to(&packet[..length], from);
        }
    }
}

/// Times round trips, one after the other, while that is wanted.
fn ping(socket: &UdpSocket, now: &Now) -> Vec<f64> {
    let mut latencies_us = Vec::new();
    let mut number = 0_u64;
    while now.goes_on() {
        sleep(PING_EVERY);
        if !now.is_timed.load(Ordering::Relaxed) {
            continue;
        }
        number += 1;
        let sent = Instant::now();
        if socket.send(&number.to_be_bytes()).is_err() {
            continue;
        }
        now.quiet_offered.fetch_add((PING_BYTES + HEADERS) as u64, Ordering::Relaxed);
        let mut packet = [0; PING_BYTES];
        // An earlier packet may be answered late.
        while socket.recv(&mut packet).is_ok() && u64::from_be_bytes(packet) != number {}
        latencies_us.push(sent.elapsed().as_secs_f64() * 1e6);
    }
    latencies_us
}

/// Samples what the VM of a pair receives.
fn sample(pair: &Pair, offered: &AtomicU64, begun: Instant, now: &Now) -> Result<Vec<Sample>, Failure> {
    Namespace::open(&pair.receiver)?.within(|| {
        let mut samples = Vec::new();
        for number in 0_u32.. {
            sleep_until(begun + SAMPLE * number);
            if !now.goes_on() {
                break;
            }
            let counters = std::fs::read_to_string("/proc/thread-self/net/dev")?;
            let received = received(&counters).ok_or("the VM has no counters of its interface")?;
            let (at_s, offered) = (begun.elapsed().as_secs_f64(), offered.load(Ordering::Relaxed));
            samples.push(Sample { at_s, received, offered });
        }
        Ok(samples)
    })
}

/// Bytes of IP packets that eth0 has received, by the kernel's table of interfaces.
fn received(counters: &str) -> Option<u64> {
    let own = counters.lines().find_map(|line| line.trim_start().strip_prefix("eth0:"))?;
    let mut numbers = own.split_whitespace().map(str::parse::<u64>);
    let (bytes, packets) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(bytes.saturating_sub(packets * ETHERNET_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_those_of_ip_packets() {
        let text = "Inter-|   Receive\n face |bytes    packets\n    lo:     700       7    0\n  eth0: 12000      10    0\n";
        assert_eq!(received(text), Some(11_860));
        assert_eq!(received("    lo: 700 7\n"), None);
    }
}
