//! Names and addresses of the places of the Internet (`internet.rs`), which topologies must leave free.

/// The switch between the gateways and the Internet.
pub const EXCHANGE: &str = "ix";
/// The gateways' default router.
pub const ISP: &str = "isp";
/// A router behind a link with a small MTU.
pub const FAR: &str = "far";
/// A web server behind [`FAR`].
pub const WEB: &str = "internet-web";
/// Name of the process at [`WEB`] that answers questions for names.
pub(crate) const NAMES: &str = "internet-names";
/// A computer at [`ISP`].
pub const CLIENT: &str = "internet-client";
/// The places of the Internet.
pub(crate) const PLACES: [&str; 5] = [EXCHANGE, ISP, FAR, WEB, CLIENT];

/// All networks of the Internet but the public pool.
pub(crate) const NETWORKS: [&str; 2] = ["198.51.100.0/24", "2001:db8:100::/48"];
/// The last number of the first gateway's address at the exchange.
pub(crate) const FIRST_GATEWAY: usize = 11;
/// Most gateways that the exchange has addresses for.
pub(crate) const GATEWAYS_MAX: usize = 50;
