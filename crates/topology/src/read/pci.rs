//! PCI addresses, as sysfs writes them (`0000:17:00.0`)

/// An address in numbers, which order as the bus does: domain, bus, device, function
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl PciAddress {
    /// Reads an address as sysfs, NVML (`00000000:17:00.0`) or hwloc writes it
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (domain, rest) = text.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (device, function) = rest.split_once('.')?;
        let byte = |digits: &str| -> Option<u8> { u8::try_from(hex(digits, 2)?).ok() };
        (domain.len() >= 4).then_some(())?;
        Some(Self {
            domain: hex(domain, 8)?,
            bus: byte(bus)?,
            device: byte(device)?,
            function: byte(function)?,
        })
    }

    /// The address as sysfs writes it
    pub(super) fn name(self) -> String {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// Reads up to `digits_max` hexadecimal digits; unlike the standard library, no sign
fn hex(digits: &str, digits_max: usize) -> Option<u32> {
    let good = digits.len() <= digits_max && digits.bytes().all(|b| b.is_ascii_hexdigit());
    good.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

/// The host bridge and the devices in a path of sysfs, from the bridge down
pub(super) fn pci_path(path: &str) -> Vec<String> {
    path.split('/')
        .filter(|part| PciAddress::parse(part).is_some() || is_host_bridge(part))
        .map(str::to_owned)
        .collect()
}

fn is_host_bridge(part: &str) -> bool {
    part.strip_prefix("pci")
        .and_then(|rest| rest.split_once(':'))
        .is_some_and(|(domain, bus)| hex(domain, 8).is_some() && hex(bus, 2).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_every_writer_are_one() {
        let address = PciAddress::parse("0000:c1:00.1").expect("an address");
        assert_eq!(PciAddress::parse("00000000:C1:00.1"), Some(address));
        assert_eq!(address.name(), "0000:c1:00.1");
        let wide = PciAddress::parse("10000:01:00.0").expect("a domain of VMD");
        assert_eq!(wide.name(), "10000:01:00.0");
        assert!(address < wide);
        for text in ["", "0000:c1:00", "c1:00.0", "0000:c1:+0.1", "0000:c1c:00.0"] {
            assert_eq!(PciAddress::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_path_keeps_what_is_pci() {
        let path = "../../devices/pci0000:00/0000:00:03.0/virtio2/net/eth0";
        assert_eq!(pci_path(path), ["pci0000:00", "0000:00:03.0"]);
        assert!(pci_path("../../devices/virtual/net/lo").is_empty());
    }
}
