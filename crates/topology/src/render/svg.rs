//! A machine as a picture: packages and NUMA nodes as boxes in boxes, cores as small squares, devices
//! where they hang, NVLink below them; with a plan, in the colours of its workers
//!
//! SVG 1.1 with one style sheet, light or dark as the viewer prefers. Everything is measured before
//! it is drawn, and a text that does not fit is cut short and kept whole as a tooltip.

mod bridges;
mod canvas;
mod colours;
mod links;
mod metrics;
mod nodes;
mod plan;
mod style;

use std::collections::BTreeMap;

use self::canvas::Canvas;
use self::colours::Colours;
use self::metrics::{width, width_bold};
use self::nodes::NodeBlock;
use super::tree::{limits, sums};
use super::view::View;
use crate::model::Machine;
use crate::plan::Plan;

/// The machine as an SVG document, coloured by the workers of a plan if one is given
#[must_use]
pub fn svg(machine: &Machine, plan: Option<&Plan>) -> String {
    let view = View::new(machine);
    let rows = Rows::new(&view);
    let header = Header::new(machine, &view);
    let boxes_width = rows
        .packages
        .iter()
        .map(|package| package.width)
        .sum::<f64>()
        + GAP * rows.packages.len().saturating_sub(1) as f64;
    let inner = boxes_width.max(header.width).max(INNER_WIDTH_MIN);
    let mut scene = Scene {
        canvas: Canvas::new(),
        machine,
        colours: Colours::new(plan),
        gpus: BTreeMap::new(),
    };
    let mut y = header.draw(&mut scene.canvas, MARGIN, MARGIN);
    legend(
        &mut scene.canvas,
        machine,
        plan,
        MARGIN + inner,
        MARGIN + 16.0,
    );
    let left = MARGIN + (inner - boxes_width) / 2.0;
    let mut x = left;
    for package in &rows.packages {
        package.draw(&mut scene, x, y, &rows);
        x += package.width + GAP;
    }
    draw_interconnect(&mut scene.canvas, machine, &rows, left, y);
    y += rows.height + rows.head + 2.0 * PAD;
    y = links::draw(&mut scene.canvas, machine, &scene.gpus, y);
    if let Some(plan) = plan {
        let colours = &scene.colours;
        y = plan::draw(&mut scene.canvas, plan, colours, MARGIN, y + GAP, inner);
    }
    scene
        .canvas
        .finish(inner + 2.0 * MARGIN, y + MARGIN, &title(machine))
}

/// Canvas, and the machine that is drawn on it
struct Scene<'m> {
    canvas: Canvas,
    machine: &'m Machine,
    colours: Colours<'m>,
    /// Middle of the lower side of each GPU that is drawn, where NVLink begins
    gpus: BTreeMap<u32, (f64, f64)>,
}

/// Title of the picture
fn title(machine: &Machine) -> String {
    if machine.name.is_empty() {
        "Machine".to_owned()
    } else {
        machine.name.clone()
    }
}

/// The text above the boxes
struct Header {
    title: String,
    lines: Vec<String>,
    width: f64,
}

impl Header {
    fn new(machine: &Machine, view: &View) -> Self {
        let title = title(machine);
        let mut lines = Vec::new();
        if !machine.cpu_model.is_empty() {
            lines.push(machine.cpu_model.clone());
        }
        lines.push(sums(machine));
        lines.extend(limits(machine));
        if !view.virtual_nics.is_empty() {
            lines.push(format!(
                "Interfaces without hardware: {}",
                view.virtual_nics.join(", ")
            ));
        }
        let lines: Vec<String> = lines
            .into_iter()
            .map(|line| metrics::fit(&line, 13.0, HEADER_WIDTH_MAX))
            .collect();
        let title = metrics::fit_bold(&title, 22.0, HEADER_WIDTH_MAX);
        let width = lines
            .iter()
            .map(|line| width(line, 13.0))
            .fold(width_bold(&title, 22.0) + LEGEND_WIDTH, f64::max);
        Self {
            title,
            lines,
            width,
        }
    }

    fn draw(&self, canvas: &mut Canvas, x: f64, y: f64) -> f64 {
        canvas.text(x, y + 20.0, "title", &self.title);
        let mut below = y + 42.0;
        for line in &self.lines {
            canvas.text(x, below, "subtitle", line);
            below += 19.0;
        }
        below + 8.0
    }
}

/// The link between packages that are next to each other, with the distance that firmware tells
fn draw_interconnect(canvas: &mut Canvas, machine: &Machine, rows: &Rows<'_>, x: f64, y: f64) {
    let mut x = x;
    for pair in rows.packages.windows(2) {
        x += pair[0].width;
        if pair.iter().all(|package| package.name.is_some()) {
            let distance = pair[0]
                .nodes
                .first()
                .and_then(NodeBlock::id)
                .and_then(|from| {
                    let to = pair[1].nodes.first().and_then(NodeBlock::id)?;
                    let position = machine.nodes.iter().position(|node| node.id == to)?;
                    let node = machine.nodes.iter().find(|node| node.id == from)?;
                    node.distances.get(position)
                });
            let middle = y + rows.head + PAD + 34.0;
            canvas.begin("the link between packages");
            canvas.rect(x, middle, GAP, 9.0, 0.0, "package");
            if let Some(distance) = distance {
                let text = distance.to_string();
                let left = x + (GAP - width(&text, 10.0)) / 2.0;
                canvas.text(left, middle - 4.0, "tiny", &text);
            }
            canvas.end();
        }
        x += GAP;
    }
}

/// Draws the meaning of the small squares, at the right of the title
fn legend(canvas: &mut Canvas, machine: &Machine, plan: Option<&Plan>, right: f64, y: f64) {
    let allowed =
        |cpu: &u32| machine.allowed_cpus.is_empty() || machine.allowed_cpus.contains(*cpu);
    let used = |cpu: &u32| {
        plan.is_some_and(|plan| plan.workers.iter().any(|worker| worker.cpus.contains(*cpu)))
    };
    let mut entries = Vec::new();
    if machine.online_cpus.iter().any(|cpu| !allowed(&cpu)) {
        entries.push(("thread forbidden", "not for this process"));
    }
    if machine
        .online_cpus
        .iter()
        .any(|cpu| allowed(&cpu) && !used(&cpu))
    {
        let text = if plan.is_some() {
            "no worker"
        } else {
            "core, by thread"
        };
        entries.push(("thread", text));
    }
    let mut x = right;
    for (class, text) in entries {
        x -= width(text, 11.0);
        canvas.text(x, y, "small", text);
        x -= 20.0;
        canvas.rect(x, y - 11.0, 14.0, 14.0, 3.0, class);
        x -= 16.0;
    }
}

/// The packages side by side, their GPUs on one line
struct Rows<'v> {
    packages: Vec<PackageBlock<'v>>,
    /// Height of what is above the bridges with GPUs, in any node
    upper: f64,
    /// Height above the GPUs in the bridges that have some
    above_gpus: f64,
    /// Height of a node
    height: f64,
    /// Height of the names of packages
    head: f64,
}

struct PackageBlock<'v> {
    name: Option<String>,
    nodes: Vec<NodeBlock<'v>>,
    width: f64,
}

impl<'v> Rows<'v> {
    fn new(view: &'v View) -> Self {
        let nodes = view.packages.iter().flat_map(|package| &package.nodes);
        let caches = nodes.flat_map(|node| &node.caches);
        let cores: usize = caches.map(|cache| cache.cores.len()).sum();
        let core = if cores > CORES_LARGE_MAX {
            CORE
        } else {
            CORE_LARGE
        };
        let mut packages: Vec<PackageBlock<'v>> = view
            .packages
            .iter()
            .map(|package| {
                PackageBlock::new(
                    package.id.map(|id| format!("Package {id}")),
                    package
                        .nodes
                        .iter()
                        .map(|node| NodeBlock::new(node, core))
                        .collect(),
                )
            })
            .collect();
        if !view.elsewhere.is_empty() {
            packages.push(PackageBlock::new(
                None,
                vec![NodeBlock::elsewhere(&view.elsewhere)],
            ));
        }
        let nodes = || packages.iter().flat_map(|package| &package.nodes);
        let with_gpus = || nodes().filter(|node| node.has_gpus());
        let highest = nodes().map(|node| node.upper).fold(0.0, f64::max);
        let upper = with_gpus().map(|node| node.upper).fold(0.0, f64::max);
        let above_gpus = with_gpus().map(NodeBlock::above_gpus).fold(0.0, f64::max);
        let lower = match with_gpus().count() {
            0 => 0.0,
            _ => above_gpus + bridges::GPU_HEIGHT + 2.0 * PAD,
        };
        let named = packages.iter().any(|package| package.name.is_some());
        Self {
            upper,
            above_gpus,
            height: highest.max(upper + lower) + PAD,
            head: if named { PACKAGE_HEAD } else { 0.0 },
            packages,
        }
    }
}

impl<'v> PackageBlock<'v> {
    fn new(name: Option<String>, nodes: Vec<NodeBlock<'v>>) -> Self {
        let inner = nodes.iter().map(|node| node.width).sum::<f64>()
            + PAD * nodes.len().saturating_sub(1) as f64;
        Self {
            name,
            width: inner + 2.0 * PAD,
            nodes,
        }
    }

    fn draw(&self, scene: &mut Scene<'_>, x: f64, y: f64, rows: &Rows<'_>) {
        let height = rows.height + rows.head + 2.0 * PAD;
        if let Some(name) = &self.name {
            scene.canvas.rect(x, y, self.width, height, 14.0, "package");
            scene.canvas.text(x + PAD + 2.0, y + 22.0, "heading", name);
        }
        let mut left = x + PAD;
        for node in &self.nodes {
            let top = y + rows.head + PAD;
            node.draw(scene, left, top, rows);
            left += node.width + PAD;
        }
    }
}

const MARGIN: f64 = 28.0;
const PAD: f64 = 12.0;
const GAP: f64 = 26.0;
const PACKAGE_HEAD: f64 = 20.0;
const INNER_WIDTH_MIN: f64 = 560.0;
const HEADER_WIDTH_MAX: f64 = 900.0;
const LEGEND_WIDTH: f64 = 300.0;
const CORE: f64 = 17.0;
/// Side of a core where there are few
const CORE_LARGE: f64 = 24.0;
const CORES_LARGE_MAX: usize = 64;

#[cfg(test)]
#[path = "svg/tests.rs"]
mod tests;
