//! `regard bench`.

use serde_json::Value;

use crate::{refused, run, stderr, stdout};

#[test]
fn a_table_of_rates_and_fractions() {
    let table =
        stdout(&run(["bench", "--quick", "--only", "EXP 8192", "--threads", "2"]).success());
    let lines: Vec<&str> = table.lines().collect();
    assert!(
        lines[0].starts_with("kernel") && lines[0].ends_with("fraction"),
        "{table}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("FMA peak") && line.contains("GFLOP/s")),
        "{table}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("stream") && line.contains("GB/s")),
        "{table}"
    );
    assert!(lines.last().unwrap().starts_with("exp "), "{table}");
}

#[test]
fn json_has_one_object_a_row() {
    let rows = stdout(&run(["bench", "--quick", "--json", "--only", "matmul"]).success());
    let rows: Vec<Value> = rows
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for row in &rows {
        for key in ["kernel", "shape", "dtype", "value", "unit", "fraction"] {
            assert!(row.get(key).is_some(), "{key} in {row}");
        }
    }
    let product = rows.last().unwrap();
    assert_eq!(product["kernel"], "matmul");
    assert!(
        product["value"].as_f64().unwrap() > 0.0 && product["fraction"].as_f64().unwrap() > 0.0
    );
}

/// Extra memory is a few tiles, whatever the length.
#[test]
fn attention_takes_no_memory_for_its_scores() {
    let rows = stdout(&run(["bench", "--memory", "--json", "--only", "l4096"]).success());
    let mut seen = 0;
    for row in rows.lines() {
        let row: Value = serde_json::from_str(row).unwrap();
        assert!(row["fraction"].as_f64().unwrap() < 0.1, "{row}");
        seen += 1;
    }
    assert!(seen > 0);
}

#[test]
fn a_pattern_that_fits_nothing_lists_the_kernels() {
    refused(
        ["bench", "--only", "quantum"],
        2,
        ["quantum", "dot forward", "adam"],
    );
    refused(["bench", "--memory", "--quick"], 2, ["--quick"]);
    let message = stderr(&run(["bench", "--only", "quantum"]));
    let (_, names) = message.split_once("the kernels are: ").unwrap();
    let mut names: Vec<&str> = names.trim().split(", ").collect();
    let listed = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), listed, "a name twice: {message}");
}
