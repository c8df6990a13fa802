//! What has become of a session, by the bits that packets set.

use super::Session;
use crate::layout;

const TCP: u8 = 6;

/// What has become of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The other end has not answered; TCP: the connection is not established.
    New,
    /// Both ends have sent.
    Established,
    /// TCP: it was reset, or both ends have closed it.
    Closing,
}

impl Phase {
    /// All phases, in the order of their values.
    pub const ALL: [Self; 3] = [Self::New, Self::Established, Self::Closing];

    /// The phase of a session of a protocol with these bits of `session_layout.h`.
    #[must_use]
    pub fn of(protocol: u8, state: u32) -> Self {
        let has = |bits: u32| state & bits == bits;
        let both = layout::SESSION_FIN | layout::SESSION_FIN << 1;
        match protocol {
            TCP if has(layout::SESSION_RST) || has(both) => Self::Closing,
            TCP if has(layout::SESSION_CONFIRMED) => Self::Established,
            TCP => Self::New,
            _ if has(layout::SESSION_REPLIED) => Self::Established,
            _ => Self::New,
        }
    }

    /// The phase as users see it.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["new", "established", "closing"][self as usize]
    }
}

impl Session {
    /// The phase of the session.
    #[must_use]
    pub fn phase(&self) -> Phase {
        Phase::of(self.flow.protocol, self.state)
    }
}
