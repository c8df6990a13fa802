//! Names of the drop reasons, read from `bpf/include/drops.h` at build time.

/// One numbered reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Stable number: the index into the `drops` counters.
    pub number: u32,
    /// Short name, for metrics' labels.
    pub name: &'static str,
    /// What a person reads.
    pub text: &'static str,
}

/// Every reason there is, by number.
pub const ALL: &[Reason] = include!(concat!(env!("OUT_DIR"), "/drops.rs"));

fn find(reason: u32) -> Option<&'static Reason> {
    ALL.iter().find(|known| known.number == reason)
}

/// The reason's short name.
pub fn name(reason: u32) -> Option<&'static str> {
    find(reason).map(|known| known.name)
}

/// The reason in words.
pub fn text(reason: u32) -> Option<&'static str> {
    find(reason).map(|known| known.text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout;

    #[test]
    fn reasons_are_the_headers() {
        assert_eq!(name(layout::drop_reason_DROP_unknown_vni), Some("unknown_vni"));
        assert_eq!(text(layout::drop_reason_DROP_hairpin), Some("destination is the sending port itself"));
        assert_eq!(name(0), None);
        assert_eq!(name(layout::DROP_REASONS_MAX), None);
    }

    #[test]
    fn numbers_ascend_and_fit_the_counters() {
        assert!(ALL.windows(2).all(|pair| pair[0].number < pair[1].number));
        assert!(ALL.iter().all(|reason| reason.number > 0 && reason.number < layout::DROP_REASONS_MAX));
    }
}
