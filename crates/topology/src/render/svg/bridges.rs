//! Host bridges, switches and the devices behind them

use super::Scene;
use super::canvas::Canvas;
use super::metrics::{fit, fit_bold, width, width_bold};
use crate::distance::Device;
use crate::render::devices::DeviceView;
use crate::render::view::BridgeView;

/// Devices behind a host bridge, measured
#[derive(Debug)]
pub(super) struct BridgeBlock<'v> {
    name: Option<&'v str>,
    groups: Vec<Group<'v>>,
    pub(super) width: f64,
}

/// Devices behind one switch, or behind none
#[derive(Debug)]
struct Group<'v> {
    name: Option<&'static str>,
    gpus: Vec<&'v DeviceView>,
    /// Devices that are not GPUs, in rows
    others: Vec<Vec<&'v DeviceView>>,
    card_width: f64,
    width: f64,
}

impl<'v> BridgeBlock<'v> {
    pub(super) fn new(bridge: &'v BridgeView) -> Self {
        let mut groups: Vec<Group<'v>> = bridge
            .switches
            .iter()
            .map(|switch| Group::new(Some(switch.name), switch.devices.iter().collect()))
            .collect();
        if !bridge.alone.is_empty() {
            groups.push(Group::new(None, bridge.alone.iter().collect()));
        }
        let name = bridge.name.as_deref();
        let inner = groups.iter().map(|group| group.width).sum::<f64>()
            + GAP * groups.len().saturating_sub(1) as f64;
        let label = name.map_or(0.0, |name| width(name, 10.0) + 4.0);
        Self {
            name,
            groups,
            width: inner.max(label) + 2.0 * GAP,
        }
    }

    pub(super) fn has_gpus(&self) -> bool {
        self.groups.iter().any(|group| !group.gpus.is_empty())
    }

    /// Height of what is above the GPUs
    pub(super) fn above_gpus(&self) -> f64 {
        let groups = self.groups.iter().map(Group::above_gpus);
        self.head() + groups.fold(0.0, f64::max)
    }

    /// Height if it has no GPUs
    pub(super) fn height(&self) -> f64 {
        self.above_gpus() + GAP
    }

    fn head(&self) -> f64 {
        if self.name.is_some() { HEAD } else { GAP }
    }

    /// Draws the block, its GPUs `above_gpus` below `y`
    pub(super) fn draw(&self, scene: &mut Scene<'_>, x: f64, y: f64, above_gpus: f64) {
        let height = if self.has_gpus() {
            above_gpus + GPU_HEIGHT + 2.0 * GAP
        } else {
            self.height()
        };
        scene.canvas.rect(x, y, self.width, height, 10.0, "bridge");
        if let Some(name) = self.name {
            scene.canvas.begin("host bridge");
            scene.canvas.text(x + GAP + 2.0, y + 14.0, "tiny", name);
            scene.canvas.end();
        }
        let inner = self.groups.iter().map(|group| group.width).sum::<f64>()
            + GAP * self.groups.len().saturating_sub(1) as f64;
        let mut left = x + (self.width - inner) / 2.0;
        for group in &self.groups {
            let top = y + self.head();
            group.draw(scene, left, top, y + above_gpus);
            left += group.width + GAP;
        }
    }
}

impl<'v> Group<'v> {
    fn new(name: Option<&'static str>, devices: Vec<&'v DeviceView>) -> Self {
        let (gpus, others): (Vec<_>, Vec<_>) = devices
            .into_iter()
            .partition(|view| matches!(view.device, Device::Gpu(_)));
        // Cards are as wide as the widest text, within bounds
        let card_width = gpus
            .iter()
            .chain(&others)
            .map(|view| width_bold(&view.name, 13.0).max(width(&short(&view.what), 10.0)) + 22.0)
            .fold(CARD_WIDTH_MIN, f64::max)
            .min(CARD_WIDTH_MAX);
        let columns = match gpus.len() {
            0 => others.len().clamp(1, 2),
            gpus => gpus,
        };
        let rows: Vec<Vec<&DeviceView>> = others.chunks(columns).map(<[_]>::to_vec).collect();
        let widest = rows.iter().map(Vec::len).max().unwrap_or(0).max(gpus.len());
        let inner = widest as f64 * (card_width + GAP) - GAP;
        let around = if name.is_some() { 2.0 * GAP } else { 0.0 };
        Self {
            name,
            gpus,
            others: rows,
            card_width,
            width: inner + around,
        }
    }

    fn head(&self) -> f64 {
        if self.name.is_some() { HEAD } else { 0.0 }
    }

    fn above_gpus(&self) -> f64 {
        let rows = self.others.len() as f64 * (CARD_HEIGHT + GAP);
        // Below a switch's last row is its own border
        let border = if self.name.is_some() && self.gpus.is_empty() {
            GAP
        } else {
            0.0
        };
        self.head() + rows - if self.gpus.is_empty() { GAP } else { 0.0 } + border
    }

    fn draw(&self, scene: &mut Scene<'_>, x: f64, y: f64, gpus_y: f64) {
        if let Some(name) = self.name {
            let bottom = if self.gpus.is_empty() {
                y + self.above_gpus()
            } else {
                gpus_y + GPU_HEIGHT + GAP
            };
            scene
                .canvas
                .rect(x, y, self.width, bottom - y, 9.0, "switch");
            scene.canvas.text(x + GAP + 1.0, y + 14.0, "tiny", name);
        }
        let mut top = y + self.head();
        for row in &self.others {
            for (view, left) in row.iter().zip(self.lefts(x, row.len())) {
                self.draw_card(scene, view, left, top);
            }
            top += CARD_HEIGHT + GAP;
        }
        for (view, left) in self.gpus.iter().zip(self.lefts(x, self.gpus.len())) {
            self.draw_gpu(scene, view, left, gpus_y);
            if let Device::Gpu(index) = view.device {
                scene
                    .gpus
                    .insert(index, (left + self.card_width / 2.0, gpus_y + GPU_HEIGHT));
            }
        }
    }

    /// Left sides of `cards` cards in the middle
    fn lefts(&self, x: f64, cards: usize) -> impl Iterator<Item = f64> {
        let step = self.card_width + GAP;
        let inner = cards as f64 * step - GAP;
        let first = x + (self.width - inner) / 2.0;
        (0..cards).map(move |card| first + card as f64 * step)
    }

    fn draw_card(&self, scene: &mut Scene<'_>, view: &DeviceView, x: f64, y: f64) {
        let class = match view.device {
            Device::Disk(_) => "disk",
            _ => "nic",
        };
        let class = if view.off {
            format!("{class} off")
        } else {
            class.to_owned()
        };
        scene.canvas.begin(&view.line());
        scene
            .canvas
            .rect(x, y, self.card_width, CARD_HEIGHT, 7.0, &class);
        let room = self.card_width - 18.0;
        let text_y = if view.what.is_empty() { 23.0 } else { 16.0 };
        scene.canvas.text(
            x + 9.0,
            y + text_y,
            "name",
            &fit_bold(&view.name, 13.0, room),
        );
        scene
            .canvas
            .text(x + 9.0, y + 30.0, "tiny", &fit(&view.what, 10.0, room));
        let mut users: Vec<&str> = Vec::new();
        for name in &view.names {
            for colour in scene.colours.of_network(name) {
                if !users.contains(&colour) {
                    users.push(colour);
                }
            }
        }
        let most = ((self.card_width - 12.0) / 9.0) as usize;
        for (number, colour) in users.iter().take(most).enumerate() {
            let right = x + self.card_width - 8.0 - 9.0 * number as f64;
            scene.canvas.circle(right, y + CARD_HEIGHT, 4.2, colour);
        }
        scene.canvas.end();
    }

    fn draw_gpu(&self, scene: &mut Scene<'_>, view: &DeviceView, x: f64, y: f64) {
        let Device::Gpu(index) = view.device else {
            return;
        };
        scene.canvas.begin(&view.line());
        scene
            .canvas
            .rect(x, y, self.card_width, GPU_HEIGHT, 8.0, "gpu");
        let room = self.card_width - 20.0;
        let what = short(&view.what);
        let text_y = if what.is_empty() { 29.0 } else { 21.0 };
        scene.canvas.text(
            x + 11.0,
            y + text_y,
            "name",
            &fit_bold(&view.name, 13.0, room),
        );
        scene
            .canvas
            .text(x + 11.0, y + 36.0, "tiny", &fit(&what, 10.0, room));
        let parts = scene
            .machine
            .gpus
            .iter()
            .find(|gpu| gpu.index == index)
            .map_or(0, |gpu| gpu.instances.len());
        let users = scene.colours.of_gpu(index);
        let inner = self.card_width - 8.0;
        let bar = |canvas: &mut Canvas, number: usize, of: usize, colour: Option<&str>| {
            let part = (inner + 2.0) / of as f64;
            let left = x + 4.0 + part * number as f64;
            match colour {
                Some(colour) => canvas.fill(left, y + 3.0, part - 2.0, 4.0, 2.0, colour),
                None => canvas.rect(left, y + 3.0, part - 2.0, 4.0, 2.0, "instance"),
            }
        };
        if parts > 0 {
            for part in 0..parts {
                bar(&mut scene.canvas, part, parts, users.get(part).copied());
            }
        } else if let Some(colour) = users.first() {
            bar(&mut scene.canvas, 0, 1, Some(colour));
        }
        scene.canvas.end();
    }
}

/// A model without the name of its maker
fn short(model: &str) -> String {
    let model = model.trim_start_matches("NVIDIA ");
    model.trim_start_matches("Tesla ").to_owned()
}

pub(super) const GPU_HEIGHT: f64 = 46.0;
const CARD_HEIGHT: f64 = 38.0;
const CARD_WIDTH_MIN: f64 = 74.0;
const CARD_WIDTH_MAX: f64 = 150.0;
const GAP: f64 = 8.0;
const HEAD: f64 = 20.0;
