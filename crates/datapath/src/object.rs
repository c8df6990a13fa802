//! The eBPF objects that are embedded in this crate, one for each program file in `bpf/`.

/// Bytes with the alignment that ELF readers expect.
#[repr(C, align(16))]
struct Aligned<Bytes: ?Sized>(Bytes);

macro_rules! aligned_bytes {
    ($path:literal) => {{
        static ALIGNED: &Aligned<[u8]> = &Aligned(*include_bytes!($path));
        &ALIGNED.0
    }};
}

include!(concat!(env!("OUT_DIR"), "/objects.rs"));

/// Compiled program file of `bpf/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectName {
    /// `gateway.bpf.c`: the packet programs of gateways.
    Gateway,
    /// `vswitch.bpf.c`: the packet programs of hosts.
    Vswitch,
    /// `guard.bpf.c`: the program of VM interfaces on a host without forwarding tables.
    Guard,
    /// `switch_port.bpf.c`: the packet program of the lab's switches.
    SwitchPort,
    /// `gateway_general.bpf.c`: for tests of the gateway's general path.
    GatewayGeneral,
    /// `tables_test.bpf.c`: for tests of the C code that reads the tables.
    TablesTest,
    /// `meters_flows_test.bpf.c`: for tests of the C code of meters and flow statistics.
    MetersFlowsTest,
    /// `sessions_test.bpf.c`: for tests of the C code of the session tables.
    SessionsTest,
    /// `nat_test.bpf.c`: for tests of the C code of source NAT.
    NatTest,
}

impl ObjectName {
    /// Returns the name of the file without its extensions.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Vswitch => "vswitch",
            Self::Guard => "guard",
            Self::SwitchPort => "switch_port",
            Self::GatewayGeneral => "gateway_general",
            Self::TablesTest => "tables_test",
            Self::MetersFlowsTest => "meters_flows_test",
            Self::SessionsTest => "sessions_test",
            Self::NatTest => "nat_test",
        }
    }

    /// Returns the ELF object, or `None` if `bpf/` had no such file at build time.
    #[must_use]
    pub fn bytes(self) -> Option<&'static [u8]> {
        OBJECTS.iter().find(|(name, _)| *name == self.as_str()).map(|(_, bytes)| *bytes)
    }
}
