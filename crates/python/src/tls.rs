//! `Tls`: certificates, and the authorities that a side believes.

use std::path::PathBuf;

use backhaul::{Pem, TlsInfo, TlsOptions};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::errors::IntoException;

#[doc = stub_doc!("Tls")]
#[pyclass(frozen, weakref, module = "backhaul._native")]
pub(crate) struct Tls {
    pub(crate) tls: backhaul::Tls,
    /// Where the authorities' certificates are from
    origin: String,
}

#[pymethods]
impl Tls {
    #[new]
    #[pyo3(signature = (ca, cert = None, key = None, *, min_version = "1.2", max_version = "1.3", ciphers = None))]
    fn new(
        py: Python<'_>,
        ca: PathBuf,
        cert: Option<PathBuf>,
        key: Option<PathBuf>,
        min_version: &str,
        max_version: &str,
        ciphers: Option<String>,
    ) -> PyResult<Self> {
        let version = |text: &str| {
            text.parse()
                .map_err(|error: backhaul::TlsError| error.into_exception(py))
        };
        let mut options = TlsOptions::new(pem(ca));
        options.certificate = cert.map(pem);
        options.key = key.map(pem);
        options.min_version = version(min_version)?;
        options.max_version = version(max_version)?;
        options.ciphers = ciphers;
        let origin = format!("{:?}", options.authorities);
        py.detach(|| backhaul::Tls::new(&options))
            .map(|tls| Self { tls, origin })
            .map_err(|error| error.into_exception(py))
    }

    fn __repr__(&self) -> String {
        format!("<backhaul.Tls of the authorities in {}>", self.origin)
    }
}

/// A path, or the text itself, which has lines; one that has lost them is not to be shown as a path
fn pem(given: PathBuf) -> Pem {
    match given.to_str() {
        Some(text) if text.contains('\n') || text.contains("-----BEGIN") => {
            Pem::Text(text.to_owned())
        }
        _ => Pem::File(given),
    }
}

/// Returns the facts about the encryption of a connection
pub(crate) fn info_dict<'py>(py: Python<'py>, info: &TlsInfo) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("version", info.version.name())?;
    dict.set_item("cipher", info.cipher)?;
    dict.set_item("cipher_bits", info.cipher_bits)?;
    let certificate = info.peer_certificate.as_deref();
    dict.set_item(
        "peer_certificate",
        certificate.map(|der| PyBytes::new(py, der)),
    )?;
    Ok(dict)
}
