//! A device in words: what it is called, what it is, all there is to say of it

use crate::distance::{Device, place};
use crate::model::{Disk, Gpu, Machine, Nic, NicKind, RdmaDevice};
use crate::plan::memory_text;

/// Description of a device in the tree and the picture
#[derive(Clone, Debug)]
pub(super) struct DeviceView {
    pub(super) device: Device,
    /// PCI address
    address: Option<String>,
    /// `GPU 0`, `ib0`
    pub(super) name: String,
    /// Its names in a plan: a network card by its interfaces and its RDMA device
    pub(super) names: Vec<String>,
    /// Model, speed or size
    pub(super) what: String,
    /// All there is to say, in short pieces
    pub(super) details: Vec<String>,
    /// True if it is down
    pub(super) off: bool,
}

impl DeviceView {
    pub(super) fn new(machine: &Machine, device: Device) -> Self {
        let mut view = Self {
            address: place(machine, &device).and_then(|place| place.pci_path.last().cloned()),
            name: device.to_string(),
            names: vec![device.to_string()],
            what: String::new(),
            details: Vec::new(),
            off: false,
            device: device.clone(),
        };
        match &device {
            Device::Gpu(index) => {
                let gpu = machine.gpus.iter().find(|gpu| gpu.index == *index);
                gpu.into_iter().for_each(|gpu| view.fill_gpu(gpu));
            }
            Device::Rdma(name) => {
                let rdma = machine.rdma.iter().find(|rdma| rdma.name == *name);
                let nics = machine.nics.iter();
                let nics: Vec<&Nic> = nics.filter(|nic| nic.rdma.as_ref() == Some(name)).collect();
                rdma.into_iter()
                    .for_each(|rdma| view.fill_rdma(rdma, &nics));
            }
            Device::Nic(name) => {
                let nic = machine.nics.iter().find(|nic| nic.name == *name);
                nic.into_iter().for_each(|nic| view.fill_nic(nic));
            }
            Device::Disk(name) => {
                let disk = machine.storage.iter().find(|disk| disk.name == *name);
                disk.into_iter().for_each(|disk| view.fill_disk(disk));
            }
            Device::Cpu(_) | Device::Node(_) => {}
        }
        if view.off {
            view.details.push("down".to_owned());
        }
        view.details.extend(view.address.clone());
        view
    }

    /// The card that it is a function of: its PCI address without the last digit
    pub(super) fn card(&self) -> Option<&str> {
        let (card, _) = self.address.as_ref()?.rsplit_once('.')?;
        Some(card)
    }

    /// Name and details in one line
    pub(super) fn line(&self) -> String {
        let name = [self.name.as_str()].into_iter();
        let parts: Vec<&str> = name
            .chain(self.details.iter().map(String::as_str))
            .collect();
        parts.join(" · ")
    }

    fn fill_gpu(&mut self, gpu: &Gpu) {
        self.name = format!("GPU {}", gpu.index);
        self.what.clone_from(&gpu.name);
        if !gpu.name.is_empty() {
            self.details.push(gpu.name.clone());
        }
        self.details.extend(gpu.memory_bytes.map(memory_text));
        if !gpu.instances.is_empty() {
            let instances = format!("{} instances (MIG)", gpu.instances.len());
            self.details.push(instances);
        }
    }

    /// An RDMA device stands for its interfaces
    fn fill_rdma(&mut self, rdma: &RdmaDevice, nics: &[&Nic]) {
        let speed = rdma
            .bits_per_s
            .or_else(|| nics.iter().find_map(|nic| nic.bits_per_s))
            .map(speed_text);
        let names: Vec<String> = nics.iter().map(|nic| nic.name.clone()).collect();
        let mut what = Vec::new();
        if names.is_empty() {
            self.details.push("RDMA".to_owned());
        } else {
            self.name = names.join(", ");
            self.details.push(format!("RDMA {}", rdma.name));
            what.push(rdma.name.clone());
        }
        what.extend(speed.clone());
        self.what = what.join(" · ");
        self.names.extend(names);
        self.details.extend(speed);
        for nic in nics {
            let addresses = nic.addresses.iter().map(ToString::to_string);
            self.details.extend(addresses);
        }
        self.off = rdma.active == Some(false);
    }

    fn fill_nic(&mut self, nic: &Nic) {
        self.details.extend(match nic.kind {
            NicKind::Ethernet => Some("Ethernet".to_owned()),
            NicKind::Infiniband => Some("InfiniBand".to_owned()),
            _ => None,
        });
        let speed = nic.bits_per_s.map(speed_text);
        self.what = speed.clone().unwrap_or_default();
        self.details.extend(speed);
        let addresses = nic.addresses.iter().map(ToString::to_string);
        self.details.extend(addresses);
        self.off = !nic.up;
    }

    fn fill_disk(&mut self, disk: &Disk) {
        let size = disk.bytes.map(size_text);
        self.what = size.clone().unwrap_or_default();
        self.details.extend(size);
        if disk.rotational == Some(true) {
            self.details.push("rotating".to_owned());
        }
    }
}

/// `100 Gb/s`
fn speed_text(bits_per_s: u64) -> String {
    let gigabits = bits_per_s as f64 / 1e9;
    if gigabits >= 1.0 {
        format!("{gigabits:.0} Gb/s")
    } else {
        format!("{:.0} Mb/s", bits_per_s as f64 / 1e6)
    }
}

/// Size of a disk, in powers of 1000 as they are sold
fn size_text(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for larger in ["kB", "MB", "GB", "TB", "PB"] {
        if value < 1000.0 {
            break;
        }
        value /= 1000.0;
        unit = larger;
    }
    if value < 10.0 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}
