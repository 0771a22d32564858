//! Attributes of hwloc's XML, and what can be wrong with them

use roxmltree::Node;
use thiserror::Error;

use crate::cpuset::{CPUS_MAX, CpuSet};
use crate::read::mask;

/// A text that is not a machine in XML of hwloc
///
/// The fault is the text's: trying again does not help.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum HwlocError {
    /// Not XML
    #[error("not XML: {0}")]
    Xml(#[from] roxmltree::Error),
    /// XML of something else
    #[error("the root of the XML is {name:?}, and hwloc's is \"topology\"")]
    NotTopology {
        /// Name of the root element
        name: String,
    },
    /// XML of an hwloc that is too old or too new
    #[error("XML of hwloc {version:?}; 2 and 3 are read: export it anew with lstopo --of xml")]
    Version {
        /// The version it says, empty for hwloc 1
        version: String,
    },
    /// No hardware threads are in it
    #[error("a topology without hardware threads (objects of type \"PU\")")]
    NoCpus,
    /// An attribute that makes no sense
    #[error("line {line}: {attribute} of {element} is {value:?}, expected {expected}")]
    BadAttribute {
        /// Line of the text, from 1
        line: u32,
        /// Object with the attribute: its type, or the name of the element
        element: String,
        /// The attribute
        attribute: String,
        /// Value that stands there
        value: String,
        /// Values that may stand there
        expected: &'static str,
    },
}

/// `type` of an object
pub(super) fn kind<'a>(node: Node<'a, '_>) -> &'a str {
    node.attribute("type").unwrap_or("")
}

/// Objects of `wanted` type in the order of the text
pub(super) fn objects<'a, 'input>(
    root: Node<'a, 'input>,
    wanted: &'static str,
) -> impl Iterator<Item = Node<'a, 'input>> {
    root.descendants()
        .filter(move |node| node.has_tag_name("object") && kind(*node) == wanted)
}

/// The value of the `info` element `name`, if it is not empty
pub(super) fn info<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    node.children()
        .find(|child| child.has_tag_name("info") && child.attribute("name") == Some(name))?
        .attribute("value")
        .filter(|value| !value.is_empty())
}

/// Bytes of an `info` in KiB; hwloc 3 writes the unit, hwloc 2 does not
pub(super) fn info_kib(node: Node<'_, '_>, name: &str) -> Option<u64> {
    let amount = info(node, name)?;
    let digits = amount.strip_suffix("KiB").unwrap_or(amount);
    digits.parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// A number; `None` if there is none, or -1, which stands for none
pub(super) fn number(node: Node<'_, '_>, attribute: &str) -> Result<Option<u64>, HwlocError> {
    match node.attribute(attribute) {
        None | Some("-1") => Ok(None),
        Some(value) => value
            .parse()
            .map(Some)
            .map_err(|_| bad(node, attribute, "a number")),
    }
}

/// A number of the operating system
pub(super) fn index(node: Node<'_, '_>) -> Result<Option<u32>, HwlocError> {
    match number(node, "os_index")? {
        None => Ok(None),
        Some(index) => match u32::try_from(index) {
            Ok(index) if index < CPUS_MAX => Ok(Some(index)),
            _ => Err(bad(node, "os_index", "a number below 65536")),
        },
    }
}

/// A set; `None` if there is none, or it has no end (`0xf...f`)
pub(super) fn set(node: Node<'_, '_>, attribute: &str) -> Result<Option<CpuSet>, HwlocError> {
    match node.attribute(attribute) {
        None | Some("") => Ok(None),
        Some(value) if value.starts_with("0xf...f") => Ok(None),
        Some(value) => mask::parse(value)
            .map(Some)
            .ok_or_else(|| bad(node, attribute, "words of 32 bits such as 0x0000000f")),
    }
}

/// The error of an attribute that makes no sense
pub(super) fn bad(node: Node<'_, '_>, attribute: &str, expected: &'static str) -> HwlocError {
    let element = match kind(node) {
        "" => node.tag_name().name(),
        kind => kind,
    };
    HwlocError::BadAttribute {
        line: node.document().text_pos_at(node.range().start).row,
        element: element.to_owned(),
        attribute: attribute.to_owned(),
        value: node.attribute(attribute).unwrap_or("").to_owned(),
        expected,
    }
}
