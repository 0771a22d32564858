use super::*;

/// A table of two GPUs and a NIC; tests change it
const TABLE: &str = "\
\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV2\tPIX\t0-3\t0
GPU1\tNV2\t X \tSYS\t4-7\t1
mlx5_0\tPIX\tSYS\t X
";

fn error_of(text: &str) -> TableError {
    parse(text).expect_err(text)
}

#[test]
fn cells_become_links_paths_and_places() {
    let machine = parse(TABLE).expect("a table");
    assert_eq!(machine.gpus.len(), 2);
    assert_eq!(machine.gpus[1].place.cpus.to_string(), "4-7");
    assert_eq!(machine.gpus[1].place.node, Some(1));
    assert_eq!(machine.rdma[0].name, "mlx5_0");
    let link = NvLink {
        gpus: (0, 1),
        links: 2,
        version: None,
    };
    assert_eq!(machine.nvlinks, [link]);
    assert_eq!(machine.told_paths[0].path, PciPath::Pix);
    assert_eq!(
        machine.told_paths[1].devices,
        ("gpu1".to_owned(), "mlx5_0".to_owned())
    );
}

#[test]
fn blanks_tabs_and_line_ends_are_one() {
    let machine = parse(TABLE).expect("a table");
    assert_eq!(parse(&TABLE.replace('\t', "   ")), Ok(machine.clone()));
    assert_eq!(parse(&TABLE.replace('\n', "\r\n")), Ok(machine.clone()));
    let underlined = format!("\x1b[4m{}", TABLE.replacen('\n', "\x1b[0m\n", 1));
    assert_eq!(parse(&underlined), Ok(machine.clone()));
    let page = format!(
        "    $ nvidia-smi topo -m\n{}",
        TABLE.replace('\n', "\n    ")
    );
    assert_eq!(parse(&page), Ok(machine));
}

#[test]
fn a_bad_cell_is_named_with_its_line_and_column() {
    let error = error_of(&TABLE.replace("X \tSYS", "X \tSIS"));
    assert_eq!(
        error.to_string(),
        "line 3, column 4 (row GPU1, column mlx5_0): \"SIS\", \
         expected NV#, PIX, PXB, PHB, NODE or SYS"
    );
    let error = error_of(&TABLE.replace("4-7", "7-4"));
    assert_eq!(
        error.to_string(),
        "line 3, column 5 (row GPU1, column CPU Affinity): \"7-4\", \
         expected a list such as 0-19,40-59, or N/A"
    );
    for cell in ["NV", "NV0", "NVx", "NV-1", "NV99999999999", ""] {
        let text = TABLE.replacen("NV2", cell, 1);
        assert!(
            matches!(
                error_of(&text),
                TableError::BadCell { .. } | TableError::MissingCells { .. }
            ),
            "{text}"
        );
    }
}

#[test]
fn nvlink_to_a_nic_is_refused() {
    let error = error_of(&TABLE.replace("PIX", "NV1"));
    assert!(error.to_string().contains("NV# between two GPUs only"));
}

#[test]
fn two_words_for_one_pair_are_refused() {
    let error = error_of(&TABLE.replacen("NV2", "PIX", 1));
    assert_eq!(
        error.to_string(),
        "line 3, column 2 (row GPU1, column GPU0): \"NV2\", \
         but line 2 says \"PIX\" of the same two devices"
    );
}

#[test]
fn rows_and_columns_must_match() {
    let row = "GPU1\tNV2\t X \tSYS\t4-7\t1\n";
    assert_eq!(
        error_of(&TABLE.replace(row, "")),
        TableError::MissingRow {
            line: 1,
            name: "GPU1".to_owned()
        }
    );
    let twice = TABLE.replace(row, &row.repeat(2));
    assert!(matches!(
        error_of(&twice),
        TableError::DuplicateRow { line: 4, .. }
    ));
    let unknown = TABLE.replace("\nmlx5_0", "\nmlx5_1");
    assert_eq!(
        error_of(&unknown).to_string(),
        "line 4, column 1: \"mlx5_1\" is not the name of a column"
    );
    for columns in ["\tGPU0\tGPU0\t", "\tGPU0\tGPU00\t"] {
        assert!(matches!(
            error_of(&TABLE.replacen("\tGPU0\tGPU1\t", columns, 1)),
            TableError::DuplicateColumn { column: 3, .. }
        ));
    }
    let short = TABLE.replace("GPU0\t X \tNV2\tPIX\t0-3\t0", "GPU0\t X \tNV2");
    assert!(matches!(
        error_of(&short),
        TableError::MissingCells {
            line: 2,
            cells: 2,
            columns: 3,
            ..
        }
    ));
    let long = TABLE.replace("0-3\t0", "0-3\t0\t5\tSYS");
    assert!(matches!(
        error_of(&long),
        TableError::ExtraCell { line: 2, .. }
    ));
}

#[test]
fn a_text_without_header_or_table_is_refused() {
    assert_eq!(error_of("No devices were found\n"), TableError::NoTable);
    assert_eq!(error_of(""), TableError::NoTable);
    let headless = TABLE.split_once('\n').expect("lines").1;
    assert_eq!(error_of(headless), TableError::NoHeader { line: 1 });
}

#[test]
fn rows_of_nics_may_be_left_out() {
    let text = TABLE.split_once("\nmlx5_0").expect("a row").0;
    let machine = parse(text).expect("a table");
    assert_eq!(machine.told_paths.len(), 2);
}

#[test]
fn words_of_old_drivers_and_columns_of_new_ones_are_read() {
    let old = parse(&TABLE.replace("SYS", "SOC").replace("PIX", "PSB")).expect("an old table");
    assert_eq!(old.told_paths, parse(TABLE).expect("a table").told_paths);
    let new = TABLE
        .replace("NUMA Affinity", "NUMA Affinity\tSomething New")
        .replace("0-3\t0", "0-3\t0\t5");
    let machine = parse(&new).expect("a newer table");
    assert_eq!(machine.gpus, parse(TABLE).expect("a table").gpus);
    assert!(machine.notes[0].contains("Something New"));
}

#[test]
fn a_legend_names_nics_once() {
    let table = TABLE.replace("mlx5_0", "NIC0");
    let machine = parse(&table).expect("a table");
    assert_eq!(machine.rdma[0].name, "NIC0");
    assert!(machine.notes.iter().any(|note| note.contains("NIC0")));
    let text = format!("{table}\nNIC Legend:\n\n  NIC0: mlx5_4\n");
    assert_eq!(parse(&text).expect("a table").rdma[0].name, "mlx5_4");
    let text = format!("{table}\nNIC Legend:\n\n  NIC0: gpu0\n");
    assert!(matches!(
        error_of(&text),
        TableError::BadLegend { line: 8, .. }
    ));
}
