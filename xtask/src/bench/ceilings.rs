//! `cargo xtask bench --ceilings`: what the machine can do at best. The loops are those of the program
//! `ceilings` in `benches`; here its numbers become a table.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::{machine, processor, shell, table};

/// Measure with each number of threads, print and save.
pub(super) fn run(threads: &[usize], quick: bool, out: Option<PathBuf>) -> Result<()> {
    let list = threads.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut command = shell::cargo();
    command.args(["run", "--release", "--quiet", "--package", "realizar-benches"]);
    command.args(["--bin", "ceilings", "--", "--threads", &list]);
    if quick {
        command.arg("--quick");
    }
    let measured = shell::json(&mut command)?;
    let rows = measured["rows"].as_array().context("no rows")?;
    let rendered = render(threads, rows)?;
    println!("{rendered}");
    let folder = machine::run_folder(out, "")?;
    fs::create_dir_all(&folder)?;
    let path = folder.join("ceilings.json");
    let json = json!({"cpu": processor::name(), "rows": rows});
    fs::write(&path, serde_json::to_string_pretty(&json)? + "\n")?;
    let text = format!(
        "# Ceilings of {}\n\nMade by `cargo xtask bench --ceilings -t {list}`: the tenth of the samples \
         that were fastest, in\nall threads together. One multiply-add is two operations.\n\n{rendered}",
        processor::name()
    );
    fs::write(folder.join("ceilings.md"), text)?;
    println!("saved in {}", folder.display());
    Ok(())
}

/// One line per measurement, one column per number of threads.
fn render(threads: &[usize], rows: &[Value]) -> Result<String> {
    let mut lines: Vec<Vec<String>> = Vec::new();
    for row in rows {
        let text = |key: &str| row[key].as_str().with_context(|| format!("no {key} in {row}"));
        let start = [text("what")?, text("how")?, text("unit")?].map(str::to_owned).to_vec();
        if lines.iter().any(|line| line[..3] == start[..]) {
            continue;
        }
        let is_same = |r: &Value| r["what"] == row["what"] && r["how"] == row["how"];
        let mut line = start;
        for &n in threads {
            let value = rows.iter().find(|r| is_same(r) && r["threads"] == n);
            let value = value.and_then(|r| r["value"].as_f64());
            line.push(value.map_or_else(|| "-".to_owned(), |v| format!("{v:.1}")));
        }
        lines.push(line);
    }
    let counts: Vec<String> = threads
        .iter()
        .map(|&n| if n == 1 { "1 thread".to_owned() } else { format!("{n} threads") })
        .collect();
    let mut header = vec!["what", "how", "unit"];
    header.extend(counts.iter().map(String::as_str));
    Ok(table::render(&header, &lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_is_one_line() {
        let row = |how: &str, threads: usize, value: f64| {
            json!({"what": "DRAM read", "how": how,
            "threads": threads, "value": value, "unit": "GB/s"})
        };
        let rows = [row("1 stream", 1, 15.0), row("4 streams", 1, 21.5), row("1 stream", 2, 30.0)];
        let text = render(&[1, 2], &rows).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[2], "| DRAM read | 1 stream  | GB/s | 15.0     | 30.0      |");
        assert_eq!(lines[3], "| DRAM read | 4 streams | GB/s | 21.5     | -         |");
        assert!(render(&[1], &[json!({"what": "x"})]).is_err());
    }
}
