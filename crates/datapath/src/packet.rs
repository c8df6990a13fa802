//! Sending whole Ethernet frames, for announcements on the underlay.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::Error;

/// A socket that sends frames and receives none.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// Opens the socket.
    ///
    /// # Errors
    /// Without CAP_NET_RAW.
    pub fn open() -> Result<Self, Error> {
        // SAFETY: socket takes three integers. Protocol 0: no frame is ever queued to it.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(Error::system("open a packet socket")(io::Error::last_os_error()));
        }
        // SAFETY: the call returned a new descriptor that nothing else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends a frame, Ethernet header included, out of an interface.
    ///
    /// # Errors
    /// If the interface is down or gone, or the frame too long for it.
    pub fn send(&self, ifindex: u32, frame: &[u8]) -> Result<(), Error> {
        // SAFETY: the structure is plain integers; zero is valid.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = i32::try_from(ifindex).unwrap_or(0);
        // SAFETY: `frame` and `address` are readable for the lengths given, and outlive the call.
        let sent = unsafe {
            libc::sendto(
                self.0.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const address).cast(),
                mem::size_of_val(&address) as libc::socklen_t,
            )
        };
        if sent < 0 {
            return Err(Error::system("send a frame")(io::Error::last_os_error()));
        }
        Ok(())
    }
}
