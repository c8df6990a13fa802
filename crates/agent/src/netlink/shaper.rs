//! The queueing discipline by which an agent shapes what an interface sends: HTB, with a class for each of two
//! priorities. This file changes with how traffic is shaped (`docs/decisions/qos.md`).
//!
//! ```text
//!     root 51ce:  ->  51ce:1, the rate  ->  51ce:16, high priority, served first  ->  bfifo
//!                                       ->  51ce:20, everything else              ->  bfifo
//! ```
//!
//! A packet names the class of high priority in `skb->priority`. The handle marks the discipline: one with another handle
//! is another program's.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use futures::{StreamExt, TryStreamExt};
use rtnetlink::packet_core::{
    DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload, Nla,
    NlasIterator,
};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption, TcStats2};
use sluice_tables::layout;

use super::{Link, Netlink, is_absent};
use crate::Error;

/// Attributes of linux/rtnetlink.h and linux/pkt_sched.h.
const TCA_OPTIONS: u16 = 2;
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
/// Version of the structures of HTB.
const HTB_VERSION: u32 = 3;
const TC_LINKLAYER_ETHERNET: u8 = 1;
/// The kernel's unit of time in the structures of HTB, in nanoseconds.
const TICK_NS: u64 = 64;
/// What a class may send at once after a pause, in nanoseconds of its rate. Debt is repaid, so longer packets pass, too.
const BURST_NS: u64 = 10_000_000;
/// Bytes that a class sends before HTB serves the next class of the same priority. No two classes have the same priority, but
/// without a quantum HTB derives one from the rate and warns about it.
const QUANTUM: u32 = 65_536;
/// Longest time for which packets wait, in milliseconds of the rate.
const QUEUE_MS: u64 = 50;
/// A queue has room for three packets of the largest size that is segmented later.
const QUEUE_BYTES_MIN: u64 = 3 << 16;
/// Bytes per second in a rate of 1 Mbit/s.
const BYTES_PER_MBIT: u64 = 125_000;
/// The share of normal packets that high priority does not take from them, as a divisor of the rate.
const NORMAL_SHARE: u64 = 100;

/// A shaper that an interface has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shaper {
    /// Limits of the queues of normal and of high priority, in bytes; `None`: the queue is missing.
    queues: [Option<u32>; 2],
    /// Packets that found their queue full: of normal and of high priority.
    pub dropped: [u64; 2],
}

/// The minor numbers of the classes with a queue: of normal and of high priority.
const QUEUED: [u16; 2] = [layout::QOS_NORMAL as u16, layout::QOS_HIGH as u16];
const MAJOR: u16 = layout::QOS_QDISC as u16;

/// A class of HTB, with rates in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Class {
    minor: u16,
    parent: u16,
    priority: u32,
    rate: u64,
    ceil: u64,
    /// What may be sent at once, at the rate and at the ceiling, in units of [`TICK_NS`].
    bursts: [u32; 2],
}

impl Class {
    /// The classes for a rate, parents first.
    fn all(rate_mbps: NonZeroU32) -> [Self; 3] {
        let ceil = u64::from(rate_mbps.get()) * BYTES_PER_MBIT;
        let normal = ceil / NORMAL_SHARE;
        let all = layout::QOS_ALL as u16;
        let bursts = [(BURST_NS / TICK_NS) as u32; 2];
        [
            Self { minor: all, parent: 0, priority: 0, rate: ceil, ceil, bursts },
            Self { minor: QUEUED[1], parent: all, priority: 0, rate: ceil - normal, ceil, bursts },
            Self { minor: QUEUED[0], parent: all, priority: 1, rate: normal, ceil, bursts },
        ]
    }

    /// `struct tc_htb_opt`, and the rates that its fields are too short for.
    fn options(&self) -> Vec<TcOption> {
        let mut bytes = [spec(self.rate), spec(self.ceil)].concat();
        for word in [self.bursts[0], self.bursts[1], QUANTUM, 0, self.priority] {
            bytes.extend(word.to_ne_bytes());
        }
        let option = |kind, bytes: &[u8]| TcOption::Other(DefaultNla::new(kind, bytes.to_vec()));
        vec![
            option(TCA_HTB_PARMS, &bytes),
            option(TCA_HTB_RATE64, &self.rate.to_ne_bytes()),
            option(TCA_HTB_CEIL64, &self.ceil.to_ne_bytes()),
        ]
    }

    fn message(&self, link: &Link) -> TcMessage {
        let (parent, handle) = (TcHandle { major: MAJOR, minor: self.parent }, class(self.minor));
        message(link, parent, handle, "htb", TcAttribute::Options(self.options()))
    }

    /// Reads a class as the kernel shows it. `None`: it is of another discipline.
    fn parse(message: &TcMessage) -> Option<Self> {
        let bytes = raw_options(message)?;
        let options = NlasIterator::new(&bytes).flatten();
        let options: BTreeMap<u16, Vec<u8>> =
            options.map(|option| (option.kind(), option.value().to_vec())).collect();
        let parms = options.get(&TCA_HTB_PARMS)?;
        let word = |at: usize| Some(u32::from_ne_bytes(parms.get(at..at + 4)?.try_into().ok()?));
        let long = |kind: u16, short: u32| {
            let bytes = options.get(&kind).and_then(|bytes| <[u8; 8]>::try_from(bytes.as_slice()).ok());
            bytes.map_or(u64::from(short), u64::from_ne_bytes)
        };
        if message.header.handle.major != MAJOR {
            return None;
        }
        let parent = message.header.parent;
        Some(Self {
            minor: message.header.handle.minor,
            // The kernel shows the parent of the first class as the root.
            parent: if parent == TcHandle::ROOT { 0 } else { parent.minor },
            priority: word(40)?,
            // Rate and ceiling have 12 bytes each, of which these are the last.
            rate: long(TCA_HTB_RATE64, word(8)?),
            ceil: long(TCA_HTB_CEIL64, word(20)?),
            bursts: [word(24)?, word(28)?],
        })
    }
}

/// `struct tc_ratespec`.
fn spec(bytes_per_s: u64) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[1] = TC_LINKLAYER_ETHERNET;
    bytes[8..].copy_from_slice(&u32::try_from(bytes_per_s).unwrap_or(u32::MAX).to_ne_bytes());
    bytes
}

/// Bytes that may wait in each queue of an interface with this rate.
fn queue_bytes(rate_mbps: NonZeroU32) -> u32 {
    let bytes = u64::from(rate_mbps.get()) * BYTES_PER_MBIT * QUEUE_MS / 1000;
    u32::try_from(bytes.max(QUEUE_BYTES_MIN)).unwrap_or(u32::MAX)
}

fn class(minor: u16) -> TcHandle {
    TcHandle { major: MAJOR, minor }
}

/// The handle of the queue of a class.
fn queue(number: usize) -> TcHandle {
    TcHandle { major: MAJOR + 1 + number as u16, minor: 0 }
}

fn message(link: &Link, parent: TcHandle, handle: TcHandle, kind: &str, options: TcAttribute) -> TcMessage {
    let mut message = TcMessage::with_index(link.index as i32);
    (message.header.parent, message.header.handle) = (parent, handle);
    message.attributes = vec![TcAttribute::Kind(kind.to_owned()), options];
    message
}

/// `struct tc_htb_glob`, with the class of packets that name none.
fn root_message(link: &Link) -> TcMessage {
    let words = [HTB_VERSION, 10, layout::QOS_NORMAL, 0, 0];
    let bytes = words.into_iter().flat_map(u32::to_ne_bytes).collect();
    let options = TcAttribute::Options(vec![TcOption::Other(DefaultNla::new(TCA_HTB_INIT, bytes))]);
    message(link, TcHandle::ROOT, class(0), "htb", options)
}

/// The options of a discipline or class whose kind the library does not know.
fn raw_options(message: &TcMessage) -> Option<Vec<u8>> {
    let TcOption::Other(option) = message.attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Options(options) => options.first(),
        _ => None,
    })?
    else {
        return None;
    };
    let mut bytes = vec![0; option.value_len()];
    option.emit_value(&mut bytes);
    Some(bytes)
}

fn kind(message: &TcMessage) -> Option<&str> {
    message.attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Kind(kind) => Some(kind.as_str()),
        _ => None,
    })
}

/// Packets that a discipline has dropped.
fn dropped(message: &TcMessage) -> u64 {
    let of_stats = |stats: &TcStats2| match stats {
        TcStats2::Queue(queue) => Some(u64::from(queue.drops)),
        _ => None,
    };
    let stats = message.attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Stats2(stats) => stats.iter().find_map(of_stats),
        _ => None,
    });
    stats.unwrap_or(0)
}

/// Adds what a message says about a discipline to the shapers of all interfaces.
fn collect(shapers: &mut BTreeMap<u32, Shaper>, message: &TcMessage) {
    let Ok(ifindex) = u32::try_from(message.header.index) else { return };
    let (handle, parent) = (message.header.handle, message.header.parent);
    if parent == TcHandle::ROOT && handle == class(0) && kind(message) == Some("htb") {
        shapers.entry(ifindex).or_default();
    }
    // The kernel lists the root first.
    let Some(shaper) = shapers.get_mut(&ifindex) else { return };
    let Some(number) = QUEUED.iter().position(|minor| parent == class(*minor)) else { return };
    if kind(message) == Some("bfifo") && handle == queue(number) {
        let limit = raw_options(message).and_then(|bytes| bytes.get(..4)?.try_into().ok());
        shaper.queues[number] = limit.map(u32::from_ne_bytes);
        shaper.dropped[number] = dropped(message);
    }
}

impl Netlink {
    /// The shapers of all interfaces, by interface index.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn shapers(&self) -> Result<BTreeMap<u32, Shaper>, Error> {
        let _listing = self.listing.lock().await;
        let messages = self.handle.qdisc().get().execute();
        let messages: Vec<TcMessage> =
            messages.try_collect().await.map_err(Error::netlink("list queueing disciplines"))?;
        let mut shapers = BTreeMap::new();
        messages.iter().for_each(|message| collect(&mut shapers, message));
        Ok(shapers)
    }

    /// Whether an interface's shaper is as [`Netlink::shape`] leaves it.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn is_shaped(
        &self,
        link: &Link,
        shaper: &Shaper,
        rate_mbps: NonZeroU32,
    ) -> Result<bool, Error> {
        let _listing = self.listing.lock().await;
        let messages = self.handle.traffic_class(link.index as i32).get().execute();
        let what = format!("list the traffic classes of {}", link.name);
        let messages: Vec<TcMessage> = messages.try_collect().await.map_err(Error::netlink(what))?;
        let mut classes: Vec<Class> = messages.iter().filter_map(Class::parse).collect();
        let mut wanted = Class::all(rate_mbps);
        classes.sort_unstable();
        wanted.sort_unstable();
        Ok(shaper.queues == [Some(queue_bytes(rate_mbps)); 2] && classes == wanted)
    }

    async fn has_shaper(&self, link: &Link, rate_mbps: NonZeroU32) -> Result<bool, Error> {
        match self.shapers().await?.get(&link.index) {
            Some(shaper) => self.is_shaped(link, shaper, rate_mbps).await,
            None => Ok(false),
        }
    }

    /// Makes an interface send at most at this rate, of Ethernet frames, and packets of high priority first. A shaper that it has is
    /// changed, and keeps its packets; another discipline is replaced.
    ///
    /// # Errors
    /// If the kernel refuses. It needs HTB (`CONFIG_NET_SCH_HTB`).
    pub async fn shape(&self, link: &Link, rate_mbps: NonZeroU32) -> Result<(), Error> {
        let has_root = self.shapers().await?.contains_key(&link.index);
        let mut result = self.set_shaper(link, rate_mbps, has_root).await;
        if has_root && (result.is_err() || !self.has_shaper(link, rate_mbps).await?) {
            // Another program has changed it in a way that is not undone in place.
            self.unshape(link).await?;
            result = self.set_shaper(link, rate_mbps, false).await;
        }
        let what = format!("shape {} to {rate_mbps} Mbit/s (the kernel needs sch_htb)", link.name);
        result.map_err(Error::netlink(what))
    }

    /// Changes the rate of an interface that has a shaper, and asks for nothing else. Packets that wait are kept.
    ///
    /// # Errors
    /// If the kernel refuses, or the interface has no shaper.
    pub async fn reshape(&self, link: &Link, rate_mbps: NonZeroU32) -> Result<(), Error> {
        let what = format!("change the rate of {} to {rate_mbps} Mbit/s", link.name);
        self.set_shaper(link, rate_mbps, true).await.map_err(Error::netlink(what))
    }

    async fn set_shaper(
        &self,
        link: &Link,
        rate_mbps: NonZeroU32,
        has_root: bool,
    ) -> Result<(), rtnetlink::Error> {
        use RouteNetlinkMessage::{NewQueueDiscipline, NewTrafficClass};
        const SET: u16 = NLM_F_CREATE | NLM_F_REPLACE;
        // Until it has classes, HTB sends at once.
        if !has_root {
            self.request(NewQueueDiscipline(root_message(link)), SET).await?;
        }
        for class in Class::all(rate_mbps) {
            self.request(NewTrafficClass(class.message(link)), SET).await?;
        }
        for (number, minor) in QUEUED.into_iter().enumerate() {
            let limit = queue_bytes(rate_mbps).to_ne_bytes().to_vec();
            let options = TcAttribute::Other(DefaultNla::new(TCA_OPTIONS, limit));
            let message = message(link, class(minor), queue(number), "bfifo", options);
            self.request(NewQueueDiscipline(message), SET).await?;
        }
        Ok(())
    }

    /// Removes the shaper that an interface may have. The kernel's default discipline takes its place.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub async fn unshape(&self, link: &Link) -> Result<(), Error> {
        if !self.shapers().await?.contains_key(&link.index) {
            return Ok(());
        }
        let mut message = TcMessage::with_index(link.index as i32);
        (message.header.parent, message.header.handle) = (TcHandle::ROOT, class(0));
        match self.request(RouteNetlinkMessage::DelQueueDiscipline(message), 0).await {
            Err(error) if !is_absent(&error) => {
                Err(Error::netlink(format!("remove the shaper of {}", link.name))(error))
            }
            _ => Ok(()),
        }
    }

    async fn request(&self, message: RouteNetlinkMessage, flags: u16) -> Result<(), rtnetlink::Error> {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut answers = self.handle.clone().request(request)?;
        while let Some(answer) = answers.next().await {
            if let NetlinkPayload::Error(error) = answer.payload {
                return match error.code {
                    Some(_) => Err(rtnetlink::Error::NetlinkError(error)),
                    None => Ok(()),
                };
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn rate(mbps: u32) -> NonZeroU32 {
        NonZeroU32::new(mbps).unwrap()
    }

    fn shell(program: &str, line: &str) -> String {
        let output = Command::new(program).args(line.split(' ')).output().unwrap();
        assert!(output.status.success(), "{program} {line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a test in a network namespace of its own, with the interface s0.
    fn with_interface(test: impl AsyncFnOnce(Netlink, Link) + Send + 'static) {
        let work = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                shell("ip", "link add s0 type veth peer name t0");
                shell("ip", "link set s0 up");
                let netlink = Netlink::open().unwrap();
                let link = netlink.require_link("s0").await.unwrap();
                test(netlink, link).await;
            });
        };
        std::thread::spawn(work).join().unwrap();
    }

    async fn is_right(netlink: &Netlink, link: &Link, mbps: u32) -> bool {
        netlink.has_shaper(link, rate(mbps)).await.unwrap()
    }

    #[test]
    fn the_classes_share_the_rate() {
        for mbps in [1, 50, 40_000, u32::MAX] {
            let [all, high, normal] = Class::all(rate(mbps));
            assert_eq!((all.rate, all.ceil), (u64::from(mbps) * 125_000, all.rate));
            assert_eq!(high.rate + normal.rate, all.rate);
            assert!(normal.rate > 0 && high.priority < normal.priority);
            assert!(queue_bytes(rate(mbps)) >= 3 << 16);
        }
    }

    #[test]
    fn shapers_are_installed_changed_in_place_and_removed() {
        with_interface(async |netlink, link| {
            assert_eq!(netlink.shapers().await.unwrap(), BTreeMap::new());
            for mbps in [1, 50, 40_000, 1_000_000] {
                netlink.shape(&link, rate(mbps)).await.unwrap();
                assert!(
                    is_right(&netlink, &link, mbps).await,
                    "{mbps}: {}",
                    shell("tc", "class show dev s0")
                );
                assert!(!is_right(&netlink, &link, mbps + 1).await);
            }
            let shown = shell("tc", "qdisc show dev s0");
            assert!(shown.contains("htb 51ce: root") && shown.contains("default 0x20"), "{shown}");
            netlink.unshape(&link).await.unwrap();
            netlink.unshape(&link).await.unwrap();
            assert_eq!(netlink.shapers().await.unwrap(), BTreeMap::new());
        });
    }

    #[test]
    fn what_another_program_has_changed_is_found_and_restored() {
        with_interface(async |netlink, link| {
            netlink.shape(&link, rate(50)).await.unwrap();
            let changes = [
                "class change dev s0 parent 51ce:1 classid 51ce:16 htb rate 1mbit ceil 1mbit",
                "qdisc replace dev s0 parent 51ce:20 handle 51cf: bfifo limit 9000",
                "qdisc replace dev s0 parent 51ce:16 handle 7: pfifo limit 3",
                "class add dev s0 parent 51ce:1 classid 51ce:30 htb rate 1mbit",
                "qdisc replace dev s0 root handle 7: htb",
                "qdisc del dev s0 root",
            ];
            for change in changes {
                shell("tc", change);
                assert!(!is_right(&netlink, &link, 50).await, "{change}");
                netlink.shape(&link, rate(50)).await.unwrap();
                assert!(
                    is_right(&netlink, &link, 50).await,
                    "{change}: {}",
                    shell("tc", "class show dev s0")
                );
            }
            // A discipline of another program is not removed.
            shell("tc", "qdisc replace dev s0 root handle 7: htb");
            netlink.unshape(&link).await.unwrap();
            assert!(shell("tc", "qdisc show dev s0").contains("htb 7:"));
        });
    }
}
