//! What the scheduler knows of links, for Python.

use backhaul_placement::links::{
    LinkEstimate, LinkTable, Memory, Prior, Priors, Report, TableError, Traffic, WorkerId,
};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;

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
#[pyclass(module = "backhaul._native")]
pub(crate) struct Links {
    pub(crate) table: LinkTable,
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
            table: LinkTable::new(priors, links_max),
        })
    }

    #[doc = stub_doc!("Links.add_worker")]
    #[pyo3(signature = (address, process, host, nic_bytes_per_s = None))]
    fn add_worker(
        &mut self,
        address: &str,
        process: &str,
        host: &str,
        nic_bytes_per_s: Option<f64>,
    ) {
        self.table.add_worker(address, process, host);
        if let Some(bytes_per_s) = nic_bytes_per_s {
            self.table.set_nic(host, bytes_per_s);
        }
    }

    #[doc = stub_doc!("Links.remove_worker")]
    fn remove_worker(&mut self, address: &str) {
        self.table.remove_worker(address);
    }

    #[doc = stub_doc!("Links.open_report")]
    fn open_report(&mut self, process: &str, now_s: f64) {
        self.table.open_report(process, now_s);
    }

    #[doc = stub_doc!("Links.report")]
    #[expect(clippy::too_many_arguments, reason = "what a report says of one link")]
    fn report(
        &mut self,
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
        match self.table.handle_report(report) {
            // What finds no room is answered for by its hosts.
            Ok(()) | Err(TableError::Full { .. }) => Ok(()),
            Err(error) => Err(PyKeyError::new_err(error.to_string())),
        }
    }

    #[doc = stub_doc!("Links.seconds")]
    #[pyo3(signature = (sender, receiver, nbytes, *, on_device = false))]
    fn seconds(&self, sender: &str, receiver: &str, nbytes: u64, on_device: bool) -> PyResult<f64> {
        let (sender, receiver) = (self.worker(sender)?, self.worker(receiver)?);
        Ok(self
            .table
            .seconds(sender, receiver, nbytes, memory(on_device)))
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
        let (sender, receiver) = (self.worker(sender)?, self.worker(receiver)?);
        let answer = self
            .table
            .answer(sender, receiver, nbytes, memory(on_device));
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
        self.table.links().map(row).collect()
    }

    #[doc = stub_doc!("Links.workers")]
    fn workers(&self) -> Vec<String> {
        self.table.addresses().map(str::to_owned).collect()
    }

    #[doc = stub_doc!("Links.__len__")]
    fn __len__(&self) -> usize {
        self.table.workers()
    }

    fn __repr__(&self) -> String {
        let (workers, pairs) = (self.table.workers(), self.table.pairs());
        format!("<backhaul links: {workers} workers, {pairs} measured pairs>")
    }
}

impl Links {
    fn worker(&self, address: &str) -> PyResult<WorkerId> {
        let unknown = || PyKeyError::new_err(format!("no worker {address:?} has reported"));
        self.table.worker(address).ok_or_else(unknown)
    }
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
