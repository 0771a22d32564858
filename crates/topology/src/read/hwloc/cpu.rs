//! CPUs, cores, caches and NUMA nodes in hwloc's XML

use std::cmp::Reverse;

use roxmltree::Node;

use super::xml::{HwlocError, bad, index, kind, number, objects, set};
use crate::cpuset::CpuSet;
use crate::model::{CacheDomain, Core, NumaNode};
use crate::read::sysfs::claim_once;

/// Hardware threads
pub(super) fn threads(root: Node<'_, '_>) -> Result<CpuSet, HwlocError> {
    objects(root, "PU")
        .map(|thread| index(thread)?.ok_or_else(|| bad(thread, "os_index", "a number")))
        .collect()
}

/// Physical cores; their numbers start anew in each package
pub(super) fn cores(root: Node<'_, '_>) -> Result<Vec<Core>, HwlocError> {
    let packages: Vec<Node<'_, '_>> = objects(root, "Package").collect();
    let mut cores = Vec::new();
    for core in objects(root, "Core") {
        let package = core
            .ancestors()
            .find(|node| node.has_tag_name("object") && kind(*node) == "Package");
        let package = match package {
            None => 0,
            Some(package) => match number(package, "os_index")? {
                Some(number) => u32::try_from(number)
                    .map_err(|_| bad(package, "os_index", "a number of 32 bits"))?,
                // Firmware may not number them: in their order
                None => (0..)
                    .zip(&packages)
                    .find_map(|(number, known)| (*known == package).then_some(number))
                    .unwrap_or(0),
            },
        };
        let cpus = threads(core)?;
        if !cpus.is_empty() {
            cores.push(Core { package, cpus });
        }
    }
    cores.sort_by_key(|core| core.cpus.iter().next());
    Ok(cores)
}

/// Groups of CPUs that share the last level of cache that holds data
pub(super) fn cache_domains(root: Node<'_, '_>) -> Result<Vec<CacheDomain>, HwlocError> {
    let mut caches = Vec::new();
    for node in root
        .descendants()
        .filter(|node| node.has_tag_name("object"))
    {
        let level = kind(node)
            .strip_prefix('L')
            .and_then(|rest| rest.strip_suffix("Cache"))
            .and_then(|level| level.parse::<u32>().ok());
        let Some(level) = level else { continue };
        let cpus = threads(node)?;
        let bytes = number(node, "cache_size")?.filter(|&bytes| bytes > 0);
        let first = cpus.iter().next();
        caches.push((Reverse(level), first, CacheDomain { cpus, bytes }));
    }
    caches.sort_by_key(|(level, first, _)| (*level, *first));
    let mut seen = CpuSet::default();
    let mut domains = Vec::new();
    for (.., cache) in caches {
        if !cache.cpus.is_empty() && cache.cpus.intersection(&seen).is_empty() {
            seen = seen.union(&cache.cpus);
            domains.push(cache);
        }
    }
    domains.sort_by_key(|domain| domain.cpus.iter().next());
    Ok(domains)
}

/// NUMA nodes, by number, with the distances that the machine told
pub(super) fn nodes(root: Node<'_, '_>, online: &CpuSet) -> Result<Vec<NumaNode>, HwlocError> {
    let mut nodes = Vec::new();
    for node in objects(root, "NUMANode") {
        nodes.push(NumaNode {
            id: index(node)?.ok_or_else(|| bad(node, "os_index", "a number"))?,
            cpus: set(node, "cpuset")?
                .unwrap_or_default()
                .intersection(online),
            memory_bytes: number(node, "local_memory")?,
            distances: Vec::new(),
        });
    }
    nodes.sort_by_key(|node| node.id);
    // A node of memory alone has the CPUs near it here
    claim_once(&mut nodes);
    if let Some(latencies) = latencies(root) {
        let ids: Vec<u64> = nodes.iter().map(|node| u64::from(node.id)).collect();
        for node in &mut nodes {
            node.distances = latencies.row(u64::from(node.id), &ids).unwrap_or_default();
        }
    }
    Ok(nodes)
}

/// Latencies between NUMA nodes
struct Latencies {
    ids: Vec<u64>,
    values: Vec<u64>,
}

impl Latencies {
    /// Latencies from `id` to each of `ids`; `None` unless all of them are there
    fn row(&self, id: u64, ids: &[u64]) -> Option<Vec<u32>> {
        let position = |id: &u64| self.ids.iter().position(|known| known == id);
        let row = position(&id)? * self.ids.len();
        ids.iter()
            .map(|id| u32::try_from(*self.values.get(row + position(id)?)?).ok())
            .collect()
    }
}

/// The matrix of hwloc's own name for what firmware tells, or the first of NUMA nodes: hwloc
/// before 2.1 gave no names
fn latencies(root: Node<'_, '_>) -> Option<Latencies> {
    let matrices: Vec<Node<'_, '_>> = root
        .children()
        .filter(|node| node.has_tag_name("distances2") && kind(*node) == "NUMANode")
        .filter(|node| node.attribute("indexing") == Some("os"))
        .collect();
    let matrix = matrices
        .iter()
        .find(|node| node.attribute("name") == Some("NUMALatency"))
        .or_else(|| matrices.first())?;
    let latencies = Latencies {
        ids: numbers(*matrix, "indexes")?,
        values: numbers(*matrix, "u64values")?,
    };
    let square = latencies.ids.len().checked_mul(latencies.ids.len());
    (square == Some(latencies.values.len())).then_some(latencies)
}

/// Numbers in the elements `name`, which hwloc writes ten at a time
pub(super) fn numbers(matrix: Node<'_, '_>, name: &str) -> Option<Vec<u64>> {
    words(matrix, name).map(|word| word.parse().ok()).collect()
}

/// Words in the elements `name`
pub(super) fn words<'a>(matrix: Node<'a, '_>, name: &str) -> impl Iterator<Item = &'a str> {
    matrix
        .children()
        .filter(move |child| child.has_tag_name(name))
        .filter_map(|child| child.text())
        .flat_map(str::split_whitespace)
}
