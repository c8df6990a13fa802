//! One TCP connection that talks all the time, and notices how long its peer is silent.

use serde_json::json;
use std::io::{Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between an answer and what is sent next.
const PAUSE: Duration = Duration::from_millis(50);

/// Sends bytes one by one, each when the one before has come back, until `enough` is set. Prints how many came back, and
/// the longest time between two of them. Fails if the connection ends, or is silent for longer than `patience`.
pub fn talk(address: SocketAddr, patience: Duration, enough: &AtomicBool) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    println!("ready");
    let (mut answered, mut longest, mut last) = (0u64, Duration::ZERO, Instant::now());
    while !enough.load(Ordering::Relaxed) {
        std::thread::sleep(PAUSE);
        let mut byte = [7];
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        let now = Instant::now();
        (answered, longest, last) = (answered + 1, longest.max(now - last), now);
    }
    println!("{}", json!({"answered": answered, "longest_ms": longest.as_millis() as u64}));
    Ok(())
}
