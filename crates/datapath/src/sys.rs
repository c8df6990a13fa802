//! The system calls on BPF links and programs that libbpf-rs does not offer.

use std::ffi::CString;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use libbpf_rs::libbpf_sys;

/// Converts a result of libbpf, which is negative for an error number.
fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}

fn path_cstring(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Attaches `program` to an interface. The attachment exists as long as the descriptor or a pin.
pub(crate) fn link_create(
    program: BorrowedFd<'_>,
    ifindex: u32,
    attach_type: libbpf_sys::bpf_attach_type,
    flags: u32,
) -> io::Result<OwnedFd> {
    let target = libc::c_int::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the structure consists of integers, for which zero means "not given".
    let mut options: libbpf_sys::bpf_link_create_opts = unsafe { mem::zeroed() };
    options.sz = mem::size_of_val(&options) as libbpf_sys::size_t;
    options.flags = flags;
    // SAFETY: the program's descriptor is open while borrowed; `options` outlives the call and has its size.
    let fd = checked(unsafe {
        libbpf_sys::bpf_link_create(program.as_raw_fd(), target, attach_type, &raw const options)
    })?;
    // SAFETY: the call returned a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Replaces the program of a link atomically.
pub(crate) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both descriptors are open while borrowed; no options are passed.
    checked(unsafe { libbpf_sys::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), ptr::null()) })
        .map(drop)
}

/// Detaches the program even if pins or other descriptors of the link exist.
pub(crate) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is open while borrowed.
    checked(unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) }).map(drop)
}

/// Interface and program of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkInfo {
    /// Index of the interface, or 0 if it was deleted.
    pub ifindex: u32,
    pub program_id: u32,
}

/// Reads the interface and the program of an XDP or tcx link.
pub(crate) fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    // SAFETY: the structure consists of integers and unions of them, for which zero is valid.
    let mut info: libbpf_sys::bpf_link_info = unsafe { mem::zeroed() };
    let mut length = mem::size_of_val(&info) as u32;
    // SAFETY: `info` is writable for `length` bytes, and both outlive the call.
    checked(unsafe {
        libbpf_sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &raw mut info, &raw mut length)
    })?;
    let ifindex = match info.type_ {
        // SAFETY: the kernel filled the member of the union that `type_` names.
        libbpf_sys::BPF_LINK_TYPE_XDP => unsafe { info.__bindgen_anon_1.xdp.ifindex },
        // SAFETY: the kernel filled the member of the union that `type_` names.
        libbpf_sys::BPF_LINK_TYPE_TCX => unsafe { info.__bindgen_anon_1.tcx.ifindex },
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    Ok(LinkInfo { ifindex, program_id: info.prog_id })
}

/// Runs a program once with `data` as its packet, which it may change.
pub(crate) fn test_run(program: BorrowedFd<'_>, data: &mut [u8]) -> io::Result<()> {
    let length = u32::try_from(data.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut options = libbpf_sys::bpf_test_run_opts {
        data_in: data.as_ptr().cast(),
        data_out: data.as_mut_ptr().cast(),
        data_size_in: length,
        data_size_out: length,
        repeat: 1,
        ..Default::default()
    };
    options.sz = mem::size_of_val(&options) as libbpf_sys::size_t;
    // SAFETY: the program's descriptor is open while borrowed. The kernel has copied all of `data` before it writes to it, at most
    // `length` bytes. All outlive the call.
    checked(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) })?;
    if options.data_size_out == length { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Pins a link or a program.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = path_cstring(path)?;
    // SAFETY: the descriptor is open while borrowed and the string is terminated.
    checked(unsafe { libbpf_sys::bpf_obj_pin(object.as_raw_fd(), path.as_ptr()) }).map(drop)
}

/// Opens the link or program that is pinned at `path`.
pub(crate) fn open_pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = path_cstring(path)?;
    // SAFETY: the string is terminated.
    let fd = checked(unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) })?;
    // SAFETY: the call returned a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
