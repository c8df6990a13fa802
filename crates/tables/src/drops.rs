//! Names and descriptions of the drop reasons, read from `bpf/include/layout/drops.h` at build time.

/// A drop reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Stable number: the index into the `drops` counters.
    pub number: u32,
    /// Short name, used as a metric label.
    pub name: &'static str,
    /// Description for operators.
    pub text: &'static str,
}

/// All reasons, in the order of their numbers.
pub const ALL: &[Reason] = include!(concat!(env!("OUT_DIR"), "/drops.rs"));

fn find(reason: u32) -> Option<&'static Reason> {
    ALL.iter().find(|known| known.number == reason)
}

/// Short name of a reason.
pub fn name(reason: u32) -> Option<&'static str> {
    find(reason).map(|known| known.name)
}

/// Description of a reason.
pub fn text(reason: u32) -> Option<&'static str> {
    find(reason).map(|known| known.text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout;

    #[test]
    fn names_and_descriptions_are_those_of_the_header() {
        assert_eq!(name(layout::drop_reason_DROP_unknown_vni), Some("unknown_vni"));
        assert_eq!(text(layout::drop_reason_DROP_hairpin), Some("destination is the sending port itself"));
        assert_eq!(name(0), None);
        assert_eq!(name(layout::DROP_REASONS_MAX), None);
    }

    #[test]
    fn numbers_ascend_and_are_within_the_counters() {
        assert!(ALL.windows(2).all(|pair| pair[0].number < pair[1].number));
        assert!(ALL.iter().all(|reason| reason.number > 0 && reason.number < layout::DROP_REASONS_MAX));
    }
}
