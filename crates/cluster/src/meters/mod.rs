//! Shares of meters: how the gateways of a cluster together enforce one rate, by the demand at each of them (distributed rate limiting,
//! Raghavan et al., SIGCOMM 2007). `docs/decisions/meters.md` has the reasons, `api/meter-reports.md` the messages.

mod allocation;
mod codec;
mod report;
mod sharing;

pub use allocation::{GUARANTEED_PARTS, share};
pub use codec::{METER_PORT, ReportCodec, ReportRefused};
pub use report::{DEMAND_MAX, DEMANDS_MAX, Demand, MeterReport, REPORT_VERSION, ReportError};
pub use sharing::{MeterSharing, Sample, TICK_US, Turn};
