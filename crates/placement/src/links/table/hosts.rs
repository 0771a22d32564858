//! The hosts of a table: named once, and forgotten when they have had no process for long.

use std::collections::HashSet;

use super::super::load::Load;
use super::LinkTable;

/// A host, in a table; another one may have it when it is forgotten
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct HostId(pub(super) u32);

#[derive(Debug)]
pub(super) struct Host {
    pub(super) name: String,
    /// Speed of its NIC, in bytes per second
    pub(super) nic_bytes_per_s: Option<f64>,
    /// Load from other hosts, and to them
    pub(super) incoming: Load,
    pub(super) outgoing: Load,
}

impl LinkTable {
    /// The host of a name, which is made if there is none
    pub(super) fn host(&mut self, name: &str) -> HostId {
        if let Some(&id) = self.host_ids.get(name) {
            return id;
        }
        if self.host_ids.len() >= self.hosts_max {
            self.drop_idle_hosts();
            // All may be in use: it is not looked for again with each.
            self.hosts_max = HOSTS_MAX.max(2 * self.host_ids.len());
        }
        let host = Host {
            name: name.to_owned(),
            nic_bytes_per_s: None,
            incoming: Load::default(),
            outgoing: Load::default(),
        };
        let id = if let Some(id) = self.free_hosts.pop() {
            self.hosts[id.0 as usize] = host;
            id
        } else {
            self.hosts.push(host);
            HostId(self.hosts.len() as u32 - 1)
        };
        self.host_ids.insert(name.to_owned(), id);
        id
    }

    /// Makes room for what is known of two hosts, returning whether there is any
    ///
    /// If there is not, links of their kind answer for them.
    pub(super) fn make_room_for(&mut self, hosts: (HostId, HostId)) -> bool {
        if self.host_pairs.len() < self.links_max || self.host_pairs.contains_key(&hosts) {
            return true;
        }
        self.drop_idle_hosts();
        self.host_pairs.len() < self.links_max
    }

    /// Forgets the hosts that no process is on
    fn drop_idle_hosts(&mut self) {
        let processes = self.process_ids.values();
        let used: HashSet<_> = processes.map(|&process| self.host_of(process)).collect();
        let free = &mut self.free_hosts;
        self.host_ids.retain(|_, id| {
            let is_used = used.contains(id);
            if !is_used {
                free.push(*id);
            }
            is_used
        });
        self.host_pairs
            .retain(|(one, other), _| used.contains(one) && used.contains(other));
    }
}

/// Hosts up to which none is forgotten
pub(super) const HOSTS_MAX: usize = 4096;
