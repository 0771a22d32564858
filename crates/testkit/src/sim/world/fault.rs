//! Faults of the connection, or of the layers under it, in the middle of a run.

use super::{LINGER, World};

/// Fault of the connection in the middle of a run
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fault {
    None,
    /// Reads and writes of a side fail
    LaneError,
    /// The bytes that a side has written end, without a goodbye
    End,
    /// The peer is gone, as the sentinel tells
    PeerGone,
    /// Bytes change on their way
    Garbage,
    /// A ticket is not what it must be
    BrokenTicket,
    /// Nothing arrives any more
    Silence,
    /// No carrier takes what was announced
    Refusal,
    Abort,
    Close,
}

impl World {
    pub(super) fn do_fault(&mut self, fault: Fault) {
        let side = self.random.below(2);
        match fault {
            Fault::None => return,
            Fault::LaneError => {
                let which = self.random.below(3);
                for (index, wire) in self.wires.iter_mut().enumerate() {
                    wire.is_broken |= which == index || which == 2;
                }
            }
            Fault::End => {
                self.wires[side].is_written_off = true;
                self.wires[1 - side].is_read_off = true;
                self.with(side, |node, around| {
                    node.link.handle_lane_error(
                        std::io::Error::from(std::io::ErrorKind::BrokenPipe).into(),
                    );
                    node.settle(around);
                });
            }
            Fault::PeerGone => {
                self.wires[1 - side].lose();
                self.with(side, |node, around| {
                    node.link
                        .handle_peer_ended("connection ended without a goodbye");
                    node.settle(around);
                });
            }
            Fault::Garbage => {
                if !self.wires[side].corrupt(&mut self.random) {
                    return;
                }
            }
            Fault::BrokenTicket => self.nodes[side].exchange.break_next(),
            Fault::Refusal => self.nodes[side].exchange.refuse_devices(),
            Fault::Silence if !self.keeps_alive => return,
            Fault::Silence => self.wires[side].is_silent = true,
            Fault::Abort => {
                self.with(side, |node, around| {
                    node.link.abort();
                    node.settle(around);
                });
            }
            Fault::Close => {
                let linger = *self.random.choose(&[0, 500, LINGER]);
                self.close(side, linger);
            }
        }
        self.is_faulty = true;
        self.fault = Some((side, fault));
    }
}

/// As often as they are chosen
pub(super) const FAULTS: [Fault; 14] = [
    Fault::None,
    Fault::None,
    Fault::None,
    Fault::LaneError,
    Fault::End,
    Fault::PeerGone,
    Fault::Garbage,
    Fault::Garbage,
    Fault::BrokenTicket,
    Fault::Silence,
    Fault::Refusal,
    Fault::Abort,
    Fault::Close,
    Fault::Close,
];
