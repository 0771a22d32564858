//! The workers of a plan, each on a card in its colour

use super::canvas::Canvas;
use super::colours::Colours;
use super::metrics::{fit, fit_bold, width};
use crate::plan::{Plan, WorkerPlan, memory_text};

/// Draws the cards in rows and says how far down the picture reaches then
pub(super) fn draw(
    canvas: &mut Canvas,
    plan: &Plan,
    colours: &Colours<'_>,
    x: f64,
    y: f64,
    inner: f64,
) -> f64 {
    let heading = format!("Workers, {}", plan.policy);
    canvas.text(x, y + 14.0, "heading", &heading);
    let cards: Vec<(&WorkerPlan, &str, Vec<String>)> = colours
        .all()
        .map(|(worker, colour)| (worker, colour, lines(worker)))
        .collect();
    let wanted = cards
        .iter()
        .flat_map(|(_, _, lines)| lines)
        .map(|line| width(line, 11.0) + 36.0)
        .fold(CARD_WIDTH_MIN, f64::max)
        .min(CARD_WIDTH_MAX);
    let columns = (((inner + GAP) / (wanted + GAP)) as usize)
        .min(cards.len())
        .max(1);
    // As many in each row as there can be with no row more
    let columns = cards
        .len()
        .div_ceil(cards.len().div_ceil(columns).max(1))
        .max(1);
    let card_width = (inner + GAP) / columns as f64 - GAP;
    let card_width = card_width.min(CARD_WIDTH_MAX);
    let tallest = cards.iter().map(|(_, _, lines)| lines.len()).max();
    let height = 30.0 + 15.0 * tallest.unwrap_or(0) as f64;
    let mut top = y + 26.0;
    for row in cards.chunks(columns) {
        let mut left = x;
        for (worker, colour, lines) in row {
            canvas.begin(&worker.why);
            canvas.rect(left, top, card_width, height, 9.0, "card");
            canvas.fill(left, top, 7.0, height, 3.5, colour);
            let room = card_width - 30.0;
            let text_x = left + 18.0;
            canvas.text(
                text_x,
                top + 20.0,
                "name",
                &fit_bold(&worker.name, 13.0, room),
            );
            let mut line_y = top + 37.0;
            for line in lines {
                canvas.text(text_x, line_y, "small", &fit(line, 11.0, room));
                line_y += 15.0;
            }
            canvas.end();
            left += card_width + GAP;
        }
        top += height + GAP;
    }
    top - GAP
}

fn lines(worker: &WorkerPlan) -> Vec<String> {
    let mut lines = vec![format!("CPUs {}", worker.cpus)];
    let threads = match worker.threads {
        1 => "1 thread".to_owned(),
        threads => format!("{threads} threads"),
    };
    let mut parts = vec![threads];
    if worker.memory_bytes > 0 {
        parts.push(memory_text(worker.memory_bytes));
    }
    if !worker.memory_nodes.is_empty() {
        let nodes: Vec<String> = worker.memory_nodes.iter().map(u32::to_string).collect();
        parts.push(format!("node {}", nodes.join(", ")));
    }
    lines.push(parts.join(" · "));
    if worker.gpus.len() > 1 {
        let gpus: Vec<String> = worker
            .gpus
            .iter()
            .map(|gpu| gpu.index.to_string())
            .collect();
        lines.push(format!("GPUs {}", gpus.join(" ")));
    }
    match (&worker.nic, &worker.rdma) {
        (Some(nic), Some(rdma)) if nic != rdma => lines.push(format!("{nic} · {rdma}")),
        (Some(name), _) | (None, Some(name)) => lines.push(name.clone()),
        (None, None) => {}
    }
    lines
}

const CARD_WIDTH_MIN: f64 = 150.0;
const CARD_WIDTH_MAX: f64 = 380.0;
const GAP: f64 = 10.0;
