//! Every target takes every seed and every input that once broke it: `fixtures/fuzz/TARGET/`.

use realizar_fuzz::TARGETS;
use std::fs;
use std::path::PathBuf;

#[test]
fn seeds_and_found_inputs_break_nothing() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/fuzz");
    for target in TARGETS {
        let folder = folder.join(target.name);
        let entries = fs::read_dir(&folder).expect("a folder of seeds for each target");
        let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        files.sort();
        assert!(!files.is_empty(), "{} has no seeds", target.name);
        for file in files {
            // Shown where the test fails.
            println!("{}", file.display());
            (target.run)(&fs::read(&file).expect("a seed"));
        }
    }
}

#[test]
fn the_folder_holds_nothing_else() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/fuzz");
    for entry in fs::read_dir(folder).expect("the folder of seeds") {
        let name = entry.expect("an entry").file_name();
        let is_target = TARGETS.iter().any(|target| name == target.name);
        assert!(is_target || name == "README.md", "{}", name.display());
    }
}
