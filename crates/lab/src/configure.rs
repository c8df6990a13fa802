//! How a VM of the lab configures its interface: IPv4 by DHCP, IPv6 by DHCPv6 or by the kernel, as its subnet says.

use crate::error::{Error, IoContext, Result};
use crate::exec::{command, feed, words};
use crate::lab::{Lab, VmState};
use crate::paths::Paths;
use sluice_types::Ipv6Mode;
use std::fs;
use std::time::Duration;

/// Longest wait until a VM has its addresses.
const CONFIGURE_TIMEOUT: Duration = Duration::from_secs(20);

const UP: &str = "ip link set lo up\nip link set eth0 up\n";

const DHCP: &str = "busybox udhcpc -i eth0 -n -q -f -t 15 -T 1 -O mtu -s /bin/sh >&2\n";

/// The client needs a link-local address that is no duplicate. It begins without a lease, and keeps the new one where its
/// AppArmor profile permits that, which is the lab's directory for this process and its children. It calls no script, and
/// is ended when it has an address: leases last longer than a lab.
const DHCP6: &str = "\
    until ip -6 -o addr show dev eth0 scope link -tentative | grep -q inet6; do sleep 0.1; done\n\
    rm -f \"$LEASE6\"\n\
    unshare --mount sh -e <<'END'\n\
    mount --bind \"${LEASE6%/*}\" /var/lib/dhcp\n\
    mount --bind /bin/true /sbin/dhclient-script\n\
    own=/var/lib/dhcp/${LEASE6##*/}\n\
    dhclient -6 -1 -d --no-pid -cf /dev/null -lf \"$own\" eth0 </dev/null >&2 &\n\
    until grep -q max-life \"$own\" 2>/dev/null; do kill -0 $!; sleep 0.1; done\n\
    kill $!\n\
    END\n\
    address=$(sed -n 's/.*iaaddr \\([0-9a-f:]*\\) {/\\1/p' \"$LEASE6\" | tail -n 1)\n\
    ip addr replace \"$address/128\" dev eth0\n";

const WAIT_FOR_IPV6: &str = "\
    until ip -6 -o addr show dev eth0 scope global -tentative | grep -q inet6 &&\n\
    ip -6 -o route show default | grep -q via; do sleep 0.2; done\n";

impl Lab {
    /// Brings the interface of a VM up, and waits until the VM has its addresses. It can be repeated.
    ///
    /// # Errors
    /// Errors of the commands; [`Error::Timeout`].
    pub async fn configure_vm(&self, name: &str, vm: &VmState) -> Result<()> {
        let mut text = UP.to_owned();
        if vm.ipv4.is_some() {
            text.push_str(DHCP);
        }
        if vm.ipv6_mode == Some(Ipv6Mode::Dhcp) {
            text.push_str(DHCP6);
        }
        if vm.ipv6.is_some() {
            text.push_str(WAIT_FOR_IPV6);
        }
        let mut shell = command(&self.paths, Some(name), &words(&["sh", "-e"]));
        shell.current_dir(self.paths.root().join("dhcp"));
        shell.env("LEASE", self.paths.lease(name)).env("LEASE6", self.paths.lease6(name));
        let what = format!("configuring VM {name}");
        let run = feed(&what, shell, &text);
        match tokio::time::timeout(CONFIGURE_TIMEOUT, run).await {
            Ok(outcome) => outcome.map(drop),
            Err(_) => Err(Error::Timeout {
                what: format!("configuration of VM {name} by DHCP and router advertisement"),
                seconds: CONFIGURE_TIMEOUT.as_secs(),
                hint: String::new(),
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
        [ -z \"$router\" ] || ip route replace default via \"${router%% *}\" dev \"$interface\"\n\
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
