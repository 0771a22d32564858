//! A peer that speaks the wire by hand, to say what no honest peer would.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use backhaul_proto::{
    FrameHeader, HEADER_BYTES, Handshake, HandshakeEvent, Hello, LaneKind, Limits, Role,
};

/// A socket that does as it is told
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
        let mut peer = Self::connect(address);
        let mut handshake = Handshake::new(
            Role::Connector,
            hello(&[LaneKind::Tcp]),
            Instant::now(),
            Duration::from_secs(60),
        );
        loop {
            while let Some(bytes) = handshake.poll_transmit() {
                peer.socket.write_all(&bytes).unwrap();
            }
            match handshake.poll_event() {
                Some(HandshakeEvent::PeerHello(hello)) => {
                    peer.peer = Some(hello);
                    handshake.select(LaneKind::Tcp, "by hand");
                }
                Some(HandshakeEvent::Done { lane, .. }) => {
                    assert_eq!(lane, LaneKind::Tcp);
                    return peer;
                }
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

/// A Hello of a process on a host that nobody shares
pub fn hello(lanes: &[LaneKind]) -> Hello {
    let limits = Limits::default();
    Hello {
        boot_id: [1; 16],
        host_token: vec![2; 8],
        process_token: [3; 16],
        nonce: [4; 16],
        pid: 1,
        uid: 1,
        lanes: lanes.to_vec(),
        unix_name: String::new(),
        credit_bytes: limits.credit_bytes,
        credit_messages: limits.credit_messages,
        message_bytes_max: limits.message_bytes_max,
        segments_max: limits.segments_max,
    }
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}
