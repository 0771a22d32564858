//! A simulated network: messages of some hosts that come to one, and share what they share.

use std::time::{Duration, Instant};

use backhaul_placement::links::{Begun, Estimator, Memory, NicClock};

/// Sender of a message: a host, and a process there
#[derive(Clone, Copy)]
pub(crate) struct Sender {
    pub(crate) host: u32,
    pub(crate) process: usize,
}

/// A receiver behind one NIC, and hosts that send to it at the same time
///
/// Rates are max-min fair, which is what long TCP connections tend to.
pub(crate) struct Network {
    /// Limit of the receiver's NIC, in bytes per second
    pub(crate) nic: f64,
    /// Limit of each sending host, in bytes per second
    pub(crate) hosts: Vec<f64>,
    clock: NicClock<u32>,
    now: Instant,
    estimators: Vec<Estimator>,
    seed: u64,
}

struct OnTheWay {
    sender: Sender,
    begun: Begun<u32>,
    bytes: u64,
    left: f64,
    /// Speed for which its sender has a processor, as a part of an equal part of the NIC
    starved: f64,
}

impl Network {
    pub(crate) fn new(nic: f64, hosts: &[f64], processes: usize, seed: u64) -> Self {
        let now = Instant::now();
        Self {
            nic,
            hosts: hosts.to_vec(),
            clock: NicClock::new(now),
            now,
            estimators: vec![Estimator::default(); processes],
            seed,
        }
    }

    /// Each sender sends so many messages, one after another; all at the same time, and none stops
    /// before all have
    ///
    /// In one of `starved_every` messages a sender has no processor for what it could have; 0 for
    /// none.
    pub(crate) fn send(
        &mut self,
        senders: &[Sender],
        messages: usize,
        bytes: u64,
        starved_every: usize,
    ) {
        let mut sent = vec![0; senders.len()];
        let mut going: Vec<(usize, OnTheWay)> = Vec::new();
        loop {
            for (number, sender) in senders.iter().enumerate() {
                let is_on = sent.iter().any(|sent| *sent < messages);
                if is_on && going.iter().all(|(other, _)| *other != number) {
                    sent[number] += 1;
                    let is_starved =
                        starved_every > 0 && sent[number] % starved_every == starved_every - 1;
                    let starved = if is_starved {
                        0.1 + 0.5 * self.part()
                    } else {
                        f64::INFINITY
                    };
                    // Sizes differ a little.
                    let bytes = bytes + self.random() % (bytes / 4);
                    // They do not begin at the same moment.
                    let micros = 1 + self.random() % 20;
                    self.now += Duration::from_micros(micros);
                    going.push((
                        number,
                        OnTheWay {
                            sender: *sender,
                            begun: self.clock.begin(self.now, sender.host),
                            bytes,
                            left: bytes as f64,
                            starved,
                        },
                    ));
                }
            }
            if going.is_empty() {
                return;
            }
            let rates = self.rates(&going);
            let step = going
                .iter()
                .zip(&rates)
                .map(|((_, message), rate)| message.left / rate)
                .fold(f64::INFINITY, f64::min);
            self.now += Duration::from_secs_f64(step);
            for ((_, message), rate) in going.iter_mut().zip(&rates) {
                let moved = (rate * step).min(message.left);
                message.left -= moved;
                self.clock.moved(&message.begun, moved as u64);
            }
            for (number, message) in std::mem::take(&mut going) {
                if message.left > 0.5 {
                    going.push((number, message));
                    continue;
                }
                let alone = self.clock.end(self.now, &message.begun, message.bytes);
                self.estimators[message.sender.process]
                    .handle_message(Memory::Host, message.bytes, 0, alone.seconds())
                    .expect("a message that may be");
            }
        }
    }

    /// Bandwidth of a process, of its last class of sizes
    pub(crate) fn estimate(&self, process: usize) -> f64 {
        let said = self.estimators[process].estimates().last();
        said.expect("it has sent").estimate.bytes_per_s
    }

    /// Max-min fair rates, by filling: all grow alike until something is full
    fn rates(&self, going: &[(usize, OnTheWay)]) -> Vec<f64> {
        let equal_part = self.nic / going.len() as f64;
        let mut rates = vec![0.0; going.len()];
        let mut is_open: Vec<bool> = vec![true; going.len()];
        while is_open.contains(&true) {
            let mut step = self.room(going, &rates, None) / count(&is_open);
            for host in 0..self.hosts.len() as u32 {
                let of_host = open_of(going, &is_open, host);
                if of_host > 0.0 {
                    step = step.min(self.room(going, &rates, Some(host)) / of_host);
                }
            }
            for (number, (_, message)) in going.iter().enumerate() {
                if is_open[number] {
                    step = step.min(message.starved * equal_part - rates[number]);
                }
            }
            for (rate, open) in rates.iter_mut().zip(&is_open) {
                *rate += if *open { step } else { 0.0 };
            }
            if self.room(going, &rates, None) < 1.0 {
                break;
            }
            for (number, (_, message)) in going.iter().enumerate() {
                let is_starved = rates[number] > message.starved * equal_part - 1.0;
                if is_starved || self.room(going, &rates, Some(message.sender.host)) < 1.0 {
                    is_open[number] = false;
                }
            }
        }
        rates
    }

    /// Rest of a host's limit, or of the NIC's
    fn room(&self, going: &[(usize, OnTheWay)], rates: &[f64], host: Option<u32>) -> f64 {
        let taken: f64 = going
            .iter()
            .zip(rates)
            .filter(|((_, message), _)| host.is_none_or(|host| message.sender.host == host))
            .map(|(_, rate)| rate)
            .sum();
        host.map_or(self.nic, |host| self.hosts[host as usize]) - taken
    }

    fn part(&mut self) -> f64 {
        (self.random() % 1000) as f64 / 1000.0
    }

    /// An xorshift generator (Marsaglia 2003)
    fn random(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed
    }
}

fn count(is_open: &[bool]) -> f64 {
    is_open.iter().filter(|open| **open).count() as f64
}

fn open_of(going: &[(usize, OnTheWay)], is_open: &[bool], host: u32) -> f64 {
    let of_host = going
        .iter()
        .zip(is_open)
        .filter(|((_, message), open)| **open && message.sender.host == host);
    of_host.count() as f64
}
