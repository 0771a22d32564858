//! A plan as text

use std::fmt::Write as _;

use super::matrix::table;
use crate::plan::{Plan, WorkerPlan, memory_text};

/// The workers of a plan as a table, with its explanation and its warnings
#[must_use]
pub fn workers(plan: &Plan) -> String {
    let mut text = format!("Plan {}\n\n", plan.policy);
    let columns: [Column; 7] = [
        ("CPUs", |worker| worker.cpus.to_string()),
        ("threads", |worker| worker.threads.to_string()),
        ("memory", |worker| match worker.memory_bytes {
            0 => String::new(),
            bytes => memory_text(bytes),
        }),
        ("of node", |worker| numbers(&worker.memory_nodes)),
        ("GPUs", |worker| {
            let gpus: Vec<u32> = worker.gpus.iter().map(|gpu| gpu.index).collect();
            numbers(&gpus)
        }),
        ("interface", |worker| worker.nic.clone().unwrap_or_default()),
        ("RDMA", |worker| worker.rdma.clone().unwrap_or_default()),
    ];
    let mut rows = vec![vec!["worker".to_owned()]];
    rows.extend(plan.workers.iter().map(|worker| vec![worker.name.clone()]));
    for (title, cell) in columns {
        let cells: Vec<String> = plan.workers.iter().map(cell).collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            rows[0].push(title.to_owned());
            for (row, cell) in rows[1..].iter_mut().zip(cells) {
                row.push(cell);
            }
        }
    }
    text += &table(&rows);
    text.push('\n');
    for line in &plan.explanation {
        let _ = writeln!(text, "{line}");
    }
    for warning in &plan.warnings {
        let _ = writeln!(text, "Warning: {warning}");
    }
    text
}

/// A title, and what it says of a worker
type Column = (&'static str, fn(&WorkerPlan) -> String);

fn numbers(numbers: &[u32]) -> String {
    let texts: Vec<String> = numbers.iter().map(u32::to_string).collect();
    texts.join(",")
}
