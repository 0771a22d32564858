//! Network interfaces and RDMA devices

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::devices::place;
use super::tree::Tree;
use crate::model::{Nic, NicKind, Place, RdmaDevice};

/// Network interfaces, by name, with the addresses that the kernel told
///
/// IP over InfiniBand may tell no speed: then it is that of the device behind it.
pub(super) fn nics(
    tree: &Tree,
    rdma_devices: &[RdmaDevice],
    addresses: &BTreeMap<String, Vec<IpAddr>>,
) -> Vec<Nic> {
    // Others come and go: twice, with a look at /sys between
    let before = in_namespace(tree);
    let mut names = tree.names("sys/class/net");
    // `bonding_masters` is a file
    names.retain(|name| tree.exists(&format!("sys/class/net/{name}/type")));
    let mut hidden = Vec::new();
    if let (Some(before), Some(after)) = (before, in_namespace(tree)) {
        let foreign = |name: &String| !before.contains(name) && !after.contains(name);
        if names.iter().any(foreign) {
            tree.note("/sys is of another network namespace".to_owned());
            names.clear();
        }
        hidden.extend(before.intersection(&after).cloned());
        hidden.retain(|name| !names.contains(name));
    }
    if !hidden.is_empty() {
        let hidden = hidden.join(", ");
        tree.note(format!(
            "/sys does not tell what these interfaces are: {hidden}"
        ));
    }
    let told = |name: String| told_nic(tree, name, rdma_devices);
    let mut nics: Vec<Nic> = names.into_iter().filter_map(told).collect();
    nics.extend(hidden.into_iter().map(|name| Nic {
        // An interface that is down keeps its addresses, so this may be wrong
        up: addresses.contains_key(&name),
        name,
        ..Nic::default()
    }));
    for nic in &mut nics {
        nic.addresses = addresses.get(&nic.name).cloned().unwrap_or_default();
    }
    nics.sort_by(|a, b| a.name.cmp(&b.name));
    nics
}

/// Interfaces of the network namespace of this process, which `/sys` may be of another than;
/// `None` if it is not told
fn in_namespace(tree: &Tree) -> Option<BTreeSet<String>> {
    let table = tree.text("proc/net/dev")?;
    let names = table.lines().filter_map(|line| line.split_once(':'));
    Some(names.map(|(name, _)| name.trim().to_owned()).collect())
}

/// An interface as `/sys` reports it
fn told_nic(tree: &Tree, name: String, rdma_devices: &[RdmaDevice]) -> Option<Nic> {
    let folder = format!("sys/class/net/{name}");
    let rdma = rdma_behind(tree, &folder);
    let device = rdma_devices
        .iter()
        .find(|device| Some(&device.name) == rdma.as_ref());
    Some(Nic {
        kind: kind(tree, &folder)?,
        up: is_up(tree, &folder),
        bits_per_s: bits_per_s(tree, &folder).or_else(|| device?.bits_per_s),
        addresses: Vec::new(),
        place: nic_place(tree, &folder),
        rdma,
        name,
    })
}

/// Where an interface is; one on top of others (bond, VLAN, bridge) is where all of these are, as
/// far as they agree
fn nic_place(tree: &Tree, folder: &str) -> Place {
    let own = place(tree, folder);
    if !own.pci_path.is_empty() {
        return own;
    }
    let lower = tree
        .names(folder)
        .into_iter()
        .filter_map(|name| Some(format!("sys/class/net/{}", name.strip_prefix("lower_")?)));
    let mut places = lower.map(|folder| place(tree, &folder));
    let first = places.next().unwrap_or_default();
    places.fold(first, |common, other| {
        let is_same = common.pci_path == other.pci_path;
        Place {
            // A path leads to a device, or is none
            pci_path: if is_same { common.pci_path } else { Vec::new() },
            node: common.node.filter(|_| common.node == other.node),
            cpus: common.cpus.intersection(&other.cpus),
        }
    })
}

/// By the ARPHRD type of `linux/if_arp.h`
fn kind(tree: &Tree, folder: &str) -> Option<NicKind> {
    let has_device = tree.exists(&format!("{folder}/device"));
    Some(match tree.number(&format!("{folder}/type"))? {
        772_u32 => NicKind::Loopback,
        32 => NicKind::Infiniband,
        _ if !has_device => NicKind::Virtual,
        1 if !tree.exists(&format!("{folder}/phy80211")) => NicKind::Ethernet,
        _ => NicKind::Other,
    })
}

/// Returns whether the interface is up (`IFF_UP`) and has a carrier; `carrier` of one that is down
/// cannot be read
fn is_up(tree: &Tree, folder: &str) -> bool {
    let flags = tree.text(&format!("{folder}/flags")).unwrap_or_default();
    let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap_or(0);
    flags & 1 == 1 && tree.text(&format!("{folder}/carrier")).as_deref() == Some("1")
}

/// Megabits in the file; -1, 0 or an error where the driver does not know
fn bits_per_s(tree: &Tree, folder: &str) -> Option<u64> {
    let text = tree.text(&format!("{folder}/speed"))?;
    let megabits: u32 = text.parse().ok()?;
    // `SPEED_UNKNOWN` of ethtool without its sign
    (megabits > 0 && megabits != u32::MAX).then(|| u64::from(megabits) * 1_000_000)
}

/// The RDMA device on the same function of the card
fn rdma_behind(tree: &Tree, folder: &str) -> Option<String> {
    tree.names(&format!("{folder}/device/infiniband"))
        .into_iter()
        .next()
}

/// RDMA devices, by name
pub(super) fn rdma_devices(tree: &Tree) -> Vec<RdmaDevice> {
    let names = tree.names("sys/class/infiniband");
    names
        .into_iter()
        .map(|name| {
            let folder = format!("sys/class/infiniband/{name}");
            let ports = tree.names(&format!("{folder}/ports"));
            // `4: ACTIVE`
            let is_active = |port: &&String| {
                tree.text(&format!("{folder}/ports/{port}/state"))
                    .is_some_and(|state| state.ends_with("ACTIVE"))
            };
            let active: Vec<&String> = ports.iter().filter(is_active).collect();
            RdmaDevice {
                bits_per_s: active
                    .iter()
                    .filter_map(|port| tree.text(&format!("{folder}/ports/{port}/rate")))
                    .filter_map(|rate| rate_of(&rate))
                    .max(),
                active: (!ports.is_empty()).then_some(!active.is_empty()),
                place: place(tree, &folder),
                name,
            }
        })
        .collect()
}

/// Bits per second of a rate like `100 Gb/sec (4X EDR)` or `2.5 Gb/sec (1X SDR)`
fn rate_of(rate: &str) -> Option<u64> {
    let (gigabits, unit) = rate.split_once(' ')?;
    unit.starts_with("Gb/sec").then_some(())?;
    let (whole, part) = gigabits.split_once('.').unwrap_or((gigabits, "0"));
    let (whole, part): (u32, u32) = (whole.parse().ok()?, part.chars().next()?.to_digit(10)?);
    Some(u64::from(whole) * 1_000_000_000 + u64::from(part) * 100_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_infiniband_are_read() {
        assert_eq!(rate_of("100 Gb/sec (4X EDR)"), Some(100_000_000_000));
        assert_eq!(rate_of("2.5 Gb/sec (1X SDR)"), Some(2_500_000_000));
        assert_eq!(rate_of("fast"), None);
    }
}
