//! A traffic generator with numbered packets, run inside the lab's VMs.
//!
//!     sluice-probe echo ADDRESS NAME          answer UDP and TCP, with NAME in front
//!     sluice-probe echo ADDRESS NAME FIRST    the same, after a packet from its port to FIRST
//!     sluice-probe ask udp|tcp ADDRESS        print the name of the VM that answers
//!     sluice-probe stream ADDRESS PPS SECONDS numbered packets to `echo`, count the answers; a line on
//!                                             standard input ends it earlier
//!     sluice-probe send ADDRESS PPS SECONDS   numbered packets, no answer expected
//!     sluice-probe sink ADDRESS SECONDS       count what `send` sends
//!     sluice-probe give ADDRESS BYTES         serve pseudo-random bytes to each TCP connection
//!     sluice-probe take ADDRESS BYTES         receive and compare them
//!     sluice-probe keep ADDRESS               return to each TCP connection what it sends, at 8 ports from that of ADDRESS on
//!     sluice-probe hold ADDRESS COUNT RATE    so many connections to `keep` that stay, and others in a second; for each line on
//!                                             standard input, what all have come to
//!     sluice-probe talk ADDRESS               a connection to `keep` that sends a byte every 50 ms; a line on standard input ends
//!                                             it, and what it has come to is printed
//!     sluice-probe rsp ADDRESS KEY SECRET VNI DESTINATION HOST
//!                                             say twice, in the same RSP packet, that a destination is at HOST
//!     sluice-probe attack IFNAME,MAC,ADDRESS,ADDRESS6 VICTIM,VICTIM6 ROUTERMAC,ROUTER VTEP FRAMES
//!                                             malformed and forged frames
//!     sluice-probe flood IFNAME,MAC,ADDRESS,ADDRESS6 ROUTERMAC,ROUTER TO FLOWS
//!                                             first packets of new connections, half of them TCP
//!     sluice-probe scan IFNAME MAC FROM PREFIX
//!                                             a SYN, a datagram and an echo request to each address of a prefix, at most 256, by the
//!                                             router or gateway with MAC
//!     sluice-probe forge IFNAME MAC HOP SERVER CLIENT
//!                                             segments with RST or SYN that seem to come from the server of a TCP connection, and
//!                                             ICMP errors about it that seem to come from HOP
//!     sluice-probe host PORT HOST BEYOND IFNAME,MAC,ADDRESS,HOSTMAC...
//!                                             try to reach the host itself from interfaces, until it is ended
//!
//! Results are one line of JSON. Times are microseconds of the UNIX epoch.
#![forbid(unsafe_code)]

#[path = "../../crates/datapath/tests/fixtures/support/build.rs"]
#[allow(dead_code)] // It builds packets of other kinds as well.
mod build;
mod held;
mod host_frames;
mod hostile_clients;
mod hostile_frames;
mod talk;

use host_frames::{Addresses, host_frames};
use hostile_frames::Hostile;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};
use serde_json::json;
use sluice_envelope::{BootId, ClusterKey, KeyRing, NodeId};
use sluice_rsp::{Answer, AnswerEntry, Destination, Message, Path, Reception, Sealer};
use sluice_sys::PacketSocket;
use sluice_types::{GatewayId, MacAddr, Vni};
use std::io::{Error, Read, Result, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Sequence number and time of sending, 8 bytes each.
const PAYLOAD: usize = 16;
/// After sending, the probe waits for missing answers until none has arrived for this time. It is longer than
/// a machine needs whose processors are unavailable for most of a second, several times on the path of one
/// packet.
const GRACE: Duration = Duration::from_secs(5);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["echo", address, name] => echo(parse(address), name, None),
        ["echo", address, name, first] => echo(parse(address), name, Some(parse(first))),
        ["scan", ifname, mac, from, prefix] => {
            send_all(ifname, &hostile_clients::scan(parse(mac), parse(from), parse(prefix)))
        }
        ["forge", ifname, mac, hop, server, client] => {
            let frames = hostile_clients::forged(parse(mac), parse(hop), parse(server), parse(client));
            send_all(ifname, &frames)
        }
        ["ask", protocol, address] => ask(protocol, parse(address), PATIENCE),
        ["ask", protocol, address, ms] => ask(protocol, parse(address), Duration::from_millis(parse(ms))),
        ["stream", address, pps, seconds] => stream(parse(address), parse(pps), parse(seconds)),
        ["send", address, pps, seconds] => {
            let socket = connected(parse(address))?;
            send(&socket, parse(pps), Duration::from_secs(parse(seconds)), &AtomicBool::new(false)).map(drop)
        }
        ["sink", address, seconds] => sink(parse(address), Duration::from_secs(parse(seconds))),
        ["give", address, bytes] => give(parse(address), parse(bytes)),
        ["take", address, bytes] => take(parse(address), parse(bytes)),
        ["keep", address] => held::keep(parse(address)),
        ["hold", address, connections, per_s] => held::hold(parse(address), parse(connections), parse(per_s)),
        ["talk", address] => talk::talk(parse(address), PATIENCE, &ended_by_input()),
        ["rsp", to, key, secret, vni, destination, host] => {
            let path = (parse(destination), parse(host));
            notify(parse(to), parse(key), &parse_secret(secret), parse(vni), path)
        }
        ["attack", own, victim, router, vtep, frames] => {
            attack(own, victim, router, parse(vtep), parse(frames))
        }
        ["flood", own, router, to, flows] => flood(own, router, parse(to), parse(flows)),
        ["host", port, host, beyond, interfaces @ ..] => {
            reach_host(parse(port), parse(host), parse(beyond), interfaces)
        }
        other => {
            eprintln!("unknown arguments {other:?}");
            std::process::exit(2);
        }
    }
}

fn parse<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| {
        eprintln!("`{text}` has not the expected form");
        std::process::exit(2);
    })
}

/// Time between two rounds of frames to the host.
const ROUND: Duration = Duration::from_millis(20);

fn reach_host(port: u16, host: Ipv4Addr, beyond: Ipv4Addr, interfaces: &[&str]) -> Result<()> {
    let mut rounds = Vec::new();
    for interface in interfaces {
        let fields: Vec<&str> = interface.split(',').collect();
        let [ifname, mac, address, host_mac] = fields[..] else {
            return Err(Error::other(format!("`{interface}` has not four fields")));
        };
        let addresses = Addresses { host, beyond, port, own: parse(address) };
        rounds.push((if_nametoindex(ifname)?, host_frames(parse(mac), parse(host_mac), &addresses)));
    }
    let socket = PacketSocket::open().map_err(Error::other)?;
    println!("ready");
    loop {
        for (ifindex, frames) in &rounds {
            for frame in frames {
                // The host's end of the link may be down.
                let _ = socket.send(*ifindex, frame);
            }
        }
        std::thread::sleep(ROUND);
    }
}

/// Frames that are sent at once, and the pause after them: together 10,000 a second at most, which leaves the processors time for
/// the traffic that is watched meanwhile.
const VOLLEY: u64 = 50;
const VOLLEY_PAUSE: Duration = Duration::from_millis(5);

fn hostile(own: &str, victim: (Ipv4Addr, Ipv6Addr), router: &str, vtep: Ipv4Addr) -> Result<(u32, Hostile)> {
    let fields = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
    let (own, router) = (fields(own), fields(router));
    let ([ifname, mac, four, six], [router_mac, router]) = (&own[..], &router[..]) else {
        return Err(Error::other("interface or router has not all fields"));
    };
    let own = (parse(mac), parse(four), parse(six));
    let router = (parse(router_mac), parse(router));
    let ifindex = if_nametoindex(ifname.as_str())?;
    Ok((ifindex, Hostile { own, victim, router, vtep, seed: 0x5eed }))
}

fn attack(own: &str, victim: &str, router: &str, vtep: Ipv4Addr, frames: u64) -> Result<()> {
    let (four, six) =
        victim.split_once(',').ok_or_else(|| Error::other("the victim has not two addresses"))?;
    let (ifindex, mut hostile) = hostile(own, (parse(four), parse(six)), router, vtep)?;
    volleys(ifindex, frames, |_| hostile.malformed())
}

fn flood(own: &str, router: &str, to: IpAddr, flows: u16) -> Result<()> {
    let victim = (Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED);
    let (ifindex, mut hostile) = hostile(own, victim, router, Ipv4Addr::UNSPECIFIED)?;
    // Ports below 1024 may be of services.
    volleys(ifindex, flows.into(), |number| hostile.first_packet(1024 + number as u16, to))
}

fn send_all(ifname: &str, frames: &[Vec<u8>]) -> Result<()> {
    volleys(if_nametoindex(ifname)?, frames.len() as u64, |number| frames[number as usize].clone())
}

/// Sends frames and prints how many the kernel took.
fn volleys(ifindex: u32, frames: u64, mut frame: impl FnMut(u64) -> Vec<u8>) -> Result<()> {
    let socket = PacketSocket::open().map_err(Error::other)?;
    let mut sent = 0;
    for number in 0..frames {
        // The kernel itself refuses some, such as those that end within the Ethernet header.
        sent += u64::from(socket.send(ifindex, &frame(number)).is_ok());
        if number % VOLLEY == VOLLEY - 1 {
            std::thread::sleep(VOLLEY_PAUSE);
        }
    }
    println!("{}", json!({"sent": sent}));
    Ok(())
}

fn parse_secret(text: &str) -> [u8; 32] {
    let digits = |at: usize| text.get(2 * at..2 * at + 2).unwrap_or("?");
    std::array::from_fn(|at| u8::from_str_radix(digits(at), 16).unwrap_or_else(|_| parse("?")))
}

/// A notification like that of a gateway.
fn notify(
    to: SocketAddr,
    key: u32,
    secret: &[u8; 32],
    vni: u32,
    (destination, host): (IpAddr, IpAddr),
) -> Result<()> {
    let bad = |error: &dyn std::fmt::Display| Error::other(error.to_string());
    let vni = Vni::new(vni).map_err(|error| bad(&error))?;
    let key = ClusterKey::new(key, secret, 0, u64::MAX).map_err(|error| bad(&error))?;
    let keys = KeyRing::new(vec![key]).map_err(|error| bad(&error))?;
    let boot = BootId::random().ok_or_else(|| Error::other("no random bytes"))?;
    let mut sealer = Sealer::new(NodeId::from(GatewayId::new(1)), boot);
    let path = Path {
        host,
        mac: MacAddr::local(200),
        vni,
        lifetime_ms: 60_000,
        revision: 1,
        by_network: false,
        reception: Reception::default(),
    };
    let answers = vec![AnswerEntry {
        destination: Destination { vni, address: destination },
        answer: Answer::Path(path),
    }];
    let sealed = sealer.seal(&keys, now_us() / 1000, to.ip(), 1280, &Message::Notify { answers });
    let packets = sealed.map_err(|error| bad(&error))?;
    let socket = connected(to)?;
    for packet in packets.iter().chain(&packets) {
        // The error reports an ICMP answer to an earlier packet.
        let _ = socket.send(packet);
    }
    Ok(())
}

fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

fn connected(address: SocketAddr) -> Result<UdpSocket> {
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = patient(UdpSocket::bind(any)?)?;
    socket.connect(address)?;
    Ok(socket)
}

/// Size for seconds of traffic, so that loss is caused by the network and not by a receiver that waits for a
/// processor.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;

fn patient(socket: UdpSocket) -> Result<UdpSocket> {
    setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER_BYTES)?;
    Ok(socket)
}

fn echo(address: SocketAddr, name: &str, first: Option<SocketAddr>) -> Result<()> {
    let tcp = TcpListener::bind(address)?;
    let udp = patient(UdpSocket::bind(address)?)?;
    if let Some(first) = first {
        udp.send_to(b"first", first)?;
    }
    let greeting = format!("{name}:");
    std::thread::spawn(move || {
        for mut stream in tcp.incoming().flatten() {
            let _ = stream.write_all(greeting.as_bytes());
        }
    });
    println!("ready");
    let mut buffer = vec![0; 65536];
    loop {
        let (length, from) = udp.recv_from(&mut buffer)?;
        let mut answer = format!("{name}:").into_bytes();
        answer.extend_from_slice(&buffer[..length]);
        let _ = udp.send_to(&answer, from);
    }
}

fn name_in(answer: &[u8]) -> String {
    let name = answer.split(|byte| *byte == b':').next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

/// For how long an answer to a question is awaited.
const PATIENCE: Duration = Duration::from_secs(10);
/// Questions by UDP within that time.
const QUESTIONS: u32 = 5;

/// Prints the name of who answers at an address within the time given.
fn ask(protocol: &str, address: SocketAddr, patience: Duration) -> Result<()> {
    let name = match protocol {
        "tcp" => ask_tcp(address, patience).ok(),
        "udp" => ask_udp(address, patience)?,
        _ => return Err(Error::other(format!("`{protocol}` is neither tcp nor udp"))),
    };
    println!("{}", json!({"name": name}));
    Ok(())
}

fn ask_udp(address: SocketAddr, patience: Duration) -> Result<Option<String>> {
    let socket = connected(address)?;
    socket.set_read_timeout(Some(patience / QUESTIONS))?;
    let mut buffer = [0; 256];
    for _ in 0..QUESTIONS {
        // The error reports an ICMP answer to an earlier question.
        let _ = socket.send(b"who");
        if let Ok(length) = socket.recv(&mut buffer) {
            return Ok(Some(name_in(&buffer[..length])));
        }
    }
    Ok(None)
}

fn ask_tcp(address: SocketAddr, patience: Duration) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    let mut buffer = [0; 256];
    let length = stream.read(&mut buffer)?;
    Ok(name_in(&buffer[..length]))
}

/// The bytes of `give`: a xorshift generator with a fixed seed, so that no two parts of a packet are alike.
fn content(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()
    };
    let mut content: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| next()).collect();
    content.truncate(bytes);
    content
}

fn give(address: SocketAddr, bytes: usize) -> Result<()> {
    let listener = TcpListener::bind(address)?;
    let content = content(bytes);
    println!("ready");
    for mut stream in listener.incoming().flatten() {
        // A receiver that went away shows in its own result.
        let _ = stream.write_all(&content);
    }
    Ok(())
}

fn take(address: SocketAddr, bytes: usize) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut received = Vec::new();
    stream.read_to_end(&mut received)?;
    println!("{}", json!({"bytes": received.len(), "equal": received == content(bytes)}));
    Ok(())
}

/// At most the packets that were due within this time are sent at once.
const BURST: Duration = Duration::from_millis(100);

/// Sends numbered packets at a steady rate until it is told to stop, and returns their number. After a late
/// wake-up it sends the delayed packets, so that the mean rate is correct, but not after a stall of the
/// machine: no queue would hold such a burst.
fn send(socket: &UdpSocket, pps: u32, duration: Duration, enough: &AtomicBool) -> Result<u64> {
    let begin = Instant::now();
    let gap = Duration::from_secs(1) / pps.max(1);
    let (mut number, mut due) = (0u64, begin);
    while begin.elapsed() < duration && !enough.load(Ordering::Relaxed) {
        let now = Instant::now();
        match due.checked_duration_since(now) {
            Some(wait) => std::thread::sleep(wait),
            None => due = due.max(now - BURST),
        }
        due += gap;
        let mut payload = [0; PAYLOAD];
        payload[..8].copy_from_slice(&number.to_be_bytes());
        payload[8..].copy_from_slice(&now_us().to_be_bytes());
        // The error is an ICMP error for an earlier packet. This packet was not sent, and is sent again.
        if socket.send(&payload).is_err() {
            let _ = socket.send(&payload);
        }
        number += 1;
    }
    Ok(number)
}

fn number_and_time(payload: &[u8]) -> Option<(u64, u64)> {
    let number = payload.get(..8)?.try_into().ok().map(u64::from_be_bytes)?;
    let time = payload.get(8..16)?.try_into().ok().map(u64::from_be_bytes)?;
    Some((number, time))
}

/// Which of `sent` packets are missing, as ranges.
fn missing(seen: &[bool], sent: usize) -> Vec<(usize, usize)> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for number in (0..sent).filter(|number| !seen.get(*number).is_some_and(|seen| *seen)) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    ranges
}

/// A flag that is set when a line arrives on standard input.
fn ended_by_input() -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    let flag = ended.clone();
    std::thread::spawn(move || {
        let line = std::io::stdin().read_line(&mut String::new());
        flag.store(line.is_ok_and(|bytes| bytes > 0), Ordering::Relaxed);
    });
    ended
}

fn stream(address: SocketAddr, pps: u32, seconds: u64) -> Result<()> {
    let socket = connected(address)?;
    let duration = Duration::from_secs(seconds);
    let total = Arc::new(OnceLock::new());
    let receiver = {
        let (socket, total) = (socket.try_clone()?, total.clone());
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        std::thread::spawn(move || receive(&socket, &total))
    };
    let sent = send(&socket, pps, duration, &ended_by_input())?;
    let sent = usize::try_from(sent).unwrap_or(0);
    total.get_or_init(|| sent);
    let answers = receiver.join().map_err(|_| Error::other("the receiver panicked"))?;
    let lost = missing(&answers.seen, sent);
    let (received, slowest_us) = (answers.received, answers.slowest_us);
    println!("{}", json!({"sent": sent, "received": received, "lost": lost, "slowest_us": slowest_us}));
    Ok(())
}

/// The answers that arrived.
#[derive(Default)]
struct Answers {
    /// The answers, by sequence number.
    seen: Vec<bool>,
    /// Number of different sequence numbers.
    received: usize,
    /// The longest round-trip time.
    slowest_us: u64,
}

impl Answers {
    fn take(&mut self, number: u64, sent_us: u64) {
        self.slowest_us = self.slowest_us.max(now_us().saturating_sub(sent_us));
        let index = usize::try_from(number).unwrap_or(0);
        if self.seen.len() <= index {
            self.seen.resize(index + 1, false);
        }
        self.received += usize::from(!std::mem::replace(&mut self.seen[index], true));
    }
}

/// Receives answers until there is one to each of `total` packets (a number that is known after sending), or
/// until no more arrive.
fn receive(socket: &UdpSocket, total: &OnceLock<usize>) -> Answers {
    let mut answers = Answers::default();
    let mut buffer = [0; 256];
    // Time of the last answer after sending ended.
    let mut silent = None;
    while total.get().is_none_or(|sent| answers.received < *sent) {
        if let Ok(length) = socket.recv(&mut buffer) {
            silent = None;
            let start = buffer[..length].iter().position(|byte| *byte == b':').map_or(0, |colon| colon + 1);
            if let Some((number, sent_us)) = number_and_time(&buffer[start..length]) {
                answers.take(number, sent_us);
            }
        } else if total.get().is_some() && silent.get_or_insert_with(Instant::now).elapsed() >= GRACE {
            break;
        }
    }
    answers
}

fn sink(address: SocketAddr, duration: Duration) -> Result<()> {
    let socket = patient(UdpSocket::bind(address)?)?;
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    println!("ready");
    let begin = Instant::now();
    let (mut received, mut last_sent_us, mut first_sent_us) = (0u64, 0, u64::MAX);
    let mut buffer = [0; 256];
    while begin.elapsed() < duration {
        let Ok(length) = socket.recv(&mut buffer) else { continue };
        let Some((_, time)) = number_and_time(&buffer[..length]) else { continue };
        received += 1;
        last_sent_us = last_sent_us.max(time);
        first_sent_us = first_sent_us.min(time);
    }
    println!(
        "{}",
        json!({"received": received, "first_sent_us": first_sent_us, "last_sent_us": last_sent_us})
    );
    Ok(())
}
