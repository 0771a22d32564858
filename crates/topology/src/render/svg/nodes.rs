//! A NUMA node: its caches and cores above, its devices below

use super::bridges::BridgeBlock;
use super::metrics::{fit, fit_bold, width, width_bold};
use super::{PAD, Rows, Scene};
use crate::cpuset::CpuSet;
use crate::plan::memory_text;
use crate::render::tree::cores_text;
use crate::render::view::{BridgeView, CacheView, NodeView};

/// A NUMA node, measured
#[derive(Debug)]
pub(super) struct NodeBlock<'v> {
    id: Option<u32>,
    name: String,
    /// Below the name
    lines: Vec<String>,
    caches: Vec<CacheBlock<'v>>,
    cache_columns: usize,
    /// Bridges without GPUs, in rows
    plain: Vec<Vec<BridgeBlock<'v>>>,
    with_gpus: Vec<BridgeBlock<'v>>,
    pub(super) width: f64,
    /// Height of what is above the bridges with GPUs
    pub(super) upper: f64,
}

/// A last-level cache with its cores, measured
#[derive(Debug)]
struct CacheBlock<'v> {
    label: String,
    cores: &'v [CpuSet],
    columns: usize,
    /// Side of a core
    core: f64,
    width: f64,
    height: f64,
}

impl<'v> NodeBlock<'v> {
    pub(super) fn new(node: &'v NodeView, core: f64) -> Self {
        let mut lines = Vec::new();
        lines.extend(node.memory_bytes.map(memory_text));
        lines.push(if node.cpus.is_empty() {
            "no CPUs".to_owned()
        } else {
            format!("CPUs {}", node.cpus)
        });
        Self {
            id: node.id,
            ..Self::measured(node.name.clone(), lines, &node.caches, &node.bridges, core)
        }
    }

    /// Devices whose place is unknown
    pub(super) fn elsewhere(bridges: &'v [BridgeView]) -> Self {
        let lines = vec!["NUMA node not known".to_owned()];
        Self::measured("Other devices".to_owned(), lines, &[], bridges, 0.0)
    }

    fn measured(
        name: String,
        lines: Vec<String>,
        caches: &'v [CacheView],
        bridges: &'v [BridgeView],
        core: f64,
    ) -> Self {
        let many = caches.len() > 1;
        let caches: Vec<CacheBlock<'v>> = caches
            .iter()
            .map(|cache| CacheBlock::new(cache, core, many))
            .collect();
        let cache_columns = match caches.len() {
            0..=1 => 1,
            2..=8 => 2,
            many => (many as f64).sqrt().ceil() as usize,
        };
        let cache_width = caches.iter().map(|cache| cache.width).fold(0.0, f64::max);
        let caches_width = cache_columns.min(caches.len()) as f64 * (cache_width + GAP) - GAP;
        let (with_gpus, others): (Vec<_>, Vec<_>) = bridges
            .iter()
            .map(BridgeBlock::new)
            .partition(BridgeBlock::has_gpus);
        let gpus_width = row_width(&with_gpus);
        let room = caches_width.max(gpus_width).max(ROOM_MIN);
        let plain = wrap(others, room);
        let plain_width = plain.iter().map(|row| row_width(row)).fold(0.0, f64::max);
        let text = width_bold(&name, 13.0);
        let memory = lines.first().map_or(0.0, |line| width(line, 11.0));
        let inner = caches_width
            .max(gpus_width)
            .max(plain_width)
            .max(text.max(memory));
        let mut block = Self {
            id: None,
            name,
            lines,
            caches,
            cache_columns,
            plain,
            with_gpus,
            width: inner + 2.0 * PAD,
            upper: 0.0,
        };
        block.upper = block.head() + block.caches_height() + block.plain_height();
        block
    }

    pub(super) fn id(&self) -> Option<u32> {
        self.id
    }

    pub(super) fn has_gpus(&self) -> bool {
        !self.with_gpus.is_empty()
    }

    pub(super) fn above_gpus(&self) -> f64 {
        let bridges = self.with_gpus.iter().map(BridgeBlock::above_gpus);
        bridges.fold(0.0, f64::max)
    }

    fn head(&self) -> f64 {
        30.0 + 15.0 * self.lines.len() as f64
    }

    fn caches_height(&self) -> f64 {
        let rows = self.caches.chunks(self.cache_columns);
        rows.map(|row| row_height(row) + GAP).sum()
    }

    fn plain_height(&self) -> f64 {
        self.plain.iter().map(|row| bridges_height(row) + GAP).sum()
    }

    pub(super) fn draw(&self, scene: &mut Scene<'_>, x: f64, y: f64, rows: &Rows<'_>) {
        scene
            .canvas
            .rect(x, y, self.width, rows.height, 11.0, "node");
        let room = self.width - 2.0 * PAD;
        scene
            .canvas
            .text(x + PAD, y + 22.0, "name", &fit_bold(&self.name, 13.0, room));
        let mut top = y + 38.0;
        for line in &self.lines {
            scene.canvas.begin(line);
            scene
                .canvas
                .text(x + PAD, top, "small", &fit(line, 11.0, room));
            scene.canvas.end();
            top += 15.0;
        }
        top = y + self.head();
        for row in self.caches.chunks(self.cache_columns) {
            let inner = row.iter().map(|cache| cache.width + GAP).sum::<f64>() - GAP;
            let mut left = x + (self.width - inner) / 2.0;
            for cache in row {
                cache.draw(scene, left, top);
                left += cache.width + GAP;
            }
            top += row_height(row) + GAP;
        }
        for row in &self.plain {
            let mut left = x + (self.width - row_width(row)) / 2.0;
            for bridge in row {
                bridge.draw(scene, left, top, 0.0);
                left += bridge.width + GAP;
            }
            top += bridges_height(row) + GAP;
        }
        let mut left = x + (self.width - row_width(&self.with_gpus)) / 2.0;
        for bridge in &self.with_gpus {
            let top = y + rows.upper;
            bridge.draw(scene, left, top, rows.above_gpus);
            left += bridge.width + GAP;
        }
    }
}

impl<'v> CacheBlock<'v> {
    fn new(cache: &'v CacheView, core: f64, many: bool) -> Self {
        let count = cores_text(cache);
        let label = match (cache.known, cache.bytes) {
            (true, Some(bytes)) => format!("L3 {} · {count}", memory_text(bytes)),
            (true, None) => format!("L3 · {count}"),
            (false, _) => count,
        };
        let columns = columns(cache.cores.len());
        let rows = cache.cores.len().div_ceil(columns);
        let grid = columns as f64 * (core + CORE_GAP) - CORE_GAP;
        // Of many caches only what tells them from each other, so that they stay small
        let label = match cache.bytes {
            Some(bytes) if many && width(&label, 10.0) > grid => {
                format!("L3 {}", memory_text(bytes))
            }
            _ => label,
        };
        Self {
            width: grid.max(width(&label, 10.0)) + 2.0 * GAP,
            height: 20.0 + rows as f64 * (core + CORE_GAP) - CORE_GAP + GAP,
            label,
            cores: &cache.cores,
            columns,
            core,
        }
    }

    fn draw(&self, scene: &mut Scene<'_>, x: f64, y: f64) {
        scene
            .canvas
            .rect(x, y, self.width, self.height, 8.0, "cache");
        scene.canvas.text(x + GAP, y + 14.0, "tiny", &self.label);
        let step = self.core + CORE_GAP;
        let grid = self.columns as f64 * step - CORE_GAP;
        let left = x + (self.width - grid) / 2.0;
        for (number, core) in self.cores.iter().enumerate() {
            let (row, column) = (number / self.columns, number % self.columns);
            let core_x = left + column as f64 * step;
            let core_y = y + 20.0 + row as f64 * step;
            draw_core(scene, core, (core_x, core_y, self.core));
        }
    }
}

/// A square for a core, an upright stripe for each of its threads, a band for each worker on it
fn draw_core(scene: &mut Scene<'_>, core: &CpuSet, (x, y, side): (f64, f64, f64)) {
    scene.canvas.begin(&format!("CPU {core}"));
    let stripe = (side + 1.0) / core.len() as f64;
    for (number, cpu) in core.iter().enumerate() {
        let left = x + stripe * number as f64;
        let wide = stripe - 1.0;
        let users = scene.colours.of_cpu(cpu);
        if users.is_empty() {
            let allowed = &scene.machine.allowed_cpus;
            let allowed = allowed.is_empty() || allowed.contains(cpu);
            let class = if allowed {
                "thread"
            } else {
                "thread forbidden"
            };
            scene.canvas.rect(left, y, wide, side, 2.5, class);
        } else {
            let band = side / users.len() as f64;
            for (number, colour) in users.iter().enumerate() {
                scene
                    .canvas
                    .fill(left, y + band * number as f64, wide, band, 1.5, colour);
            }
        }
    }
    scene.canvas.end();
}

/// How many cores a row has: about twice as many as there are rows, and rows of one length
fn columns(cores: usize) -> usize {
    let wanted = (2.0 * cores as f64).sqrt().round().max(1.0) as usize;
    (wanted..wanted + 5)
        .find(|&columns| cores.is_multiple_of(columns))
        .unwrap_or(wanted)
        .min(cores.max(1))
}

fn row_width(bridges: &[BridgeBlock<'_>]) -> f64 {
    let inner: f64 = bridges.iter().map(|bridge| bridge.width + GAP).sum();
    (inner - GAP).max(0.0)
}

fn row_height(caches: &[CacheBlock<'_>]) -> f64 {
    caches.iter().map(|cache| cache.height).fold(0.0, f64::max)
}

fn bridges_height(bridges: &[BridgeBlock<'_>]) -> f64 {
    let heights = bridges.iter().map(BridgeBlock::height);
    heights.fold(0.0, f64::max)
}

/// Rows of bridges no wider than `room`, unless one bridge is
fn wrap<'v>(bridges: Vec<BridgeBlock<'v>>, room: f64) -> Vec<Vec<BridgeBlock<'v>>> {
    let mut rows: Vec<Vec<BridgeBlock<'v>>> = Vec::new();
    for bridge in bridges {
        match rows.last_mut() {
            Some(row) if row_width(row) + GAP + bridge.width <= room => row.push(bridge),
            _ => rows.push(vec![bridge]),
        }
    }
    rows
}

const CORE_GAP: f64 = 4.0;
const GAP: f64 = 8.0;
const ROOM_MIN: f64 = 230.0;
