//! NVLink, below the GPUs

use std::collections::BTreeMap;

use super::canvas::{Canvas, number};
use super::metrics::width;
use crate::distance::nvlink_between;
use crate::model::Machine;

/// Draws the links and says how far down the picture reaches then
///
/// `gpus` has the middle of the lower side of each GPU. Where every two GPUs have as many links,
/// as behind NVSwitch, a bar joins them; else an arc for each pair, the wider the more links.
pub(super) fn draw(
    canvas: &mut Canvas,
    machine: &Machine,
    gpus: &BTreeMap<u32, (f64, f64)>,
    bottom: f64,
) -> f64 {
    let order: Vec<u32> = {
        let mut order: Vec<u32> = gpus.keys().copied().collect();
        order.sort_by(|one, other| gpus[one].0.total_cmp(&gpus[other].0));
        order
    };
    let mut pairs: Vec<(u32, u32, u32)> = Vec::new();
    for (number, &one) in order.iter().enumerate() {
        for &other in &order[number + 1..] {
            if let Some(links) = nvlink_between(machine, one, other) {
                pairs.push((one, other, links));
            }
        }
    }
    let Some(&(_, _, links)) = pairs.first() else {
        return bottom;
    };
    let all = order.len() * (order.len() - 1) / 2;
    let uniform = pairs.iter().all(|&(_, _, other)| other == links);
    if order.len() > 3 && pairs.len() == all && uniform {
        return draw_fabric(canvas, gpus, links, bottom);
    }
    draw_arcs(canvas, gpus, &order, &pairs);
    let deepest = pairs
        .iter()
        .map(|&(one, other, _)| gpus[&one].1 + depth(gpus, one, other) * 0.75)
        .fold(bottom, f64::max);
    draw_legend(canvas, gpus, &pairs, deepest + 28.0)
}

fn draw_fabric(
    canvas: &mut Canvas,
    gpus: &BTreeMap<u32, (f64, f64)>,
    links: u32,
    bottom: f64,
) -> f64 {
    let left = gpus.values().map(|at| at.0).fold(f64::MAX, f64::min) - 24.0;
    let right = gpus.values().map(|at| at.0).fold(0.0, f64::max) + 24.0;
    let top = bottom + 22.0;
    for (x, y) in gpus.values() {
        let path = format!("M{} {}V{}", number(*x), number(*y), number(top));
        canvas.path(&path, 5.0, "nvlink");
    }
    canvas.rect(left, top, right - left, 30.0, 10.0, "fabric");
    let text = format!("NVLink ×{links} between every two GPUs");
    let x = f64::midpoint(left, right) - width(&text, 13.0) / 2.0;
    canvas.text(x, top + 20.0, "name", &text);
    top + 30.0
}

fn draw_arcs(
    canvas: &mut Canvas,
    gpus: &BTreeMap<u32, (f64, f64)>,
    order: &[u32],
    pairs: &[(u32, u32, u32)],
) {
    // Ends at one GPU are side by side, those of the farthest to the left outermost on the left
    let end = |gpu: u32, other: u32| {
        let mut partners: Vec<u32> = pairs
            .iter()
            .filter_map(|&(one, two, _)| match gpu {
                gpu if gpu == one => Some(two),
                gpu if gpu == two => Some(one),
                _ => None,
            })
            .collect();
        let place = |gpu: u32| order.iter().position(|&one| one == gpu).unwrap_or(0);
        let here = place(gpu);
        // Arcs to the left fan out leftwards: the nearest is next to the middle
        partners.sort_by_key(|&partner| {
            let there = place(partner);
            if there < here {
                (0, there)
            } else {
                (1, order.len() - there)
            }
        });
        partners.reverse();
        let (left, right): (Vec<u32>, Vec<u32>) =
            partners.iter().partition(|&&partner| place(partner) < here);
        let ends: Vec<u32> = left
            .into_iter()
            .rev()
            .chain(right.into_iter().rev())
            .collect();
        let at = ends.iter().position(|&one| one == other).unwrap_or(0);
        let step = 11.0;
        gpus[&gpu].0 + (at as f64 - (ends.len() as f64 - 1.0) / 2.0) * step
    };
    let mut arcs = pairs.to_vec();
    arcs.sort_by_key(|&(_, _, links)| links);
    for (one, other, links) in arcs {
        let (from, to) = (end(one, other), end(other, one));
        let (top, low) = (gpus[&one].1, gpus[&one].1 + depth(gpus, one, other));
        let path = format!(
            "M{x1} {y}C{x1} {low} {x2} {low} {x2} {y}",
            x1 = number(from),
            x2 = number(to),
            y = number(top),
            low = number(low)
        );
        canvas.begin(&format!("NVLink ×{links}: GPU {one} and GPU {other}"));
        canvas.path(&path, stroke(links), "nvlink");
        canvas.end();
    }
}

fn draw_legend(
    canvas: &mut Canvas,
    gpus: &BTreeMap<u32, (f64, f64)>,
    pairs: &[(u32, u32, u32)],
    y: f64,
) -> f64 {
    let mut counts: Vec<u32> = pairs.iter().map(|&(_, _, links)| links).collect();
    counts.sort_unstable();
    counts.dedup();
    let left = gpus.values().map(|at| at.0).fold(f64::MAX, f64::min);
    let right = gpus.values().map(|at| at.0).fold(0.0, f64::max);
    let wide = 70.0 + counts.len() as f64 * 84.0;
    let mut x = f64::midpoint(left, right) - wide / 2.0;
    canvas.text(x, y + 4.0, "heading", "NVLink");
    x += 70.0;
    for links in counts {
        let path = format!("M{} {}h34", number(x), number(y));
        canvas.path(&path, stroke(links), "nvlink");
        canvas.text(x + 44.0, y + 4.0, "small", &format!("×{links}"));
        x += 84.0;
    }
    y + 10.0
}

/// How far below the GPUs the control points of an arc are
fn depth(gpus: &BTreeMap<u32, (f64, f64)>, one: u32, other: u32) -> f64 {
    50.0 + 0.24 * (gpus[&one].0 - gpus[&other].0).abs()
}

fn stroke(links: u32) -> f64 {
    (0.4 + 1.7 * f64::from(links)).min(8.0)
}
