//! What security groups make of connections, in both address families: direct paths lead past no group, and a flow that
//! moves to one stays one session, also if only one direction does; fragments follow their first one, and one that comes
//! before it is dropped; a stray TCP segment admits nothing, a reset ends a
//! session, a half-closed connection goes on; a connection goes on if another rule permits it, also one that names a group of
//! its receiver, which the host did not need to know before; groups that are switched on under a connection adopt it, for a time.

use crate::Ground;
use crate::attack::sessions;
use crate::direct_paths::goes_direct;
use crate::security_groups::{create_egress, group, permit, reaches_at, set_groups};
use crate::support::{Failure, Outcome, Probe, address, drops, ensure, eventually, path_to};
use serde_json::{Value, json};
use sluice_client::{Remote, SecurityRule, Vpc};
use sluice_lab::{Lab, Options};
use sluice_types::{IpNet, Protocol, SecurityGroupId};
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Child;

const CLIENT: &str = "web-1";
const SERVER: &str = "web-3";
/// In a VPC that is peered.
const STRANGER: &str = "db-1";
const HOST: &str = "host-b";
const OPEN: u16 = 7081;
const CLOSED: u16 = 7082;
/// A Python server listens here.
const TALK: u16 = 7083;
/// A Python server gives short answers here, to another client.
const SHORT: u16 = 7084;
const LOPSIDED_CLIENT: &str = "web-2";
/// Of `goes_direct`.
const STREAM: u16 = 7021;
/// Source port of stray segments.
const STRAY: u16 = 40_001;
const ADOPT_SECONDS: u64 = 5;

/// What every Python program begins with: the family's sockets to the server.
const PRELUDE: &str = "import os, socket, struct, sys, time\n\
    at, port = sys.argv[1], int(sys.argv[2])\n\
    family = socket.AF_INET6 if ':' in at else socket.AF_INET\n";

/// Answers each line with the same line; after the end of the input sends a last one.
pub const TALKER: &str = "import threading\n\
    server = socket.create_server((at, port), family=family)\n\
    def serve(connection):\n    \
        for line in connection.makefile('rb'):\n        connection.sendall(line)\n    \
        time.sleep(0.5)\n    connection.sendall(b'last\\n')\n    connection.close()\n\
    while True:\n    threading.Thread(target=serve, args=(server.accept()[0],)).start()\n";

/// Sends 4 KiB in one datagram, and prints how long the answer is.
const DATAGRAM: &str = "s = socket.socket(family, socket.SOCK_DGRAM)\n\
    s.settimeout(float(sys.argv[3]))\n\
    s.connect((at, port))\n\
    s.send(bytes(4096))\n\
    try:\n    print(len(s.recv(65536)))\n\
    except (TimeoutError, ConnectionRefusedError):\n    print('silent')\n";

/// Sends a datagram in two fragments in the given order, and prints how long the answer is.
const FRAGMENTS: &str = "u = socket.socket(family, socket.SOCK_DGRAM)\n\
    u.settimeout(1)\n\
    u.connect((at, port))\n\
    own, local = u.getsockname()[:2]\n\
    raw = [socket.inet_pton(family, address) for address in (own, at)]\n\
    body = bytes(1000)\n\
    header = struct.pack('!HHH', local, port, 8 + len(body))\n\
    words = b''.join(raw) + struct.pack('!HH', 17, 8 + len(body)) + header + body\n\
    total = sum(struct.unpack(f'!{len(words) // 2}H', words))\n\
    while total >> 16:\n    total = (total & 0xffff) + (total >> 16)\n\
    datagram = header + struct.pack('!H', ~total & 0xffff) + body\n\
    number = os.urandom(2)\n\
    ipv6 = family == socket.AF_INET6\n\
    s = socket.socket(family, socket.SOCK_RAW, 44 if ipv6 else socket.IPPROTO_RAW)\n\
    for part in sys.argv[3]:\n    \
        data, offset, more = (datagram[512:], 512, 0) if part == 'l' else (datagram[:512], 0, 1)\n    \
        if ipv6:\n        fragment = struct.pack('!BBHxx2s', 17, 0, offset | more, number)\n    \
        else:\n        fragment = struct.pack('!BBH2sHBBH', 0x45, 0, 20 + len(data), number, \
            offset >> 3 | more << 13, 64, 17, 0) + b''.join(raw)\n    \
        s.sendto(fragment + data, (at, 0))\n\
    try:\n    print(len(u.recv(65536)))\n\
    except (TimeoutError, ConnectionRefusedError):\n    print('silent')\n";

/// Answers each datagram with one byte.
const BRIEF: &str = "s = socket.socket(family, socket.SOCK_DGRAM)\n\
    s.bind((at, port))\n\
    print('ready', flush=True)\n\
    while True:\n    s.sendto(b'x', s.recvfrom(2048)[1])\n";

/// Sends 100 datagrams of 1200 bytes a second until a line of input; prints how many were answered, and how many not.
const LOPSIDED: &str = "import select\n\
    s = socket.socket(family, socket.SOCK_DGRAM)\n\
    s.settimeout(5)\n\
    s.connect((at, port))\n\
    print(s.getsockname()[1], flush=True)\n\
    sent = answered = 0\n\
    while not select.select([sys.stdin], [], [], 0.01)[0]:\n    \
        s.send(bytes(1200))\n    sent += 1\n    \
        while select.select([s], [], [], 0)[0]:\n        answered += len(s.recv(9))\n\
    while answered < sent:\n    answered += len(s.recv(9))\n\
    print(answered, sent - answered)\n";

/// Sends a TCP header of each of these flags: ACK, FIN and ACK, RST.
pub const STRAY_SEGMENTS: &str = "s = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_TCP)\n\
    for flags in 0x10, 0x11, 0x04:\n    \
        s.sendto(struct.pack('!HHIIBBHHH', int(sys.argv[3]), port, 1, 1, 0x50, flags, 512, 0, 0), (at, 0))\n";

/// A connection that is reset after an answer.
const RESET: &str = "s = socket.create_connection((at, port), 5)\n\
    s.sendall(b'x\\n')\n\
    assert s.recv(9) == b'x\\n'\n\
    print(s.getsockname()[1], flush=True)\n\
    sys.stdin.readline()\n\
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n\
    s.close()\n";

/// Closes its direction, and still receives.
const HALF_CLOSED: &str = "s = socket.create_connection((at, port), 5)\n\
    s.settimeout(5)\n\
    s.shutdown(socket.SHUT_WR)\n\
    print(s.recv(9).decode().strip())\n";

/// A connection that talks in the beginning, and in the end.
const TALK_TWICE: &str = "s = socket.create_connection((at, port), 5)\n\
    def talk():\n    \
        s.settimeout(3)\n    s.sendall(b'x\\n')\n    \
        try:\n        return s.recv(9) == b'x\\n'\n    except TimeoutError:\n        return False\n\
    assert talk()\n\
    print(s.getsockname()[1], flush=True)\n\
    sys.stdin.readline()\n\
    print('lives' if talk() else 'ended')\n";

/// Two connections: one talks all the time, the other only at the beginning and after the given seconds.
const TALK_ON: &str = "busy, idle = [socket.create_connection((at, port), 5) for _ in range(2)]\n\
    def talk(s):\n    \
        s.settimeout(3)\n    s.sendall(b'x\\n')\n    \
        try:\n        return s.recv(9) == b'x\\n'\n    except TimeoutError:\n        return False\n\
    assert talk(busy) and talk(idle)\n\
    print('ready', flush=True)\n\
    sys.stdin.readline()\n\
    end = time.time() + int(sys.argv[3])\n\
    lives = True\n\
    while lives and time.time() < end:\n    lives = talk(busy)\n    time.sleep(0.1)\n\
    print('busy' if lives and talk(busy) else '-', 'idle' if talk(idle) else '-')\n";

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = Lab::up(Options::standard(&ground.name, &ground.binary)?).await?;
    let server = group(&lab, "server").await?;
    let mut listeners = Vec::new();
    let mut talkers = Vec::new();
    for at in lab.vm(SERVER)?.addresses() {
        for port in [OPEN, CLOSED] {
            let at = SocketAddr::new(at, port).to_string();
            listeners.push(Probe::listening(&lab, SERVER, &["echo", &at, SERVER]).await?);
        }
        talkers.push(start(&lab, SERVER, TALKER, &at.to_string(), TALK, "")?);
    }
    for at in lab.vm(CLIENT)?.addresses() {
        for (protocol, port) in
            [(Protocol::TCP, OPEN), (Protocol::UDP, OPEN), (Protocol::TCP, TALK), (Protocol::UDP, STREAM)]
        {
            permit(&lab, server, protocol, port, Remote::Prefix(IpNet::from(at))).await?;
        }
    }
    // Otherwise the first stray segments would be adopted.
    restart_host(&lab, &["--adopt-seconds=0"]).await?;
    set_groups(&lab, SERVER, &[server]).await?;
    one_direction(&lab, server).await?;
    for ipv6 in [false, true] {
        direct_paths(&lab, ipv6).await?;
    }
    for ipv6 in [false, true] {
        fragments(&lab, ipv6).await?;
        tcp_states(&lab, ipv6).await?;
    }
    other_rules(&lab, server).await?;
    adoption(&lab, server).await
}

/// Starts a Python program in a VM, for an address and a port of the server and with one more argument.
pub fn start(lab: &Lab, vm: &str, program: &str, at: &str, port: u16, more: &str) -> Result<Child, Failure> {
    let code = format!("{PRELUDE}{program}");
    let mut command = lab.command(vm, &["python3", "-c", &code, at, &port.to_string(), more])?;
    Ok(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
}

/// Runs a program to its end; returns what it prints.
async fn run(lab: &Lab, program: &str, ipv6: bool, port: u16, more: &str) -> Result<String, Failure> {
    let at = address(lab.vm(SERVER)?, ipv6)?.to_string();
    let output = start(lab, CLIENT, program, &at, port, more)?.wait_with_output().await?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The first line that a program prints.
pub async fn line(child: &mut Child) -> Result<String, Failure> {
    use tokio::io::AsyncReadExt;
    let stdout = child.stdout.as_mut().ok_or_else(|| Failure::new("a program without output"))?;
    let mut text = String::new();
    while !text.ends_with('\n') {
        text.push(char::from(stdout.read_u8().await?));
    }
    Ok(text.trim().to_owned())
}

/// Lets a program continue.
pub async fn go_on(child: &mut Child) -> Outcome {
    use tokio::io::AsyncWriteExt;
    let stdin = child.stdin.as_mut().ok_or_else(|| Failure::new("a program without input"))?;
    Ok(stdin.write_all(b"\n").await?)
}

/// Sessions of the server's port with an address and port of the client, or with a port of its own.
async fn of_server(lab: &Lab, ipv6: bool, key: &str, port: u16) -> Result<Vec<Value>, Failure> {
    between(lab, (SERVER, CLIENT), ipv6, key, port).await
}

/// Sessions of the port of the first VM with an address of the second one.
async fn between(
    lab: &Lab,
    (own, other): (&str, &str),
    ipv6: bool,
    key: &str,
    port: u16,
) -> Result<Vec<Value>, Failure> {
    let remote = address(lab.vm(other)?, ipv6)?.to_string();
    let vm = lab.vm(own)?;
    let all = sessions(lab, &vm.host, &vm.port).await?;
    Ok(all.into_iter().filter(|it| it["remote_address"] == remote.as_str() && it[key] == port).collect())
}

/// Waits until a reason was counted so many times more.
pub async fn counted(lab: &Lab, reason: &str, before: f64, by: f64) -> Outcome {
    let vni = lab.vm(SERVER)?.vni;
    eventually(Duration::from_secs(3), async || {
        let more = drops(lab, vni, reason).await? - before;
        ensure!(more >= by, "only {more} of {by} packets were counted as {reason}");
        Ok(())
    })
    .await
}

/// Restarts the agent of the server's host with other values of these options.
pub async fn restart_host(lab: &Lab, options: &[&str]) -> Outcome {
    let mut argv = lab.process(HOST)?.argv;
    for option in options {
        let name = option.split('=').next().unwrap_or(option);
        argv.retain(|word| !word.starts_with(name));
        argv.push((*option).to_owned());
    }
    lab.restart_with(HOST, argv).await?;
    Ok(lab.synchronized(HOST, Duration::from_secs(30)).await?)
}

/// Connections that a rule with a prefix has permitted, to a member of a group and to an instance of another VPC. When only a
/// rule that names the group is left, the host asks for the groups of both, and only the first one goes on.
async fn other_rules(lab: &Lab, server: SecurityGroupId) -> Outcome {
    let sender = group(lab, "sender").await?;
    for rule in lab.api().list::<SecurityRule>(&[("group", &sender.to_string())], None).await? {
        lab.api().delete::<SecurityRule>(rule.id, None).await?;
    }
    let mut prefixes = Vec::new();
    for prefix in ["0.0.0.0/0", "::/0"] {
        let prefix: IpNet = prefix.parse()?;
        create_egress(lab, sender, &prefix, TALK, Remote::Group(server)).await?;
        prefixes.push(create_egress(lab, sender, &prefix, TALK, Remote::Prefix(prefix)).await?);
    }
    set_groups(lab, CLIENT, &[sender]).await?;
    let (mut clients, mut talkers) = (Vec::new(), Vec::new());
    for (to, end) in [(SERVER, "lives"), (STRANGER, "ended")] {
        for at in lab.vm(to)?.addresses() {
            if to == STRANGER {
                talkers.push(start(lab, to, TALKER, &at.to_string(), TALK, "")?);
                reaches_talker(lab, at).await?;
            }
            let mut client = start(lab, CLIENT, TALK_TWICE, &at.to_string(), TALK, "")?;
            let port: u16 = line(&mut client).await?.parse()?;
            clients.push((at, port, end, client));
        }
    }
    for rule in prefixes {
        lab.api().delete::<SecurityRule>(rule, None).await?;
    }
    let vm = lab.vm(CLIENT)?;
    // Time for the answers, of which those about the stranger do not come.
    eventually(Duration::from_secs(3), async || {
        let list = sessions(lab, &vm.host, &vm.port).await?;
        for (at, port, end, _) in &clients {
            let found =
                list.iter().find(|it| it["local_port"] == *port && it["remote_address"] == at.to_string());
            let identity = found.map_or(0, |it| it["remote_identity"].as_u64().unwrap_or(0));
            let is_right = if *end == "lives" { identity != 0 } else { found.is_none() };
            ensure!(is_right, "the connection to {at} has {end}, but is shown as {found:?}");
        }
        Ok(())
    })
    .await?;
    for (at, _, end, mut client) in clients {
        go_on(&mut client).await?;
        let said = line(&mut client).await?;
        ensure!(said == end, "the connection to {at} {said}, not {end}");
    }
    set_groups(lab, CLIENT, &[]).await
}

/// Waits until a server listens that has just been started.
async fn reaches_talker(lab: &Lab, at: IpAddr) -> Outcome {
    let at = SocketAddr::new(at, TALK);
    eventually(Duration::from_secs(5), async || {
        let listening = lab.exec(STRANGER, &["ss", "-Hltn", "src", &at.to_string()]).await?;
        ensure!(!listening.stdout.is_empty(), "nothing listens at {at}");
        Ok(())
    })
    .await
}

/// Groups are switched on under two connections. The one that goes on is adopted; the one whose next packet comes after
/// the time for that has ended.
async fn adoption(lab: &Lab, server: SecurityGroupId) -> Outcome {
    set_groups(lab, SERVER, &[]).await?;
    restart_host(lab, &[&format!("--adopt-seconds={ADOPT_SECONDS}")]).await?;
    let mut clients = Vec::new();
    for at in lab.vm(SERVER)?.addresses() {
        let seconds = (ADOPT_SECONDS + 3).to_string();
        let mut client = start(lab, CLIENT, TALK_ON, &at.to_string(), TALK, &seconds)?;
        let ready = line(&mut client).await?;
        ensure!(ready == "ready", "the client said {ready}");
        clients.push((at, client));
    }
    set_groups(lab, SERVER, &[server]).await?;
    for (_, client) in &mut clients {
        go_on(client).await?;
    }
    for (at, mut client) in clients {
        let end = line(&mut client).await?;
        ensure!(end == "busy -", "{at}: `{end}` of the connections `busy -` lived");
    }
    Ok(())
}

/// A flow that has moved to a direct path in both directions is one session at the receiver, and its sender still reaches
/// no port that no rule permits.
async fn direct_paths(lab: &Lab, ipv6: bool) -> Outcome {
    goes_direct(lab, CLIENT, SERVER, ipv6).await?;
    let found = of_server(lab, ipv6, "local_port", STREAM).await?;
    ensure!(found.len() == 1, "the flow is not one session: {found:#?}");
    let (client, server) = (lab.vm(CLIENT)?, lab.vm(SERVER)?);
    let path = path_to(lab, &client.host, client.vni, address(server, ipv6)?).await?;
    ensure!(path.is_some(), "the direct path is gone");
    reaches_at(lab, CLIENT, SERVER, CLOSED, false).await
}

/// Flows whose large packets go direct, while their short answers stay with the gateways. Each is one session at either end.
async fn one_direction(lab: &Lab, server: SecurityGroupId) -> Outcome {
    let (client, vm, vpc) = (lab.vm(LOPSIDED_CLIENT)?, lab.vm(SERVER)?, lab.vpc("web")?.id);
    // Between 960 kbit/s and 35 kbit/s.
    lab.api().update::<Vpc>(vpc, &json!({ "offload_kbps": 300 }), None).await?;
    set_groups(lab, LOPSIDED_CLIENT, &[group(lab, "client").await?]).await?;
    for ipv6 in [false, true] {
        let (at, from) = (address(vm, ipv6)?, address(client, ipv6)?);
        permit(lab, server, Protocol::UDP, SHORT, Remote::Prefix(IpNet::from(from))).await?;
        let mut server = start(lab, SERVER, BRIEF, &at.to_string(), SHORT, "")?;
        line(&mut server).await?;
        let mut flow = start(lab, LOPSIDED_CLIENT, LOPSIDED, &at.to_string(), SHORT, "")?;
        let port: u16 = line(&mut flow).await?.parse()?;
        eventually(Duration::from_secs(5), || async {
            let path = path_to(lab, &client.host, client.vni, at).await?;
            ensure!(path.is_some_and(|path| path["installed"] == true), "no path leads to {at}");
            Ok(())
        })
        .await?;
        // As long as a path of the answers would need to be learned.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let back = path_to(lab, HOST, vm.vni, from).await?;
        ensure!(back.is_none(), "the answers go direct as well: {back:?}");
        for (ends, key) in
            [((SERVER, LOPSIDED_CLIENT), "local_port"), ((LOPSIDED_CLIENT, SERVER), "remote_port")]
        {
            let found = between(lab, ends, ipv6, key, SHORT).await?;
            ensure!(found.len() == 1, "{}: the flow of port {port} is not one session: {found:#?}", ends.0);
        }
        go_on(&mut flow).await?;
        let end = line(&mut flow).await?;
        ensure!(end.ends_with(" 0"), "answered and not answered: {end}");
    }
    set_groups(lab, LOPSIDED_CLIENT, &[]).await?;
    lab.api().update::<Vpc>(vpc, &json!({ "offload_kbps": null }), None).await?;
    Ok(())
}

/// A datagram of 4 KiB passes where its first fragment does.
async fn fragments(lab: &Lab, ipv6: bool) -> Outcome {
    let vni = lab.vm(SERVER)?.vni;
    let answer = run(lab, DATAGRAM, ipv6, OPEN, "10").await?;
    // The answer has the name and a colon in front.
    ensure!(answer == (4096 + SERVER.len() + 1).to_string(), "IPv6 {ipv6}: the answer was {answer}");
    let (denied, unknown) =
        (drops(lab, vni, "ingress_denied").await?, drops(lab, vni, "unknown_fragment").await?);
    let answer = run(lab, DATAGRAM, ipv6, CLOSED, "1").await?;
    ensure!(answer == "silent", "IPv6 {ipv6}: a datagram that no rule permits was answered: {answer}");
    counted(lab, "ingress_denied", denied, 1.0).await?;
    // Its other fragments have no ports.
    counted(lab, "unknown_fragment", unknown, 2.0).await?;
    // The later fragment before the first one, which makes no datagram, and then the first one before the later one.
    let unknown = drops(lab, vni, "unknown_fragment").await?;
    let answer = run(lab, FRAGMENTS, ipv6, OPEN, "lf").await?;
    ensure!(
        answer == "silent",
        "IPv6 {ipv6}: a datagram whose later fragment came first was answered: {answer}"
    );
    counted(lab, "unknown_fragment", unknown, 1.0).await?;
    let answer = run(lab, FRAGMENTS, ipv6, OPEN, "fl").await?;
    ensure!(answer == (1000 + SERVER.len() + 1).to_string(), "IPv6 {ipv6}: the answer was {answer}");
    Ok(())
}

async fn tcp_states(lab: &Lab, ipv6: bool) -> Outcome {
    let vni = lab.vm(SERVER)?.vni;
    let before = drops(lab, vni, "no_session").await?;
    run(lab, STRAY_SEGMENTS, ipv6, OPEN, &STRAY.to_string()).await?;
    counted(lab, "no_session", before, 3.0).await?;
    let found = of_server(lab, ipv6, "remote_port", STRAY).await?;
    ensure!(found.is_empty(), "stray segments began sessions: {found:#?}");

    let at = address(lab.vm(SERVER)?, ipv6)?.to_string();
    let mut client = start(lab, CLIENT, RESET, &at, TALK, "")?;
    let port: u16 = line(&mut client).await?.parse()?;
    let found = of_server(lab, ipv6, "remote_port", port).await?;
    ensure!(found.len() == 1 && found[0]["state"] == "established", "not one established: {found:#?}");
    let lasts = |session: &Value| session["expires_in_s"].as_u64().unwrap_or(u64::MAX);
    let established = lasts(&found[0]);
    go_on(&mut client).await?;
    eventually(Duration::from_secs(3), async || {
        let found = of_server(lab, ipv6, "remote_port", port).await?;
        // A session that a reset has ended stays for late segments, but not for hours.
        let ended =
            found.iter().all(|session| session["state"] == "closing" && lasts(session) < established / 10);
        ensure!(ended, "the reset has not ended {found:#?}");
        Ok(())
    })
    .await?;
    let last = run(lab, HALF_CLOSED, ipv6, TALK, "").await?;
    ensure!(last == "last", "IPv6 {ipv6}: a half-closed connection received `{last}`");
    Ok(())
}
