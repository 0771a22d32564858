//! The scheduler's table of links, for Python.

use backhaul_placement::links::{
    LinkEstimate, LinkTable, Memory, Prior, Priors, Report, TableError, Traffic, WorkerId,
};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;

use super::shared::Shared;

/// Bytes a second and seconds
type Figures = (f64, f64);

/// Seconds, bytes a second, latency in seconds, messages, and where they come from
type Answer = (f64, f64, f64, u32, &'static str);

/// Tokens and hosts of sender and receiver, lane, memory, least size of the class in bytes, bytes a
/// second, latency in seconds, messages
type Row = (
    (String, String),
    (String, String),
    String,
    &'static str,
    u64,
    (f64, f64, u32),
);

#[doc = stub_doc!("Links")]
#[pyclass(frozen, module = "backhaul._native")]
pub(crate) struct Links {
    table: Shared<LinkTable>,
}

#[pymethods]
impl Links {
    #[new]
    #[pyo3(signature = (*, same_host, other_host, device, links_max))]
    fn new(
        same_host: Figures,
        other_host: Figures,
        device: Figures,
        links_max: usize,
    ) -> PyResult<Self> {
        let priors = Priors {
            same_host: prior("same_host", same_host)?,
            other_host: prior("other_host", other_host)?,
            device: prior("device", device)?,
        };
        Ok(Self {
            table: Shared::new(LinkTable::new(priors, links_max)),
        })
    }

    #[doc = stub_doc!("Links.add_worker")]
    #[pyo3(signature = (address, process, host, nic_bytes_per_s = None))]
    fn add_worker(&self, address: &str, process: &str, host: &str, nic_bytes_per_s: Option<f64>) {
        let mut table = self.table.lock();
        table.add_worker(address, process, host);
        if let Some(bytes_per_s) = nic_bytes_per_s {
            table.set_nic(host, bytes_per_s);
        }
    }

    #[doc = stub_doc!("Links.remove_worker")]
    fn remove_worker(&self, address: &str) {
        self.table.lock().remove_worker(address);
    }

    #[doc = stub_doc!("Links.open_report")]
    fn open_report(&self, process: &str, now_s: f64) {
        self.table.lock().open_report(process, now_s);
    }

    #[doc = stub_doc!("Links.report")]
    #[expect(clippy::too_many_arguments, reason = "what a report says of one link")]
    fn report(
        &self,
        process: &str,
        sender: &str,
        sender_host: &str,
        lane: &str,
        moved_bytes: u64,
        busy_s: f64,
        estimates: &[u8],
    ) -> PyResult<()> {
        let said = LinkEstimate::read_all(estimates)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let report = Report {
            receiver: process,
            sender,
            sender_host,
            lane,
            traffic: Traffic {
                moved_bytes,
                busy_s,
            },
            said: &said,
        };
        match self.table.lock().handle_report(report) {
            // For a pair that finds no room, its hosts answer.
            Ok(()) | Err(TableError::Full { .. }) => Ok(()),
            Err(error) => Err(PyKeyError::new_err(error.to_string())),
        }
    }

    #[doc = stub_doc!("Links.seconds")]
    #[pyo3(signature = (sender, receiver, nbytes, *, on_device = false))]
    fn seconds(&self, sender: &str, receiver: &str, nbytes: u64, on_device: bool) -> PyResult<f64> {
        let table = self.table.lock();
        let (sender, receiver) = (worker(&table, sender)?, worker(&table, receiver)?);
        Ok(table.seconds(sender, receiver, nbytes, memory(on_device)))
    }

    #[doc = stub_doc!("Links.answer")]
    #[pyo3(signature = (sender, receiver, nbytes, *, on_device = false))]
    fn answer(
        &self,
        sender: &str,
        receiver: &str,
        nbytes: u64,
        on_device: bool,
    ) -> PyResult<Answer> {
        let table = self.table.lock();
        let (sender, receiver) = (worker(&table, sender)?, worker(&table, receiver)?);
        let answer = table.answer(sender, receiver, nbytes, memory(on_device));
        Ok((
            answer.seconds,
            answer.bytes_per_s,
            answer.latency_s,
            answer.samples,
            answer.origin.name(),
        ))
    }

    #[doc = stub_doc!("Links.rows")]
    fn rows(&self) -> Vec<Row> {
        let row = |link: backhaul_placement::links::Link| {
            let estimate = link.said.estimate;
            (
                (link.sender, link.receiver),
                link.hosts,
                link.lane,
                link.said.memory.name(),
                link.said.class.bytes_min(),
                (estimate.bytes_per_s, estimate.latency_s, estimate.samples),
            )
        };
        self.table.lock().links().map(row).collect()
    }

    #[doc = stub_doc!("Links.workers")]
    fn workers(&self) -> Vec<String> {
        self.table.lock().addresses().map(str::to_owned).collect()
    }

    #[doc = stub_doc!("Links.__len__")]
    fn __len__(&self) -> usize {
        self.table.lock().workers()
    }

    fn __repr__(&self) -> String {
        let table = self.table.lock();
        let (workers, pairs) = (table.workers(), table.pairs());
        format!("<backhaul links: {workers} workers, {pairs} measured pairs>")
    }
}

fn worker(table: &LinkTable, address: &str) -> PyResult<WorkerId> {
    let unknown = || PyKeyError::new_err(format!("no worker {address:?} has reported"));
    table.worker(address).ok_or_else(unknown)
}

fn memory(on_device: bool) -> Memory {
    if on_device {
        Memory::Device
    } else {
        Memory::Host
    }
}

fn prior(name: &str, (bytes_per_s, latency_s): Figures) -> PyResult<Prior> {
    let is_figure = |number: f64| number.is_finite() && number >= 0.0;
    if !is_figure(bytes_per_s) || bytes_per_s == 0.0 || !is_figure(latency_s) {
        return Err(PyValueError::new_err(format!(
            "{name} must be a bandwidth in bytes per second and a latency in seconds, got \
             ({bytes_per_s}, {latency_s})"
        )));
    }
    Ok(Prior {
        bytes_per_s,
        latency_s,
    })
}
