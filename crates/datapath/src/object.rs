//! The eBPF objects that are embedded in this crate.

/// Bytes with the alignment that an ELF reader may expect.
#[repr(C, align(16))]
struct Aligned<Bytes: ?Sized>(Bytes);

macro_rules! aligned_bytes {
    ($path:literal) => {{
        static ALIGNED: &Aligned<[u8]> = &Aligned(*include_bytes!($path));
        &ALIGNED.0
    }};
}

include!(concat!(env!("OUT_DIR"), "/objects.rs"));

/// One file of `bpf/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectName {
    /// `gateway.bpf.c`
    Gateway,
    /// `vswitch.bpf.c`
    Vswitch,
    /// `switch_port.bpf.c`: for the lab's switches
    SwitchPort,
    /// `tables_test.bpf.c`: the C readers of the tables, for tests
    TablesTest,
    /// `meters_flows_test.bpf.c`: meters and flow statistics, for tests
    MetersFlowsTest,
    /// `sessions_test.bpf.c`: the session tables' C, for tests
    SessionsTest,
}

impl ObjectName {
    /// The file's name without extensions.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Vswitch => "vswitch",
            Self::SwitchPort => "switch_port",
            Self::TablesTest => "tables_test",
            Self::MetersFlowsTest => "meters_flows_test",
            Self::SessionsTest => "sessions_test",
        }
    }

    /// The ELF object; `None` if `bpf/` had no such file when this was built.
    #[must_use]
    pub fn bytes(self) -> Option<&'static [u8]> {
        OBJECTS.iter().find(|(name, _)| *name == self.as_str()).map(|(_, bytes)| *bytes)
    }
}
