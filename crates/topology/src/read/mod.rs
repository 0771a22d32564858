//! Readers: from files, a driver or a text to a [`Machine`]
//!
//! A fact that a reader cannot find out becomes a note of the machine; an error is for a text that
//! is not what it is said to be.

pub mod hwloc;
mod mask;
pub mod nvidia_smi;
mod nvml;
mod pci;
pub mod sysfs;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

use crate::check::Misfit;
use crate::model::{FORMAT, Machine};

/// How to find out what a machine is made of
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DiscoverOptions {
    /// Folder with the `sys` and `proc` of a recorded machine; `None` for this machine. Of a
    /// recorded one, neither the affinity mask of this process nor its addresses are asked for.
    pub root: Option<PathBuf>,
    /// True if the driver of NVIDIA is asked; never of a recorded machine
    pub nvml: bool,
}

impl Default for DiscoverOptions {
    fn default() -> Self {
        Self {
            root: None,
            nvml: true,
        }
    }
}

/// Finds out what this machine is made of, or one that was recorded
///
/// # Errors
///
/// [`NoSystem`](sysfs::NoSystem) if the root folder is not that of a Linux system.
pub fn discover(options: &DiscoverOptions) -> Result<Machine, sysfs::NoSystem> {
    if let Some(root) = &options.root {
        return sysfs::read(root, &sysfs::Told::default());
    }
    let mut machine = sysfs::read(Path::new("/"), &sysfs::Told::here())?;
    if options.nvml {
        match nvml::ask() {
            Ok(told) => nvml::join(&mut machine, told),
            Err(error) => machine.notes.push(error.to_string()),
        }
    }
    Ok(machine)
}

/// Forms of text that a machine can be read from
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Format {
    /// A machine that was written as JSON
    Json,
    /// XML that `lstopo --of xml` writes
    HwlocXml,
    /// Output of `nvidia-smi topo -m`
    NvidiaSmi,
}

impl Format {
    /// All of them
    pub const ALL: [Self; 3] = [Self::Json, Self::HwlocXml, Self::NvidiaSmi];

    /// The name of the format
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::HwlocXml => "hwloc-xml",
            Self::NvidiaSmi => "nvidia-smi",
        }
    }

    /// The format that `text` seems to be of
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        let start = text.trim_start_matches('\u{feff}').trim_start();
        if start.starts_with('{') {
            Some(Self::Json)
        } else if start.starts_with('<') {
            Some(Self::HwlocXml)
        } else if nvidia_smi::is_table(text) {
            Some(Self::NvidiaSmi)
        } else {
            None
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == name)
            .ok_or_else(|| UnknownFormat {
                name: name.to_owned(),
            })
    }
}

/// Reads a machine from a text, whose format is recognised if none is given
///
/// # Errors
///
/// [`ParseError`]: the text is of no format that is known, or not what its format asks for.
pub fn parse(text: &str, format: Option<Format>) -> Result<Machine, ParseError> {
    let machine = match format.or_else(|| Format::of(text)) {
        Some(Format::Json) => parse_json(text)?,
        Some(Format::HwlocXml) => hwloc::parse(text)?,
        Some(Format::NvidiaSmi) => nvidia_smi::parse(text)?,
        None => {
            return Err(ParseError::Unrecognised {
                start: text.trim_start().chars().take(40).collect(),
            });
        }
    };
    machine.check()?;
    Ok(machine)
}

fn parse_json(text: &str) -> Result<Machine, ParseError> {
    /// All that is read before it is known that the rest can be
    #[derive(serde::Deserialize)]
    struct Versioned {
        format: u32,
    }
    let Versioned { format } = serde_json::from_str(text)?;
    if format != FORMAT {
        return Err(Misfit::Version { format }.into());
    }
    Ok(serde_json::from_str(text)?)
}

/// A name that is not one of [`Format`]
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("not a format: {name:?}; there are json, hwloc-xml and nvidia-smi")]
pub struct UnknownFormat {
    /// The name
    pub name: String,
}

/// A text that no machine can be read from
///
/// The fault is the text's: trying again does not help.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// No format is recognised
    #[error(
        "neither JSON of this program, nor XML of hwloc, nor a table of nvidia-smi topo -m; \
         it begins with {start:?}"
    )]
    Unrecognised {
        /// First characters of the text
        start: String,
    },
    /// JSON, but not that of a machine
    #[error("not a machine in JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A machine whose parts do not fit together
    #[error("not a machine: {0}")]
    Misfit(#[from] Misfit),
    /// Not XML of hwloc
    #[error(transparent)]
    Hwloc(#[from] hwloc::HwlocError),
    /// Not a table of `nvidia-smi topo -m`
    #[error(transparent)]
    NvidiaSmi(#[from] nvidia_smi::TableError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_recognised_and_named() {
        let machine = Machine {
            format: FORMAT,
            ..Machine::default()
        };
        let json = serde_json::to_string(&machine).expect("plain data");
        assert_eq!(parse(&json, None).expect("JSON"), machine);
        assert_eq!(Format::of("\tGPU0\tGPU1\n"), Some(Format::NvidiaSmi));
        assert_eq!(Format::of(" <topology/>"), Some(Format::HwlocXml));
        assert_eq!(Format::of("no machine"), None);
        for format in Format::ALL {
            assert_eq!(format.name().parse(), Ok(format));
        }
        let error = "yaml".parse::<Format>().expect_err("not a format");
        assert!(error.to_string().contains("yaml"));
    }

    #[test]
    fn what_is_no_machine_is_refused() {
        let error = |text: &str| parse(text, None).expect_err(text).to_string();
        assert!(error("no machine").contains("no machine"));
        assert!(error("{}").contains("format"));
        let error = error(r#"{"format": 2, "of": "a later version"}"#);
        assert!(error.contains("format 2"), "{error}");
        assert!(matches!(
            parse("GPU0 X", Some(Format::Json)),
            Err(ParseError::Json(_))
        ));
    }
}
