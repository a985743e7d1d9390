//! The document of models lists the architectures of the registry, and no others.

use std::collections::BTreeSet;
use std::path::Path;

use realizar_runtime::{supported_gguf, supported_hf};

#[test]
fn the_document_lists_the_architectures_of_the_registry() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/models.md");
    let document = std::fs::read_to_string(path).unwrap();
    let (_, table) = document.split_once("## Architectures").unwrap();
    let table = table.split_once("\n## ").map_or(table, |(table, _)| table);
    let (mut names, mut model_types) = (BTreeSet::new(), BTreeSet::new());
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let mut cells = row.split('|').skip(1);
        let quoted = |cell: &str| -> Vec<String> {
            cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
        };
        names.extend(quoted(cells.next().unwrap()));
        model_types.extend(quoted(cells.next().unwrap()));
    }
    let set = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
    // The file is written by `cargo xtask parity --table`.
    assert_eq!(names, set(supported_gguf()));
    assert_eq!(model_types, set(supported_hf()));
}
