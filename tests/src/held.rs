//! Many TCP connections that stay open, and others that begin all the time.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Ports of the server, from its address on: an inside endpoint has a connection to each.
const PORTS: u16 = 8;
/// Inside ports of connections that stay, and of others: these are used again after 64 connections.
const HELD_FROM: u16 = 10_000;
const OTHERS_FROM: u16 = 30_000;
const OTHERS: u64 = 64;
/// Connections that are opened at a time.
const AT_ONCE: usize = 100;
/// For how long an answer is awaited: TCP repeats a segment that was lost after 0.2 s, then twice as late each time.
const PATIENCE: Duration = Duration::from_secs(15);

/// Runs on one thread, with as many files as the system permits.
fn run(work: impl Future<Output = Result<()>>) -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

/// Returns to each connection what it sends.
pub fn keep(address: SocketAddr) -> Result<()> {
    run(async {
        let mut listeners = Vec::new();
        for port in 0..PORTS {
            let listener = TcpListener::bind(SocketAddr::new(address.ip(), address.port() + port)).await?;
            listeners.push(tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(repeat(stream));
                }
            }));
        }
        println!("ready");
        for listener in listeners {
            listener.await?;
        }
        Ok(())
    })
}

async fn repeat(mut stream: TcpStream) -> Result<()> {
    let mut byte = [0];
    while stream.read(&mut byte).await? == 1 {
        stream.write_all(&byte).await?;
    }
    Ok(())
}

async fn open(from: u16, to: SocketAddr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from(([0, 0, 0, 0], from)))?;
    socket.connect(to).await
}

/// Sends a byte, and waits for it to come back.
async fn exchange(stream: &mut TcpStream) -> Result<()> {
    let mut byte = [7];
    stream.write_all(&byte).await?;
    stream.read_exact(&mut byte).await.map(drop)
}

/// Times out as a connection that is silent does.
async fn patiently<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(PATIENCE, work).await.unwrap_or_else(|_| Err(Error::from(ErrorKind::TimedOut)))
}

/// What has become of connections.
#[derive(Default)]
struct Counts {
    answered: AtomicU64,
    silent: AtomicU64,
    /// Reset, closed or refused.
    ended: AtomicU64,
    slowest_ms: AtomicU64,
}

impl Counts {
    fn count(&self, result: &Result<()>, took: Duration) {
        let counter = match result {
            Ok(()) => &self.answered,
            Err(error) if error.kind() == ErrorKind::TimedOut => &self.silent,
            Err(_) => &self.ended,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.slowest_ms.fetch_max(took.as_millis() as u64, Ordering::Relaxed);
    }

    fn to_json(&self) -> serde_json::Value {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        json!({
            "answered": read(&self.answered), "silent": read(&self.silent), "ended": read(&self.ended),
            "slowest_ms": read(&self.slowest_ms),
        })
    }
}

/// Opens connections that stay, and `per_s` others a second. For each line on standard input, sends by each connection that stays,
/// and prints what came back.
pub fn hold(address: SocketAddr, connections: u16, per_s: u32) -> Result<()> {
    run(async {
        let to = move |number: u64| {
            SocketAddr::new(address.ip(), address.port() + (number % u64::from(PORTS)) as u16)
        };
        let all: Vec<u16> = (0..connections).collect();
        let mut held = Vec::new();
        for some in all.chunks(AT_ONCE) {
            let tasks: Vec<_> = some
                .iter()
                .map(|number| tokio::spawn(patiently(open(HELD_FROM + number / PORTS, to((*number).into())))))
                .collect();
            for task in tasks {
                held.push(task.await??);
            }
        }
        println!("ready");
        let others = Arc::new(Counts::default());
        let counts = others.clone();
        tokio::spawn(async move {
            let mut ticks = interval(Duration::from_secs(1) / per_s);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            for number in 0_u64.. {
                ticks.tick().await;
                // Each inside port is used for one connection to each port of the server in turn.
                let from = OTHERS_FROM + (number / u64::from(PORTS) % OTHERS) as u16;
                tokio::spawn(come_and_go(from, to(number), counts.clone()));
            }
        });
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        while lines.next_line().await?.is_some() {
            let stay = Arc::new(Counts::default());
            let mut tasks = Vec::new();
            for mut stream in held.drain(..) {
                let stay = stay.clone();
                tasks.push(tokio::spawn(async move {
                    let begun = Instant::now();
                    let result = patiently(exchange(&mut stream)).await;
                    stay.count(&result, begun.elapsed());
                    stream
                }));
            }
            for task in tasks {
                held.push(task.await?);
            }
            println!("{}", json!({ "held": stay.to_json(), "others": others.to_json() }));
        }
        Ok(())
    })
}

/// A connection with one exchange. It ends by RST, so that its ports can be used again at once.
async fn come_and_go(from: u16, to: SocketAddr, counts: Arc<Counts>) {
    let begun = Instant::now();
    let result = patiently(async {
        let mut stream = open(from, to).await?;
        stream.set_zero_linger()?;
        exchange(&mut stream).await
    })
    .await;
    counts.count(&result, begun.elapsed());
}
