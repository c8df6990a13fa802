//! Sessions of each protocol and state end after their timeout and not before it, in both address families; one with
//! traffic goes on. A packet that comes after the end is a stray, or is judged as the first of a new connection.

use crate::Ground;
use crate::attack::sessions;
use crate::connections::{TALKER, counted, go_on, line, restart_host, start};
use crate::security_groups::{group, permit, permit_echo, set_groups};
use crate::support::{Failure, Outcome, Probe, address, drops, ensure, ensure_timely};
use serde_json::Value;
use sluice_client::Remote;
use sluice_lab::{Lab, Options};
use sluice_types::{IpNet, Protocol};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::process::Child;

const CLIENT: &str = "web-1";
const SERVER: &str = "web-3";
/// A Python server answers each line here.
const TALK: u16 = 7091;
/// A probe answers datagrams here.
const ECHOES: u16 = 7093;
/// Nothing answers here.
const SILENT: u16 = 7092;
/// Source ports of raw segments, and the identifier of echo requests.
const HALF_OPEN_FROM: u16 = 40_011;
const ECHO_ID: u16 = 40_012;
const TIMEOUTS: &str =
    "tcp-new=4,tcp-established=9,tcp-closing=3,udp-one-way=5,udp-two-way=8,icmp=6,other=2592000";
/// By how much a session may end too early: a packet does not write the expiry if it moves by less than a second, and the
/// clock of packets has ticks of 1/8 s and is up to 10 ms late.
const EARLY: f64 = 1.2;
/// By how much a session may be shown too long: the list is asked for ten times a second, by a process.
const LATE: f64 = 1.0;

/// `say` prints a port and the time, with which all but the last packet of a session have been sent; `ask` sends a line, and
/// returns whether it was answered.
const TOOLS: &str = "import subprocess\n\
    def say(port):\n    print(port, time.time(), flush=True)\n\
    def ask(s):\n    \
        s.settimeout(1)\n    \
        try:\n        s.send(b'x\\n')\n        return bool(s.recv(99))\n    \
        except (TimeoutError, ConnectionError):\n        return False\n\
    def wait():\n    sys.stdin.readline()\n";

/// A SYN that the server's stack ignores because of its checksum; afterwards an ACK and the SYN again.
const HALF_OPEN: &str = "s = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_TCP)\n\
    own = int(sys.argv[3])\n\
    def send(flags):\n    \
        s.sendto(struct.pack('!HHIIBBHHH', own, port, 1, 1, 0x50, flags, 512, 0, 0), (at, 0))\n\
    say(own)\n\
    send(2)\n\
    print(flush=True)\n\
    wait()\n\
    send(16)\n\
    send(2)\n\
    print('sent', flush=True)\n";

/// A connection that is silent after an answer.
const IDLE: &str = "s = socket.create_connection((at, port), 5)\n\
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)\n\
    say(s.getsockname()[1])\n\
    ask(s)\n\
    print(flush=True)\n\
    wait()\n\
    print('answered' if ask(s) else 'silent', flush=True)\n";

/// A connection that talks twice a second.
const BUSY: &str = "import select\n\
    s = socket.create_connection((at, port), 5)\n\
    say(s.getsockname()[1])\n\
    print(flush=True)\n\
    lives = True\n\
    while lives and not select.select([sys.stdin], [], [], 0.5)[0]:\n    lives = ask(s)\n\
    print('answered' if ask(s) else 'silent', flush=True)\n";

/// A connection that is reset after an answer.
const RESET: &str = "s = socket.create_connection((at, port), 5)\n\
    own = s.getsockname()[1]\n\
    ask(s)\n\
    say(own)\n\
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n\
    s.close()\n\
    print(flush=True)\n\
    wait()\n\
    print('sent', flush=True)\n";

/// A datagram, and the same afterwards.
const DATAGRAM: &str = "s = socket.socket(family, socket.SOCK_DGRAM)\n\
    s.connect((at, port))\n\
    say(s.getsockname()[1])\n\
    ask(s)\n\
    print(flush=True)\n\
    wait()\n\
    print('answered' if ask(s) else 'silent', flush=True)\n";

/// An echo request, and the same afterwards.
const ECHO: &str = "def echo():\n    \
        words = ['ping', '-n', '-c', '1', '-W', '2', '-e', sys.argv[3], at]\n    \
        return subprocess.run(words, stdout=subprocess.DEVNULL).returncode == 0\n\
    say(sys.argv[3])\n\
    echo()\n\
    print(flush=True)\n\
    wait()\n\
    print('answered' if echo() else 'silent', flush=True)\n";

/// What becomes of a packet that comes after the end.
#[derive(Clone, Copy, PartialEq)]
enum Late {
    /// None is sent.
    Nothing,
    /// The stray is dropped.
    Stray,
    /// A new session begins with it.
    New,
}

/// A kind of session, as `sluice port sessions` shows it.
struct Kind {
    program: &'static str,
    port: u16,
    /// Argument of the program.
    more: u16,
    protocol: [&'static str; 2],
    state: &'static str,
    /// Seconds after its last packet at which it ends; `None`: it has traffic.
    timeout: Option<u32>,
    late: Late,
    /// What the client says in the end.
    says: &'static str,
}

const TCP: [&str; 2] = ["tcp"; 2];
const UDP: [&str; 2] = ["udp"; 2];
const ICMP: [&str; 2] = ["icmp", "icmpv6"];

#[rustfmt::skip]
const KINDS: [Kind; 7] = [
    Kind { program: HALF_OPEN, port: SILENT, more: HALF_OPEN_FROM, protocol: TCP, state: "new", timeout: Some(4),
        late: Late::New, says: "sent" },
    Kind { program: IDLE, port: TALK, more: 0, protocol: TCP, state: "established", timeout: Some(9),
        late: Late::Stray, says: "silent" },
    Kind { program: BUSY, port: TALK, more: 0, protocol: TCP, state: "established", timeout: None,
        late: Late::Nothing, says: "answered" },
    Kind { program: RESET, port: TALK, more: 0, protocol: TCP, state: "closing", timeout: Some(3),
        late: Late::Nothing, says: "sent" },
    Kind { program: DATAGRAM, port: SILENT, more: 0, protocol: UDP, state: "new", timeout: Some(5),
        late: Late::New, says: "silent" },
    Kind { program: DATAGRAM, port: ECHOES, more: 0, protocol: UDP, state: "established", timeout: Some(8),
        late: Late::New, says: "answered" },
    Kind { program: ECHO, port: 0, more: ECHO_ID, protocol: ICMP, state: "established", timeout: Some(6),
        late: Late::New, says: "answered" },
];

/// A session of a client that waits.
struct Begun {
    kind: &'static Kind,
    ipv6: bool,
    /// The client's port, or the identifier of its echo requests.
    port: u16,
    client: Child,
    /// Times before and after its last packet, in seconds.
    last: [f64; 2],
    /// A list has shown it.
    seen: bool,
    /// When the list that did not show it any more was asked for, and when it had come.
    gone: Option<[f64; 2]>,
}

impl Begun {
    fn name(&self) -> String {
        let (protocol, state) = (self.kind.protocol[usize::from(self.ipv6)], self.kind.state);
        format!(
            "the session of {protocol} (IPv6: {}) that is {state}, timeout {:?} s",
            self.ipv6, self.kind.timeout
        )
    }

    /// The session in a list of the server's.
    fn in_list<'a>(&self, lab: &Lab, list: &'a [Value]) -> Result<Option<&'a Value>, Failure> {
        let remote = address(lab.vm(CLIENT)?, self.ipv6)?.to_string();
        let protocol = self.kind.protocol[usize::from(self.ipv6)];
        let is_it = |it: &&Value| {
            it["remote_address"] == remote.as_str()
                && it["remote_port"] == self.port
                && it["protocol"] == protocol
        };
        Ok(list.iter().find(is_it))
    }
}

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = Lab::up(Options::standard(&ground.name, &ground.binary)?).await?;
    let server = group(&lab, "server").await?;
    let (mut talkers, mut echoes) = (Vec::new(), Vec::new());
    for at in lab.vm(SERVER)?.addresses() {
        talkers.push(start(&lab, SERVER, TALKER, &at.to_string(), TALK, "")?);
        let at = SocketAddr::new(at, ECHOES).to_string();
        echoes.push(Probe::listening(&lab, SERVER, &["echo", &at, SERVER]).await?);
    }
    for at in lab.vm(CLIENT)?.addresses() {
        let remote = || Remote::Prefix(IpNet::from(at));
        for (protocol, port) in
            [(Protocol::TCP, TALK), (Protocol::TCP, SILENT), (Protocol::UDP, ECHOES), (Protocol::UDP, SILENT)]
        {
            permit(&lab, server, protocol, port, remote()).await?;
        }
        permit_echo(&lab, server, remote()).await?;
    }
    // Otherwise the first strays would be adopted.
    restart_host(&lab, &["--adopt-seconds=0", &format!("--session-timeouts={TIMEOUTS}")]).await?;
    set_groups(&lab, SERVER, &[server]).await?;

    let mut begun = Vec::new();
    for kind in &KINDS {
        for ipv6 in [false, true] {
            begun.push(begin(&lab, kind, ipv6).await?);
            // The first ones may end before the last ones begin.
            look(&lab, &mut begun).await?;
        }
    }
    age(&lab, &mut begun).await?;
    for session in &begun {
        ends_in_time(session)?;
    }
    for session in begun {
        afterwards(&lab, session).await?;
    }
    Ok(())
}

fn now() -> Result<f64, Failure> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64())
}

/// Begins a session, which the server's host shows then.
async fn begin(lab: &Lab, kind: &'static Kind, ipv6: bool) -> Result<Begun, Failure> {
    let at = address(lab.vm(SERVER)?, ipv6)?.to_string();
    let program = format!("{TOOLS}{}", kind.program);
    let mut client = start(lab, CLIENT, &program, &at, kind.port, &kind.more.to_string())?;
    let said = line(&mut client).await?;
    let (port, before) =
        said.split_once(' ').ok_or_else(|| Failure::new(format!("the client said {said}")))?;
    let (port, before) = (port.parse()?, before.parse()?);
    line(&mut client).await?;
    let begun = Begun { kind, ipv6, port, client, last: [before, now()?], seen: false, gone: None };
    Ok(begun)
}

/// Notes which sessions the server's host shows now. Returns when the list was asked for.
async fn look(lab: &Lab, begun: &mut [Begun]) -> Result<f64, Failure> {
    let vm = lab.vm(SERVER)?;
    let asked = now()?;
    let list = sessions(lab, &vm.host, &vm.port).await?;
    let came = now()?;
    for session in begun {
        match session.in_list(lab, &list)? {
            Some(found) => {
                ensure!(session.gone.is_none(), "{} has come back: {found}", session.name());
                ensure!(found["state"] == session.kind.state, "{} is {found}", session.name());
                session.seen = true;
            }
            None => session.gone = session.gone.or(Some([asked, came])),
        }
    }
    Ok(asked)
}

/// Waits until all sessions without traffic have ended, and notes when.
async fn age(lab: &Lab, begun: &mut [Begun]) -> Outcome {
    let longest =
        begun.iter().filter_map(|it| Some(it.last[1] + f64::from(it.kind.timeout?))).fold(0.0, f64::max);
    loop {
        let asked = look(lab, begun).await?;
        // One that was not seen even once has ended too early, which is found by its times.
        if asked > longest + LATE || begun.iter().all(|it| it.kind.timeout.is_none() || it.gone.is_some()) {
            let unseen = begun.iter().find(|it| !it.seen);
            return unseen.map_or(Ok(()), |it| Err(Failure::late(format!("{} was never shown", it.name()))));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A session without traffic has ended after its timeout, and not before.
fn ends_in_time(session: &Begun) -> Outcome {
    let name = session.name();
    let Some(timeout) = session.kind.timeout.map(f64::from) else {
        ensure!(session.gone.is_none(), "{name} has ended in spite of its traffic");
        return Ok(());
    };
    let Some([asked, came]) = session.gone else {
        return Err(Failure::late(format!("{name} has not ended")));
    };
    let (least, most) = (came - session.last[0], asked - session.last[1]);
    ensure!(least >= timeout - EARLY, "{name} has ended after {least:.2} s");
    ensure_timely!(most <= timeout + LATE, "{name} has ended after {most:.2} s");
    Ok(())
}

/// The client sends again, after the end of its session.
async fn afterwards(lab: &Lab, mut session: Begun) -> Outcome {
    let (vm, name) = (lab.vm(SERVER)?, session.name());
    let strays = drops(lab, vm.vni, "no_session").await?;
    go_on(&mut session.client).await?;
    let said = line(&mut session.client).await?;
    ensure!(said == session.kind.says, "{name}: afterwards the client said {said}");
    let list = sessions(lab, &vm.host, &vm.port).await?;
    let found = session.in_list(lab, &list)?;
    match session.kind.late {
        Late::Nothing => return Ok(()),
        Late::Stray => ensure!(found.is_none(), "{name}: a stray has begun {found:?}"),
        Late::New => {
            let packets = found.and_then(|it| it["packets_in"].as_u64());
            ensure!(packets == Some(1), "{name}: a packet after the end has not begun a session: {found:?}");
        }
    }
    let has_stray = session.kind.late == Late::Stray || session.kind.program == HALF_OPEN;
    counted(lab, "no_session", strays, f64::from(u8::from(has_stray))).await
}
