//! How long a guest itself takes to answer echo requests, as seen at its tap: from the moment at which a request is put on the tap
//! until the guest's reply comes from it. What a peer waits longer is the network's.
//!
//! An emulated guest answers late after its migration, equally for all peers. The likely cause is that the QEMU of the target begins
//! without translations of the guest's code and without its table of addresses, so the guest runs each part of its code slowly once. Requests that have
//! come before the guest runs wait in the tap, which counts here as well.

use crate::connections::{go_on, line};
use crate::support::{Failure, ensure};
use sluice_lab::Lab;
use std::collections::HashMap;
use std::net::IpAddr;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Child;

/// A request: the peer, the guest's address, and the number of the request.
pub type Request = (IpAddr, IpAddr, u16);

/// Watches an interface until a line of input. Then prints each request that was answered and the delay in microseconds, by the
/// kernel's stamps (`SO_TIMESTAMPNS`). The stamps of frames to the guest are of when the tap gets them. Frames are read with their
/// Ethernet headers: of those that a packet program has sent, the kernel may not know where the next header begins.
const WATCH: &str = "import select, socket, struct, sys\n\
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))\n\
    s.bind((sys.argv[1], 3))\n\
    s.setsockopt(socket.SOL_SOCKET, 33, 1 << 23)\n\
    s.setsockopt(socket.SOL_SOCKET, 35, 1)\n\
    print('ready', flush=True)\n\
    asked, delays = {}, {}\n\
    while True:\n    \
        readable = select.select([s, sys.stdin], [], [])[0]\n    \
        if sys.stdin in readable:\n        break\n    \
        data, extra, flags, source = s.recvmsg(142, 128)\n    \
        data = data[14:]\n    \
        stamps = [struct.unpack('qq', it[2]) for it in extra if it[:2] == (socket.SOL_SOCKET, 35)]\n    \
        if len(data) < 48 or not stamps:\n        continue\n    \
        if data[0] >> 4 == 4 and data[9] == 1:\n        \
            at, ask, reply, ends = (data[0] & 15) * 4, 8, 0, (data[12:16], data[16:20])\n    \
        elif data[0] >> 4 == 6 and data[6] == 58:\n        \
            at, ask, reply, ends = 40, 128, 129, (data[8:24], data[24:40])\n    \
        else:\n        continue\n    \
        now = stamps[0][0] * 10 ** 9 + stamps[0][1]\n    \
        number = struct.unpack_from('!H', data, at + 6)[0]\n    \
        if source[2] == socket.PACKET_OUTGOING:\n        \
            if data[at] == ask:\n            asked.setdefault(ends + (number,), now)\n    \
        elif data[at] == reply:\n        \
            key = ends[::-1] + (number,)\n        \
            if key in asked:\n            delays.setdefault(key, now - asked[key])\n\
    for (peer, own, number), delay in delays.items():\n    \
        text = [socket.inet_ntop(socket.AF_INET if len(it) == 4 else socket.AF_INET6, it) for it in (peer, own)]\n    \
        print(*text, number, max(delay, 0) // 1000)\n";

/// A watch of a guest's tap.
pub struct GuestDelays(Child);

impl GuestDelays {
    /// Begins to watch.
    pub async fn watch(lab: &Lab, host: &str, tap: &str) -> Result<Self, Failure> {
        let mut command = lab.command(host, &["python3", "-c", WATCH, tap])?;
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn()?;
        let text = line(&mut child).await?;
        ensure!(text == "ready", "the watch of {tap} said {text}");
        Ok(Self(child))
    }

    /// Ends the watch; returns the guest's own delay of each request that it has answered here.
    pub async fn end(mut self) -> Result<HashMap<Request, Duration>, Failure> {
        go_on(&mut self.0).await?;
        let output = self.0.wait_with_output().await?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "the watch of a tap has ended: {errors}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let read = |line: &str| -> Option<(Request, Duration)> {
            let mut words = line.split(' ');
            let ends = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            let (number, delay_us) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Some(((ends.0, ends.1, number), Duration::from_micros(delay_us)))
        };
        let delays: HashMap<Request, Duration> = text.lines().filter_map(read).collect();
        ensure!(delays.len() == text.lines().count(), "the watch of a tap said {text}");
        Ok(delays)
    }
}
