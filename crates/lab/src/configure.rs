//! How a VM of the lab configures its interface: IPv4 by DHCP, IPv6 by DHCPv6 or by the kernel, as its subnet says.

use crate::error::{Error, IoContext, Result};
use crate::exec::{command, feed, succeed, tail, words};
use crate::lab::{Lab, VmState};
use crate::paths::Paths;
use crate::topology;
use sluice_types::Ipv6Mode;
use std::fs;
use std::time::Duration;

/// Longest wait until a VM has its addresses.
const CONFIGURE_TIMEOUT: Duration = Duration::from_secs(20);
/// The same for a guest of QEMU, which boots first, on a processor that may be emulated: 5 to 10 s if the machine has
/// nothing else to do, and more than 90 s were seen beside other emulated machines.
pub(crate) const BOOT_TIMEOUT: Duration = Duration::from_secs(300);

/// An interface besides the first one has the less preferred default routes.
const UP: &str = "\
    echo $((1024 + ${interface#eth})) >/proc/sys/net/ipv6/conf/$interface/ra_defrtr_metric\n\
    ip link set lo up\nip link set $interface up\n";

const DHCP: &str = "busybox udhcpc -i $interface -n -q -f -t 15 -T 1 -O mtu -s /bin/sh >&2\n";

/// The client needs a link-local address that is no duplicate. It begins without a lease, and keeps the new one where its
/// AppArmor profile permits that, which is the lab's directory for this process and its children. It calls no script, and
/// is ended when it has an address: leases last longer than a lab.
const DHCP6: &str = "\
    until ip -6 -o addr show dev $interface scope link -tentative | grep -q inet6; do sleep 0.1; done\n\
    rm -f \"$LEASE6\"\n\
    export interface\n\
    unshare --mount sh -e <<'END'\n\
    mount --bind \"${LEASE6%/*}\" /var/lib/dhcp\n\
    mount --bind /bin/true /sbin/dhclient-script\n\
    own=/var/lib/dhcp/${LEASE6##*/}\n\
    dhclient -6 -1 -d --no-pid -cf /dev/null -lf \"$own\" $interface </dev/null >&2 &\n\
    until grep -q max-life \"$own\" 2>/dev/null; do kill -0 $!; sleep 0.1; done\n\
    kill $!\n\
    END\n\
    address=$(sed -n 's/.*iaaddr \\([0-9a-f:]*\\) {/\\1/p' \"$LEASE6\" | tail -n 1)\n\
    ip addr replace \"$address/128\" dev $interface\n";

const WAIT_FOR_IPV6: &str = "\
    until ip -6 -o addr show dev $interface scope global -tentative | grep -q inet6 &&\n\
    ip -6 -o route show default dev $interface | grep -q via; do sleep 0.2; done\n";

/// A guest of QEMU configures itself (`guest/init.sh`).
const WAIT_FOR_GUEST: &str = "until [ -e /run/$interface.ready ]; do sleep 0.2; done\n";

/// Packets from an address of this interface leave by it, wherever they go.
pub(crate) const ROUTE_BY_SOURCE: &str = include_str!("guest/route-by-source.sh");

impl Lab {
    /// Brings the interface of a VM up, and waits until the VM has its addresses. It can be repeated.
    ///
    /// # Errors
    /// Errors of the commands; [`Error::Timeout`].
    pub async fn configure_vm(&self, name: &str, vm: &VmState) -> Result<()> {
        let guest = self.is_guest(&vm.machine);
        let mut text = format!("interface={}\n", vm.interface);
        text.push_str(if guest { WAIT_FOR_GUEST } else { UP });
        if vm.ipv4.is_some() && !guest {
            text.push_str(DHCP);
        }
        if vm.ipv6_mode == Some(Ipv6Mode::Dhcp) && !guest {
            text.push_str(DHCP6);
        }
        if vm.ipv6.is_some() && !guest {
            text.push_str(WAIT_FOR_IPV6);
        }
        if vm.interface != topology::interface(0) && !guest {
            text.push_str(ROUTE_BY_SOURCE);
        }
        let what = format!("configuring VM {name}");
        let run = async {
            if guest {
                let outcome = self.exec(&vm.machine, &["sh", "-ec", &text]).await?;
                return succeed(&what, outcome);
            }
            let mut shell = command(&self.paths, Some(&vm.machine), &words(&["sh", "-e"]));
            shell.current_dir(self.paths.root().join("dhcp"));
            shell.env("LEASE", self.paths.lease(name)).env("LEASE6", self.paths.lease6(name));
            feed(&what, shell, &text).await
        };
        let within = if guest { BOOT_TIMEOUT } else { CONFIGURE_TIMEOUT };
        match tokio::time::timeout(within, run).await {
            Ok(outcome) => outcome.map(drop),
            Err(_) => Err(Error::Timeout {
                what: format!("configuration of VM {name} by DHCP and router advertisement"),
                seconds: within.as_secs(),
                hint: if guest {
                    format!("; the end of its log:\n{}", tail(&self.paths, &vm.machine))
                } else {
                    String::new()
                },
            }),
        }
    }
}

/// The DHCP client calls `/bin/sh EVENT` in a directory with a file for each event. No
/// file there needs to be executable, since /run is often mounted with `noexec`.
pub(crate) fn write_dhcp_scripts(paths: &Paths) -> Result<()> {
    const BOUND: &str = "set -e\n\
        ip -4 addr flush dev \"$interface\"\n\
        ip link set dev \"$interface\" mtu \"${mtu:-1500}\"\n\
        ip addr add \"$ip/$mask\" dev \"$interface\"\n\
        [ -z \"$router\" ] || ip route replace default via \"${router%% *}\" dev \"$interface\" \
        metric \"${interface#eth}\"\n\
        printf 'ip=%s\\nmask=%s\\nrouter=%s\\nmtu=%s\\nlease=%s\\nserverid=%s\\n' \
        \"$ip\" \"$mask\" \"$router\" \"$mtu\" \"$lease\" \"$serverid\" >\"$LEASE\"\n";
    for (event, text) in
        [("bound", BOUND), ("renew", BOUND), ("deconfig", ""), ("leasefail", ""), ("nak", "")]
    {
        let file = paths.root().join("dhcp").join(event);
        fs::write(&file, text).context("cannot write", file)?;
    }
    Ok(())
}
