//! The records of `backhaul.topology`, each with the same fields as a struct of `backhaul_topology`.
//!
//! A struct that gets a field does not compile here without it; a record that lacks one is refused
//! by Python when the first is made.

use backhaul_topology::distance::Distance;
use backhaul_topology::model::{
    CacheDomain, Core, Disk, Gpu, GpuInstance, Nic, NicKind, NumaNode, NvLink, PciPath, Place,
    RdmaDevice, ToldPath,
};
use backhaul_topology::plan::{PlannedGpu, Policy, WorkerPlan};
use backhaul_topology::route::Route;
use backhaul_topology::{Machine, Plan};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};

use super::field::{Field, Unfit};

/// A class of `backhaul.topology`
macro_rules! class {
    ($py:expr, $record:ident) => {{
        static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        CLASS.import($py, "backhaul.topology", stringify!($record))
    }};
}

/// A struct whose record has the same name and the same fields
macro_rules! record {
    ($record:ident { $($field:ident),* $(,)? }) => {
        impl Field for $record {
            fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                let Self { $($field),* } = self;
                let fields = PyDict::new(py);
                $(fields.set_item(intern!(py, stringify!($field)), $field.to_python(py)?)?;)*
                class!(py, $record)?.call((), Some(&fields))
            }

            fn from_python(object: &Bound<'_, PyAny>) -> Result<Self, Unfit> {
                let py = object.py();
                let class = class!(py, $record);
                if !class.is_ok_and(|class| object.is_instance(class).unwrap_or(false)) {
                    return Err(Unfit::new(object, concat!("it must be a ", stringify!($record))));
                }
                Ok(Self { $($field: {
                    let value = object
                        .getattr(intern!(py, stringify!($field)))
                        .map_err(|_| Unfit::new(object, concat!("no ", stringify!($field))))?;
                    Field::from_python(&value)
                        .map_err(|unfit| unfit.of_field(stringify!($field)))?
                }),* })
            }
        }
    };
}

/// A choice, which Python has as a text: that of JSON
macro_rules! choice {
    ($choice:ident { $($variant:ident = $name:literal),* $(,)? }) => {
        impl Field for $choice {
            fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                Ok(match self {
                    $(Self::$variant => intern!(py, $name),)*
                }
                .clone()
                .into_any())
            }

            fn from_python(object: &Bound<'_, PyAny>) -> Result<Self, Unfit> {
                let text = object.cast::<PyString>().ok().and_then(|text| text.to_str().ok());
                match text {
                    $(Some($name) => Ok(Self::$variant),)*
                    _ => {
                        let names = [$($name),*].join(", ");
                        Err(Unfit::new(object, format!("choose from {names}")))
                    }
                }
            }
        }
    };
}

record!(Machine {
    format,
    name,
    sources,
    cpu_model,
    online_cpus,
    allowed_cpus,
    allowed_nodes,
    cpu_quota,
    memory_bytes,
    memory_limit_bytes,
    nodes,
    l3_domains,
    cores,
    nics,
    rdma,
    gpus,
    nvlinks,
    storage,
    told_paths,
    notes,
});
record!(NumaNode {
    id,
    cpus,
    memory_bytes,
    distances,
});
record!(CacheDomain { cpus, bytes });
record!(Core { package, cpus });
record!(Nic {
    name,
    kind,
    up,
    bits_per_s,
    addresses,
    place,
    rdma,
});
choice!(NicKind {
    Loopback = "loopback",
    Ethernet = "ethernet",
    Infiniband = "infiniband",
    Virtual = "virtual",
    Other = "other",
});
record!(RdmaDevice {
    name,
    bits_per_s,
    active,
    place,
});
record!(Gpu {
    index,
    uuid,
    name,
    memory_bytes,
    place,
    instances,
});
record!(GpuInstance {
    uuid,
    profile,
    memory_bytes,
});
record!(Place {
    pci_path,
    node,
    cpus,
});
record!(NvLink {
    gpus,
    links,
    version,
});
record!(Disk {
    name,
    bytes,
    rotational,
    place,
});
record!(ToldPath { devices, path });
choice!(PciPath {
    Pix = "PIX",
    Pxb = "PXB",
    Phb = "PHB",
    Node = "NODE",
    Sys = "SYS",
});
record!(Plan {
    policy,
    machine,
    workers,
    explanation,
    warnings,
});
choice!(Policy {
    PerGpu = "per-gpu",
    PerNuma = "per-numa",
    PerL3 = "per-l3",
    N = "n",
});
record!(WorkerPlan {
    name,
    cpus,
    memory_nodes,
    threads,
    memory_bytes,
    gpus,
    nic,
    rdma,
    lanes,
    why,
});
record!(PlannedGpu { index, uuid });

/// The record of a distance
pub(super) fn of_distance<'py>(
    py: Python<'py>,
    distance: &Distance,
) -> PyResult<Bound<'py, PyAny>> {
    let Distance {
        class,
        bandwidth_bytes_per_s,
        latency_s,
    } = distance;
    class!(py, Distance)?.call1((class.short(), bandwidth_bytes_per_s, latency_s))
}

pub(super) fn of_route<'py>(py: Python<'py>, route: &Route) -> PyResult<Bound<'py, PyAny>> {
    let devices = route.devices.iter().map(ToString::to_string);
    let devices = PyTuple::new(py, devices.collect::<Vec<_>>())?;
    class!(py, Route)?.call1((devices, route.bandwidth_bytes_per_s, route.latency_s))
}
