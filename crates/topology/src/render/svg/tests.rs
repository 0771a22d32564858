use super::*;
use crate::model::{Gpu, GpuInstance, Nic, NicKind, NumaNode, Place};
use crate::plan::{Options, Policy, plan};
use crate::read;

/// Names of elements with what is between them: enough of a parser for what we write
fn elements(svg: &str) -> Vec<(&str, &str)> {
    svg.split('<')
        .skip(1)
        .map(|part| part.split_once('>').expect("every element is closed"))
        .collect()
}

fn attribute<'s>(element: &'s str, name: &str) -> Option<&'s str> {
    let (_, rest) = element.split_once(&format!(" {name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

fn number_of(element: &str, name: &str) -> f64 {
    attribute(element, name)
        .and_then(|value| value.parse().ok())
        .expect(element)
}

/// Every element is inside the picture, every text by the widths of the widest font
fn check_bounds(svg: &str) {
    let elements = elements(svg);
    let (width, height) = (
        number_of(elements[0].0, "width"),
        number_of(elements[0].0, "height"),
    );
    let mut open = 0_i32;
    for (element, text) in elements {
        let name = element.split(' ').next().expect("there is a first part");
        match name {
            "text" => {
                let bold = ["title", "heading", "name"]
                    .contains(&attribute(element, "class").expect(element));
                let size = match attribute(element, "class").expect(element) {
                    "title" => 22.0,
                    "small" => 11.0,
                    "tiny" => 10.0,
                    _ => 13.0,
                };
                let text = text
                    .replace("&amp;", "&")
                    .replace("&lt;", "<")
                    .replace("&gt;", ">");
                let wide = if bold {
                    metrics::width_bold(&text, size)
                } else {
                    metrics::width(&text, size)
                };
                let right = number_of(element, "x") + wide;
                assert!(right <= width, "{text:?} reaches {right} of {width}");
                assert!(number_of(element, "y") <= height);
            }
            "rect" => {
                assert!(number_of(element, "width") > 0.0, "{element}");
                assert!(number_of(element, "height") > 0.0, "{element}");
                assert!(
                    number_of(element, "x") + number_of(element, "width") <= width + 0.01,
                    "{element}"
                );
                assert!(
                    number_of(element, "y") + number_of(element, "height") <= height + 0.01,
                    "{element}"
                );
            }
            "g" => open += 1,
            "/g" => open -= 1,
            _ => {}
        }
    }
    assert_eq!(open, 0, "every group is closed");
}

fn dgx1() -> Machine {
    let text = include_str!("../../../tests/fixtures/dgx-1.nvidia-smi.txt");
    read::parse(text, None).expect("the fixture is a table")
}

#[test]
fn everything_is_inside_the_picture() {
    let machine = dgx1();
    check_bounds(&svg(&machine, None));
    let options = Options {
        policy: Policy::PerGpu,
        interface: Some("ib".to_owned()),
        ..Options::default()
    };
    let plan = plan(&machine, &options).expect("there are GPUs");
    let svg = svg(&machine, Some(&plan));
    check_bounds(&svg);
    // 8 bars of GPUs, 8 cards, 8 dots, 80 CPUs of 4 workers each
    assert_eq!(svg.matches("fill=\"#").count(), 8 + 8 + 8 + 80 * 4);
    assert_eq!(svg.matches("NVLink ×2: GPU").count(), 8);
    assert_eq!(svg.matches("NVLink ×1: GPU").count(), 8);
}

#[test]
fn names_are_escaped_and_cut_to_fit() {
    let mut machine = dgx1();
    machine.name = "<script>alert(\"1\")</script> & \u{1} 'quoted'".to_owned();
    machine.cpu_model = "a very long name ".repeat(40);
    machine.gpus[0].name = "W".repeat(500);
    machine.nics.push(Nic {
        name: "<&>".repeat(30),
        kind: NicKind::Ethernet,
        place: Place {
            cpus: machine.gpus[0].place.cpus.clone(),
            ..Place::default()
        },
        ..Nic::default()
    });
    let svg = svg(&machine, None);
    check_bounds(&svg);
    assert!(!svg.contains("<script"));
    assert!(!svg.contains('\u{1}'));
    assert!(svg.contains("&lt;script&gt;"));
    // Whole as a tooltip, short as a text
    assert!(svg.contains(&"W".repeat(500)));
    assert!(svg.contains("WW…"));
}

#[test]
fn large_and_empty_machines_can_be_drawn() {
    check_bounds(&svg(&Machine::default(), None));
    let machine = Machine {
        name: "large".to_owned(),
        online_cpus: (0..1024).collect(),
        nodes: (0..16)
            .map(|id| NumaNode {
                id,
                cpus: (id * 64..(id + 1) * 64).collect(),
                distances: vec![10; 16],
                ..NumaNode::default()
            })
            .collect(),
        gpus: (0..72)
            .map(|index| Gpu {
                index,
                place: Place {
                    node: Some(index % 16),
                    ..Place::default()
                },
                instances: vec![GpuInstance::default(); 7],
                ..Gpu::default()
            })
            .collect(),
        ..Machine::default()
    };
    let options = Options {
        policy: Policy::N,
        n: Some(100),
        ..Options::default()
    };
    let plan = plan(&machine, &options).expect("enough CPUs");
    check_bounds(&svg(&machine, Some(&plan)));
}

#[test]
fn gpus_that_are_all_linked_hang_at_one_bar() {
    let text = include_str!("../../../tests/fixtures/dgx-a100.nvidia-smi.txt");
    let machine = read::parse(text, None).expect("the fixture is a table");
    let svg = svg(&machine, None);
    check_bounds(&svg);
    assert!(svg.contains("NVLink ×12 between every two GPUs"));
    assert!(!svg.contains("NVLink ×12: GPU"));
}
