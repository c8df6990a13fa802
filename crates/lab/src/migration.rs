//! Live migration of a VM that is a namespace: what a hypervisor does of it. The namespace with its programs and connections
//! stays; the guest's end of its link is exchanged for that of another link, to the target host, which has waited in a
//! namespace of its own. So the guest has no link for a moment, as a guest that is stopped and runs again elsewhere.
//! Guests of QEMU migrate by QEMU itself (`guest_migration.rs`).

use crate::error::Result;
use crate::exec::{ip_batch, script};
use crate::lab::{Lab, VmState};
use crate::vm::{attach, pause, prepare_port};
use std::time::{Duration, Instant};

/// Name of the guest's end of a link in the namespace where it waits.
const WAITING: &str = "waiting";
/// Beginnings of the names of host's ends, which hosts of a lab accept. A VM that migrates again gets the other one.
const PORT_PREFIXES: [&str; 2] = ["y-", "x-"];

fn waiting_place(vm: &str) -> String {
    format!("{vm}-link")
}

/// A VM as it is after its migration to a host: its port there has another name.
pub(crate) fn migrated(name: &str, vm: &VmState, host: &str) -> VmState {
    let [first, second] = PORT_PREFIXES;
    let prefix = if vm.port.starts_with(first) { second } else { first };
    let port = format!("{prefix}{name}").chars().take(15).collect();
    VmState { host: host.to_owned(), port, ..vm.clone() }
}

impl Lab {
    /// Makes a link of a VM to the target host. The guest's end waits outside of the VM, and is down. Returns the VM as it
    /// is after its migration.
    ///
    /// # Errors
    /// [`crate::Error::Unknown`] if there is no such host, and errors of the commands.
    pub async fn prepare_migration(&self, name: &str, vm: &VmState, host: &str) -> Result<VmState> {
        self.node(host)?;
        let moved = migrated(name, vm, host);
        let (waiting, at) = (self.paths.namespace(&waiting_place(name)), self.paths.namespace(host));
        let VmState { mac, port, .. } = &moved;
        let lines = format!(
            "netns add {waiting}\nlink add {WAITING} address {mac} netns {waiting} type veth peer name {port} netns {at}\n"
        );
        ip_batch(&self.paths, "preparing the link of a VM", &lines).await?;
        prepare_port(self, name, &moved).await?;
        Ok(moved)
    }

    /// Attaches the port of a VM; repeated while the agent does not know the instance yet.
    ///
    /// # Errors
    /// Errors of the command.
    pub async fn attach_port(&self, vm: &VmState) -> Result<()> {
        attach(self, vm).await
    }

    /// Says to the agent of a VM's host that the VM is stopped, because it migrates. A frame of the VM says the contrary.
    ///
    /// # Errors
    /// Errors of the command.
    pub async fn pause_port(&self, vm: &VmState) -> Result<()> {
        pause(self, vm).await
    }

    /// Exchanges the links of a VM, with the same addresses, routes and neighbors. Returns for how long the guest had none.
    ///
    /// # Errors
    /// Errors of the commands.
    pub async fn switch_guest(&self, name: &str, vm: &VmState) -> Result<Duration> {
        let begun = Instant::now();
        let (guest, waiting) = (self.paths.namespace(name), self.paths.namespace(&waiting_place(name)));
        let own = &vm.interface;
        let text = format!("own={own} guest={guest} waiting={waiting} new={WAITING}\n{SWITCH_SCRIPT}");
        script(&self.paths, name, "exchanging the links of a VM", &text).await?;
        Ok(begun.elapsed())
    }

    /// Removes the link that the VM does not use: the old one after a migration, the new one after its cancelation.
    ///
    /// # Errors
    /// Errors of `ip`.
    pub async fn end_migration(&self, name: &str) -> Result<()> {
        let lines = format!("netns del {}\n", self.paths.namespace(&waiting_place(name)));
        ip_batch(&self.paths, "removing a link of a VM", &lines).await
    }
}

/// What a guest keeps when it runs elsewhere is read before its link goes. Its neighbors are among it: a guest that must resolve
/// its router again waits for a second if the first request is lost.
const SWITCH_SCRIPT: &str = "\
    mtu=$(ip -o link show dev $own | sed 's/.* mtu \\([0-9]*\\).*/\\1/')\n\
    router4=$(ip -4 -o route show default | sed -n 's/.* via \\([^ ]*\\).*/\\1/p')\n\
    addresses=$(ip -o addr show dev $own scope global | awk '{ print $4 }')\n\
    neighbors=$(ip neigh show dev $own | awk '$2 == \"lladdr\" { print $1 \",\" $3 }')\n\
    {\n\
    echo \"link set $new name $own\"\n\
    echo \"link set $own mtu $mtu up\"\n\
    for address in $addresses; do\n\
    case $address in *:*) echo \"addr add $address dev $own nodad\";; *) echo \"addr add $address dev $own\";; esac\n\
    done\n\
    for neighbor in $neighbors; do\n\
    echo \"neigh replace ${neighbor%,*} lladdr ${neighbor#*,} dev $own nud reachable\"\n\
    done\n\
    [ -z \"$router4\" ] || echo \"route replace default via $router4 dev $own\"\n\
    } >/tmp/$guest.batch\n\
    printf '%s\\n' \"link set $own down\" \"link set $own name old\" \"link set old netns $waiting\" | ip -batch -\n\
    ip -n $waiting link set $new netns $guest\n\
    ip -batch /tmp/$guest.batch\n\
    ip -6 route replace default via fe80::1 dev $own\n\
    rm /tmp/$guest.batch\n";
