//! A peer that speaks the wire by hand, to say what no honest peer would.

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use backhaul_proto::{
    CarrierKind, FrameHeader, HEADER_BYTES, Handshake, HandshakeEvent, Hello, LaneKind, Limits,
    Role,
};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

/// A socket whose bytes the test writes
#[derive(Debug)]
pub struct RawPeer {
    /// The socket
    pub socket: TcpStream,
    /// Nonce of the side that was called, once its Hello is known
    pub peer: Option<Hello>,
}

impl RawPeer {
    /// Connects, and says nothing
    pub fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        Self { socket, peer: None }
    }

    /// Connects and shakes hands properly, on the lane that is the socket
    pub fn shake_hands(address: SocketAddr) -> Self {
        let (peer, lane, _) = Self::shake_hands_over(address, LaneKind::Tcp, |_| {});
        assert_eq!(lane, LaneKind::Tcp);
        peer
    }

    /// Connects and selects a lane, after a call of `prepare` with the peer's Hello
    ///
    /// Returns also the lane that was answered, and why.
    pub fn shake_hands_over(
        address: SocketAddr,
        selected: LaneKind,
        prepare: impl FnOnce(&Hello),
    ) -> (Self, LaneKind, String) {
        let mut prepare = Some(prepare);
        let mut peer = Self::connect(address);
        let mut handshake = Handshake::new(
            Role::Connector,
            hello(&[selected]),
            Instant::now(),
            Duration::from_secs(60),
        );
        loop {
            while let Some(bytes) = handshake.poll_transmit() {
                peer.socket.write_all(&bytes).unwrap();
            }
            match handshake.poll_event() {
                Some(HandshakeEvent::PeerHello(hello)) => {
                    if let Some(prepare) = prepare.take() {
                        prepare(&hello);
                    }
                    peer.peer = Some(*hello);
                    handshake.select(selected, "by hand");
                }
                Some(HandshakeEvent::Done { lane, reason }) => return (peer, lane, reason),
                Some(event) => panic!("unexpected {event:?}"),
                None => {
                    // Byte by byte, so that nothing behind the handshake is taken.
                    let mut byte = [0];
                    peer.socket.read_exact(&mut byte).unwrap();
                    let used = handshake.handle_bytes(Instant::now(), &byte).unwrap();
                    assert_eq!(used, 1);
                }
            }
        }
    }

    /// Reads the Hello of the other side, which answers one that was sent
    pub fn hear_hello(&mut self) -> Hello {
        let mut prefix = [0; HELLO_PREFIX_BYTES];
        self.socket.read_exact(&mut prefix).unwrap();
        // The length counts from the magic on.
        let rest_bytes = u64::from_le_bytes(*prefix.first_chunk().unwrap()) as usize;
        let mut body = vec![0; rest_bytes + 8 - HELLO_PREFIX_BYTES];
        self.socket.read_exact(&mut body).unwrap();
        Hello::decode_body(&body).unwrap()
    }

    /// Reads the selection of the other side: the number of its lane, and why
    pub fn hear_select(&mut self) -> (u8, String) {
        let mut select = [0; 4];
        self.socket.read_exact(&mut select).unwrap();
        assert_eq!(select[0], 0x51);
        let mut reason = vec![0; usize::from(u16::from_le_bytes([select[2], select[3]]))];
        self.socket.read_exact(&mut reason).unwrap();
        (select[1], String::from_utf8(reason).unwrap())
    }

    /// Sends bytes; that the other side has hung up is no error
    pub fn say(&mut self, bytes: &[u8]) {
        if let Err(error) = self.socket.write_all(bytes) {
            assert!(is_hang_up(&error), "{error}");
        }
    }

    /// Sends a frame header
    pub fn say_frame(&mut self, header: FrameHeader) {
        self.say(&header.encode());
    }

    /// Says that nothing follows, and reads on
    pub fn finish(&self) {
        // It may have been closed by the other side.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Reads the next frame header
    pub fn hear_frame(&mut self) -> FrameHeader {
        let mut header = [0; HEADER_BYTES];
        self.socket.read_exact(&mut header).unwrap();
        FrameHeader::decode(&header).unwrap()
    }

    /// Reads until the other side hangs up, returning how much came
    pub fn hear_out(&mut self) -> usize {
        let mut total = 0;
        let mut buffer = [0; 4096];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => return total,
                Ok(bytes) => total += bytes,
                Err(error) => {
                    assert!(is_hang_up(&error), "{error}");
                    return total;
                }
            }
        }
    }
}

/// Hands descriptors to the abstract Unix socket that a Hello names, returning the socket
pub fn hand_over(name: &str, nonce: &[u8], descriptors: &[BorrowedFd<'_>]) -> OwnedFd {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    send_descriptors(&socket, nonce, descriptors);
    socket
}

/// Sends a packet with descriptors
pub fn send_descriptors(socket: &OwnedFd, packet: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    let flags = SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut control, flags).unwrap();
}

/// A Hello of a process on a host that no other process shares
pub fn hello(lanes: &[LaneKind]) -> Hello {
    let limits = Limits::default();
    Hello {
        boot_id: [1; 16],
        host_token: vec![2; 8],
        process_token: [3; 16],
        nonce: [4; 16],
        pid: 1,
        // As the kernel reports it to a peer that shares memory.
        uid: rustix::process::getuid().as_raw(),
        lanes: lanes.to_vec(),
        lanes_unknown: Vec::new(),
        unix_name: String::new(),
        credit_bytes: limits.credit_bytes,
        credit_messages: limits.credit_messages,
        message_bytes_max: limits.message_bytes_max,
        segments_max: limits.segments_max,
        carriers: CarrierKind::ALL.to_vec(),
        carriers_unknown: Vec::new(),
        data_chunk_bytes: limits.data_chunk_bytes,
        ucx_address: Vec::new(),
    }
}

/// Bytes of a Hello in front of its fields: length, magic, version, reserved
pub const HELLO_PREFIX_BYTES: usize = 20;

fn is_hang_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}
