//! Estimates of links as they would be without the processes beside them, on either host.

use super::super::class::Memory;
use super::super::estimate::LinkEstimate;
use super::super::load::{BYTES_MIN, Load, Traffic, WINDOW_S_MIN, Window};
use super::super::ring::{Ring, Sample};
use super::{LinkTable, ProcessId};

impl LinkTable {
    /// A process begins to say what it has received, at so many seconds of a clock that does not
    /// jump
    ///
    /// Does nothing for a process in which no worker is.
    pub fn open_report(&mut self, receiver: &str, now_s: f64) {
        let Some(&receiver) = self.process_ids.get(receiver) else {
            return;
        };
        let process = &mut self.processes[receiver.0 as usize];
        let window_s = process
            .window_began_s
            .map_or(0.0, |began_s| now_s - began_s);
        // A clock that jumped begins anew.
        let is_over = !(0.0..WINDOW_S_MIN).contains(&window_s);
        process.window_s = if is_over { window_s.max(0.0) } else { 0.0 };
        if is_over || process.window_began_s.is_none() {
            process.window_began_s = Some(now_s);
            self.close_window(receiver);
        }
    }

    /// Returns the estimate of a pair, had it been alone on the NICs of both hosts
    pub(super) fn without_others(
        &mut self,
        pair: (ProcessId, ProcessId),
        lane: &str,
        traffic: Traffic,
        said: &[LinkEstimate],
    ) -> Vec<LinkEstimate> {
        let mut said = said.to_vec();
        let (sender, receiver) = pair;
        let hosts = (self.host_of(sender), self.host_of(receiver));
        if hosts.0 == hosts.1 {
            return said;
        }
        let process = &self.processes[receiver.0 as usize];
        let entry = self.pairs.entry(pair).or_default();
        let window = if process.window_s > 0.0 {
            let known = entry.traffic.0 == lane;
            let before = if known {
                entry.traffic.1
            } else {
                Traffic::default()
            };
            Window::between(before, traffic, process.window_s)
        } else {
            None
        };
        // Until the window is over there is no estimate.
        if process.window_s > 0.0 || process.window_began_s.is_none() || entry.lanes.is_empty() {
            entry.traffic = (lane.to_owned(), traffic);
        }
        if let Some(window) = window {
            entry.window = Some(window);
            self.processes[receiver.0 as usize].senders.push(sender);
            self.hosts[hosts.0.0 as usize].outgoing.add(window.load);
            self.hosts[hosts.1.0 as usize].incoming.add(window.load);
            let (mut own_incoming, mut own_outgoing) = (Load::default(), Load::default());
            for &other in &self.process_of(receiver).senders {
                let load = self
                    .pairs
                    .get(&(other, receiver))
                    .and_then(|pair| pair.window);
                let load = load.map_or_else(Load::default, |window| window.load);
                own_incoming.add(load);
                if self.host_of(other) == hosts.0 {
                    own_outgoing.add(load);
                }
            }
            let [sending, receiving] = [hosts.0, hosts.1].map(|host| &self.hosts[host.0 as usize]);
            let beside_receiver = receiving.incoming.less(own_incoming);
            let beside_sender = sending.outgoing.less(own_outgoing);
            let speeds = [sending.nic_bytes_per_s, receiving.nic_bytes_per_s];
            let limit = speeds.into_iter().flatten().fold(f64::INFINITY, f64::min);
            let alone = window
                .alone(beside_receiver)
                .max(window.alone(beside_sender));
            let entry = self.pairs.entry(pair).or_default();
            if beside_receiver.busy.max(beside_sender.busy) < BUSY_MIN {
                // The pair's own estimate since then is valid, once there are enough messages.
                entry.quiet_windows = entry.quiet_windows.saturating_add(1);
                if entry.quiet_windows >= QUIET_WINDOWS {
                    entry.alone = Ring::default();
                }
            } else {
                entry.quiet_windows = 0;
                entry.alone.push(Sample {
                    bytes_per_s: alone.min(limit),
                    ..Sample::default()
                });
            }
        }
        let alone = self
            .pairs
            .get(&pair)
            .and_then(|pair| pair.alone.bytes_per_s());
        for said in &mut said {
            if let Some(alone) = alone
                && said.memory == Memory::Host
                && said.class.bytes_min() >= BYTES_MIN
            {
                said.estimate.bytes_per_s = said.estimate.bytes_per_s.max(alone);
            }
        }
        said
    }

    /// Forgets what a process received in its last window
    fn close_window(&mut self, receiver: ProcessId) {
        let senders = std::mem::take(&mut self.processes[receiver.0 as usize].senders);
        for sender in senders {
            self.forget_window((sender, receiver));
        }
    }

    /// Forgets what a process received and sent in the last windows
    pub(super) fn forget_windows(&mut self, process: ProcessId) {
        self.close_window(process);
        let of_sender = |pair: &&(ProcessId, ProcessId)| pair.0 == process;
        let sent: Vec<_> = self.pairs.keys().filter(of_sender).copied().collect();
        for pair in sent {
            self.forget_window(pair);
        }
    }

    fn forget_window(&mut self, pair: (ProcessId, ProcessId)) {
        let hosts = (self.host_of(pair.0), self.host_of(pair.1));
        if let Some(entry) = self.pairs.get_mut(&pair)
            && let Some(window) = entry.window.take()
        {
            self.hosts[hosts.0.0 as usize]
                .outgoing
                .take_away(window.load);
            self.hosts[hosts.1.0 as usize]
                .incoming
                .take_away(window.load);
        }
    }
}

/// So many windows without others make what was measured beside them obsolete
const QUIET_WINDOWS: u8 = 3;

/// Processes that are busy together for less of the time than this count as absent
const BUSY_MIN: f64 = 0.25;
