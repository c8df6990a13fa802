//! The timeouts of sessions, and the configuration of the session tables in which packets read them.

use super::Phase;
use crate::error::Error;
use crate::layout::{self, session_config, session_timeouts};
use crate::region::Region;
use std::mem::offset_of;
use std::str::FromStr;

const TICKS: u32 = layout::SESSION_TICKS_PER_SECOND;

/// Time that a session lives after its last packet, in seconds. Each is between [`Timeouts::MIN_S`] and
/// [`Timeouts::MAX_S`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP before the reply and its confirmation. Default: 240 (RFC 5382 REQ-5, transitory).
    pub tcp_new_s: u32,
    /// Established TCP. Default: 7440 (RFC 5382 REQ-5: 2 hours 4 minutes).
    pub tcp_established_s: u32,
    /// TCP after RST or both FINs. Default: 240 (RFC 5382 REQ-5, transitory).
    pub tcp_closing_s: u32,
    /// UDP without a reply. Default: 120 (the minimum of RFC 4787 REQ-5).
    pub udp_one_way_s: u32,
    /// UDP with a reply. Default: 300 (RFC 4787 REQ-5 c).
    pub udp_two_way_s: u32,
    /// ICMP and ICMPv6 queries. Default: 60 (RFC 5508 REQ-2).
    pub icmp_s: u32,
    /// Other protocols. Default: 300; no standard requires a value.
    pub other_s: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            tcp_new_s: 240,
            tcp_established_s: 7440,
            tcp_closing_s: 240,
            udp_one_way_s: 120,
            udp_two_way_s: 300,
            icmp_s: 60,
            other_s: 300,
        }
    }
}

impl Timeouts {
    /// Shortest timeout: packets refresh an expiry only when it differs by at least a second.
    pub const MIN_S: u32 = 2;
    /// Longest timeout: 30 days.
    pub const MAX_S: u32 = 30 * 86_400;

    /// For how long a session of a protocol lives after its last packet in a state (`SESSION_REPLIED` and so on), in ticks, as
    /// `session_timeout()` of `bpf/include/common/sessions.h`.
    #[must_use]
    pub fn of(&self, protocol: u8, state: u32) -> u32 {
        let seconds = match (protocol, Phase::of(protocol, state)) {
            (6, Phase::New) => self.tcp_new_s,
            (6, Phase::Established) => self.tcp_established_s,
            (6, Phase::Closing) => self.tcp_closing_s,
            (17, Phase::New) => self.udp_one_way_s,
            (17, _) => self.udp_two_way_s,
            (1 | 58, _) => self.icmp_s,
            _ => self.other_s,
        };
        seconds * TICKS
    }

    /// These timeouts, but those of `text` (`NAME=SECONDS,...`, each name once).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the text has another form, an unknown name, or a number out of range.
    pub fn changed(mut self, text: &str) -> Result<Self, Error> {
        let mut seen = Vec::new();
        for part in text.split(',') {
            let (name, seconds) = part
                .split_once('=')
                .and_then(|(name, seconds)| Some((name, seconds.parse().ok()?)))
                .ok_or_else(|| Error::Invalid(format!("`{part}` is not NAME=SECONDS")))?;
            if seen.contains(&name) {
                return Err(Error::Invalid(format!("session timeout {name} is given twice")));
            }
            let names = self.named().map(|(name, _)| name).join(", ");
            let Some((_, timeout)) = self.named().into_iter().find(|(known, _)| *known == name) else {
                return Err(Error::Invalid(format!("`{name}` is no session timeout: they are {names}")));
            };
            *timeout = seconds;
            seen.push(name);
        }
        self.to_layout()?;
        Ok(self)
    }

    /// The name and the seconds of the shortest timeout.
    #[must_use]
    pub fn shortest(mut self) -> (&'static str, u32) {
        let [first, others @ ..] = self.named().map(|(name, seconds)| (name, *seconds));
        others.into_iter().fold(first, |least, other| if other.1 < least.1 { other } else { least })
    }

    /// Each timeout by its name.
    fn named(&mut self) -> [(&'static str, &mut u32); 7] {
        [
            ("tcp-new", &mut self.tcp_new_s),
            ("tcp-established", &mut self.tcp_established_s),
            ("tcp-closing", &mut self.tcp_closing_s),
            ("udp-one-way", &mut self.udp_one_way_s),
            ("udp-two-way", &mut self.udp_two_way_s),
            ("icmp", &mut self.icmp_s),
            ("other", &mut self.other_s),
        ]
    }

    pub(super) fn to_layout(mut self) -> Result<session_timeouts, Error> {
        for (name, seconds) in self.named() {
            if !(Self::MIN_S..=Self::MAX_S).contains(seconds) {
                let (min, max) = (Self::MIN_S, Self::MAX_S);
                return Err(Error::Invalid(format!(
                    "session timeout {name} of {seconds} s is not between {min} and {max} s"
                )));
            }
        }
        Ok(session_timeouts {
            tcp_new: self.tcp_new_s * TICKS,
            tcp_established: self.tcp_established_s * TICKS,
            tcp_closing: self.tcp_closing_s * TICKS,
            udp_one_way: self.udp_one_way_s * TICKS,
            udp_two_way: self.udp_two_way_s * TICKS,
            icmp: self.icmp_s * TICKS,
            other: self.other_s * TICKS,
            reserved: 0,
        })
    }

    pub(super) fn store(&self, config: &Region) -> Result<(), Error> {
        for (at, ticks) in words(&self.to_layout()?) {
            config.store32(at, ticks);
        }
        Ok(())
    }

    pub(super) fn load(config: &Region) -> Self {
        let seconds = |offset| config.load32(offset_of!(session_config, timeouts) + offset) / TICKS;
        Self {
            tcp_new_s: seconds(offset_of!(session_timeouts, tcp_new)),
            tcp_established_s: seconds(offset_of!(session_timeouts, tcp_established)),
            tcp_closing_s: seconds(offset_of!(session_timeouts, tcp_closing)),
            udp_one_way_s: seconds(offset_of!(session_timeouts, udp_one_way)),
            udp_two_way_s: seconds(offset_of!(session_timeouts, udp_two_way)),
            icmp_s: seconds(offset_of!(session_timeouts, icmp)),
            other_s: seconds(offset_of!(session_timeouts, other)),
        }
    }
}

/// How long sessions of a port that has little room left stay after their last packet, in ticks. A closed connection needs
/// its record for segments that are sent again, and one without an answer for the first repetitions of its first packet.
///
/// Packets move the expiry only by [`layout::SESSION_REFRESH_TICKS`] or more, so the last one may be later by less than that.
const CLOSED_STAY: u32 = 2 * TICKS + layout::SESSION_REFRESH_TICKS;
const UNANSWERED_STAY: u32 = 5 * TICKS + layout::SESSION_REFRESH_TICKS;

/// How soon sessions end that are closed or not answered, as long as room is scarce.
#[derive(Clone, Debug)]
pub(super) struct WhenScarce {
    timeouts: session_timeouts,
    longest: u32,
}

impl WhenScarce {
    pub(super) fn read(config: &Region) -> Self {
        let timeout = |offset| config.load32(offset_of!(session_config, timeouts) + offset);
        let timeouts = session_timeouts {
            tcp_new: timeout(offset_of!(session_timeouts, tcp_new)),
            tcp_closing: timeout(offset_of!(session_timeouts, tcp_closing)),
            udp_one_way: timeout(offset_of!(session_timeouts, udp_one_way)),
            icmp: timeout(offset_of!(session_timeouts, icmp)),
            other: timeout(offset_of!(session_timeouts, other)),
            ..Default::default()
        };
        let session_timeouts { tcp_new, tcp_closing, udp_one_way, icmp, other, .. } = timeouts;
        let longest = [tcp_new, tcp_closing, udp_one_way, icmp, other].into_iter().max().unwrap_or(0);
        Self { timeouts, longest }
    }

    /// Whether a session with `left` ticks until its expiry may end: most need no look at their record.
    pub(super) fn may_end(&self, left: u32) -> bool {
        left <= self.longest
    }

    /// Whether such a session ends. Packets move the expiry, so it says when the last one came.
    pub(super) fn ends(&self, (protocol, state): (u8, u32), left: u32) -> bool {
        let of = &self.timeouts;
        let (timeout, stay) = match (Phase::of(protocol, state), protocol) {
            (Phase::Established, _) => return false,
            (Phase::Closing, _) => (of.tcp_closing, CLOSED_STAY),
            (Phase::New, 6) => (of.tcp_new, UNANSWERED_STAY),
            (Phase::New, 17) => (of.udp_one_way, UNANSWERED_STAY),
            (Phase::New, 1 | 58) => (of.icmp, UNANSWERED_STAY),
            (Phase::New, _) => (of.other, UNANSWERED_STAY),
        };
        timeout.saturating_sub(left) >= stay
    }
}

/// `NAME=SECONDS,...`, each name once; those that are not named have their defaults.
impl FromStr for Timeouts {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::default().changed(text)
    }
}

/// Each timeout in ticks, with its offset in the configuration.
fn words(timeouts: &session_timeouts) -> [(usize, u32); 7] {
    let base = offset_of!(session_config, timeouts);
    [
        (base + offset_of!(session_timeouts, tcp_new), timeouts.tcp_new),
        (base + offset_of!(session_timeouts, tcp_established), timeouts.tcp_established),
        (base + offset_of!(session_timeouts, tcp_closing), timeouts.tcp_closing),
        (base + offset_of!(session_timeouts, udp_one_way), timeouts.udp_one_way),
        (base + offset_of!(session_timeouts, udp_two_way), timeouts.udp_two_way),
        (base + offset_of!(session_timeouts, icmp), timeouts.icmp),
        (base + offset_of!(session_timeouts, other), timeouts.other),
    ]
}

/// Stores the configuration except the magic number and the numbers of buckets.
pub(super) fn write_config(config: &Region, content: &session_config) {
    config.store32(offset_of!(session_config, layout_version), content.layout_version);
    config.store32(offset_of!(session_config, generation), content.generation);
    for (i, word) in content.hash_key.iter().enumerate() {
        config.store64(offset_of!(session_config, hash_key) + i * 8, *word);
    }
    config.store64(offset_of!(session_config, seed), content.seed);
    for (at, ticks) in words(&content.timeouts) {
        config.store32(at, ticks);
    }
    for counter in [
        offset_of!(session_config, full),
        offset_of!(session_config, full) + 8,
        offset_of!(session_config, busy),
        offset_of!(session_config, duplicates),
        offset_of!(session_config, shared_begun),
        offset_of!(session_config, shared_limit),
    ] {
        config.store64(counter, 0);
    }
}
