//! Which workers a task may run on, by hosts, addresses and resources.

use super::core::{SchedulerCore, shown};
use super::error::EventError;
use super::ids::{NameId, TaskId, WorkerId};
use crate::ordered_set::OrderedSet;

impl SchedulerCore {
    /// The running workers that a task may run on; `None` if it may run on any
    ///
    /// In this order: workers that are named as they are named, then those of the hosts as they
    /// came; with resources alone, as those who have the first of them came.
    pub(super) fn valid_workers(&mut self, task: TaskId) -> Option<OrderedSet<WorkerId>> {
        let requirements = self.tasks[task].requirements.as_deref()?;
        let mut valid: Option<OrderedSet<WorkerId>> = None;
        if let Some(addresses) = requirements.workers.as_deref()
            && !addresses.is_empty()
        {
            let known = addresses
                .iter()
                .filter_map(|address| self.workers.by_address(address));
            valid = Some(known.collect());
        }
        if let Some(hosts) = requirements.hosts.as_deref()
            && !hosts.is_empty()
        {
            let valid = valid.get_or_insert_default();
            for host in hosts {
                let host = self.host_of(host);
                let Some(workers) = host.and_then(|host| self.hosts.get(&host)) else {
                    continue;
                };
                for worker in workers.iter() {
                    valid.insert(worker);
                }
            }
        }
        if let Some(resources) = requirements.resources.clone()
            && !resources.is_empty()
        {
            let mut able: Option<OrderedSet<WorkerId>> = None;
            for (resource, amount) in &resources {
                let resource = self.names.intern(resource);
                let suppliers = self.resources.entry(resource).or_default();
                let with_it = suppliers.iter().filter(|(_, has)| has >= amount);
                let with_it: OrderedSet<_> = with_it.map(|&(worker, _)| worker).collect();
                able = Some(match able {
                    None => with_it,
                    Some(able) => able.iter().filter(|&one| with_it.contains(one)).collect(),
                });
            }
            let able = able.unwrap_or_default();
            valid = Some(match valid {
                None => able,
                Some(valid) => valid.iter().filter(|&one| able.contains(one)).collect(),
            });
        }
        let valid = valid?;
        if self.running.len() < self.workers.sorted().len() {
            let running = valid.iter().filter(|&one| self.running.contains(one));
            return Some(running.collect());
        }
        Some(valid)
    }

    /// The host that a restriction names, or the host of the worker of that name
    pub(super) fn host_of(&self, name: &str) -> Option<NameId> {
        match self.workers.by_name.get(name) {
            Some(&worker) => Some(self.workers[worker].host),
            None => self.names.find(name),
        }
    }

    /// Notes that a worker uses (1.0) or no longer uses (-1.0) what a task needs
    ///
    /// # Errors
    ///
    /// [`EventError::NoSuchResource`], where upstream has a `KeyError`: a task with loose
    /// restrictions may have gone to a worker without the resource.
    pub(super) fn use_resources(
        &mut self,
        task: TaskId,
        worker: WorkerId,
        sign: f64,
    ) -> Result<(), EventError> {
        for (resource, amount) in self.tasks[task].resources() {
            let name = self.names.find(resource);
            let used = self.workers[worker].used_resources.iter_mut();
            match used.into_iter().find(|(one, _)| Some(*one) == name) {
                Some((_, used)) => *used += sign * amount,
                None => {
                    return Err(EventError::NoSuchResource {
                        key: shown(&self.tasks[task].key),
                        resource: resource.to_string(),
                        worker: self.workers[worker].address.to_string(),
                    });
                }
            }
        }
        Ok(())
    }
}
