//! Packets with descriptors, on a Unix socket that two carriers of one host share.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// A packet that has come
pub(super) struct Received {
    /// How many bytes of the buffer it fills
    pub(super) bytes: usize,
    /// It was longer than the buffer
    pub(super) is_cut: bool,
    pub(super) descriptors: Vec<OwnedFd>,
    /// This process could hold no more of them
    pub(super) is_descriptor_lost: bool,
}

/// Sends a packet; an error means that the peer has nothing of it
pub(super) fn send(
    socket: &OwnedFd,
    packet: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    rustix::net::sendmsg(
        socket,
        &[IoSlice::new(packet)],
        &mut control,
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    )?;
    Ok(())
}

/// Receives the next packet
pub(super) fn receive(socket: &OwnedFd, packet: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut was_reset = false;
    let received = loop {
        let outcome = rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(packet)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
        );
        match outcome {
            Err(Errno::INTR) => {}
            // Reported once, if the peer died with unread packets from here; its packets can still
            // be received.
            Err(Errno::CONNRESET) if !was_reset => was_reset = true,
            outcome => break outcome?,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok(Received {
        bytes: received.bytes,
        is_cut: received.flags.contains(ReturnFlags::TRUNC),
        descriptors,
        is_descriptor_lost: received.flags.contains(ReturnFlags::CTRUNC),
    })
}

/// Two ends of such a socket
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?)
}

/// Most descriptors that come with a packet
pub(super) const DESCRIPTORS_MAX: usize = 8;
