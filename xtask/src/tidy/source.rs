//! Checks of one Rust file: header, length, and what must not be written.

use std::path::Path;

use super::Finding;
use super::lexer::code_only;

/// The maximum number of lines a file may have before its tests.
const MAX_LINES: usize = 600;

/// What code must not contain, and why.
const FORBIDDEN: &[(&str, &str)] = &[
    ("include!(", "write a module instead of including code"),
    ("#[ignore", "a test that does not run hides a failure"),
    ("todo!(", "unfinished code"),
    ("unimplemented!(", "unfinished code"),
    ("#![allow", "no lint is allowed for a whole crate or module"),
];

/// The one file of the crates that starts programs.
const STARTS_PROGRAMS: &str = "crates/cli/src/program.rs";

/// The one file of the crates that writes to standard output and standard error.
const WRITES_TO_TERMINALS: &str = "crates/cli/src/screen.rs";

/// The one file of the crates that opens what came with a model.
const OPENS_FILES: &str = "crates/base/src/regular.rs";

/// Files of the crates that read what the system says of itself, or what the user names, which may be a pipe.
const READS_OTHERS: &[&str] = &[
    "crates/cli/src/commands/chat/conversation.rs",
    "crates/cli/src/commands/launch/agents.rs",
    "crates/cli/src/commands/launch/server.rs",
    "crates/cli/src/commands/serve/config.rs",
    "crates/cli/src/config.rs",
    "crates/cli/src/engine.rs",
    "crates/cli/src/grammar.rs",
    "crates/cli/src/mcp/config.rs",
    "crates/cli/src/options.rs",
    "crates/cli/src/source/hub.rs",
    "crates/formats/src/free_memory.rs",
    "crates/kernels-cpu/src/memory.rs",
    "crates/kernels-cpu/src/topology.rs",
    "crates/backends/src/cpu/free.rs",
    "crates/runtime/src/run/device/list.rs",
];

/// The sources of the CUDA kernels' functions.
const KERNELS: &str = "crates/kernels-cuda/src";

/// How a program writes there.
const STREAMS: [&str; 7] =
    ["stdout(", "stderr(", "print!(", "println!(", "eprint!(", "eprintln!(", "Term::std"];

/// Check one Rust file.
pub(super) fn check(file: &Path, text: &str) -> Vec<Finding> {
    let code = code_only(text);
    let mut findings = Vec::from_iter(header(file, text));
    findings.extend(length(file, text));
    findings.extend(forbidden(file, &code));
    findings.extend(reasons(file, &code));
    findings.extend(programs(file, text, &code));
    findings.extend(streams(file, text, &code));
    findings.extend(opened(file, text, &code));
    findings.extend(closed_enums(file, &code));
    findings.extend(kernel_tests(file, &code));
    findings
}

/// Tests of kernels run on GPUs without Rust, too: each is in the list of its module, which the attribute `test` would keep it
/// out of.
fn kernel_tests(file: &Path, code: &str) -> Vec<Finding> {
    let is_kernels = file.starts_with(KERNELS) && file != Path::new(KERNELS).join("tests.rs");
    if !is_kernels || !code.contains("testing::") {
        return Vec::new();
    }
    let plain = code.lines().enumerate().filter(|(_, line)| line.trim() == "#[test]");
    let message = "write `#[cfg_attr(test, test)]` and add the test to `testing::tests!`";
    plain.map(|(idx, _)| Finding::new(file, idx + 1, message)).collect()
}

/// The number of lines before `#[cfg(test)] mod …` at the file's end, or one for tests of one system or that a feature
/// compiles, too; all lines without it.
pub(super) fn code_lines(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines.windows(2).position(|pair| {
        let is_test = ["#[cfg(test)]", "#[cfg(all(test,", "#[cfg(any(test,"]
            .iter()
            .any(|start| pair[0].starts_with(start));
        let module = pair[1].strip_prefix("pub(super) ").unwrap_or(pair[1]);
        is_test && module.starts_with("mod ") && !module.ends_with(';')
    });
    tests.unwrap_or(lines.len())
}

fn header(file: &Path, text: &str) -> Option<Finding> {
    (!text.starts_with("//!")).then(|| Finding::new(file, 1, "no `//!` header"))
}

fn length(file: &Path, text: &str) -> Option<Finding> {
    let lines = code_lines(text);
    (lines > MAX_LINES)
        .then(|| Finding::new(file, 0, format!("{lines} lines, at most {MAX_LINES} are allowed")))
}

fn forbidden(file: &Path, code: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (idx, line) in code.lines().enumerate() {
        for (word, why) in FORBIDDEN {
            let hit = line.match_indices(word).any(|(at, _)| {
                let before = line[..at].chars().next_back();
                before.is_none_or(|c| !c.is_alphanumeric() && c != '_')
            });
            if hit {
                findings.push(Finding::new(file, idx + 1, format!("`{word}`: {why}")));
            }
        }
    }
    findings
}

/// `allow` and `expect` attributes carry a `reason`.
fn reasons(file: &Path, code: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for start in ["#[allow(", "#[expect("] {
        for (at, _) in code.match_indices(start) {
            let attribute = code[at..].split_once(']').map_or(&code[at..], |(a, _)| a);
            if !attribute.contains("reason") {
                let line = code[..at].matches('\n').count() + 1;
                findings.push(Finding::new(file, line, format!("`{start}…)]` without a reason")));
            }
        }
    }
    findings
}

/// Programs are started in one place, which decides what they see of their surroundings.
fn programs(file: &Path, text: &str, code: &str) -> Vec<Finding> {
    let is_start = |line: &str| line.contains("Command::new(");
    only_in(STARTS_PROGRAMS, file, text, code, is_start, "a program is started")
}

/// Standard output and standard error are written in one place, which makes signs of what a terminal would obey.
fn streams(file: &Path, text: &str, code: &str) -> Vec<Finding> {
    let is_stream = |line: &str| {
        let mut found = STREAMS.iter().flat_map(|name| line.match_indices(name));
        found.any(|(at, _)| {
            let before = &line[..at];
            let is_whole = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '.');
            is_whole && !before.ends_with("screen::")
        })
    };
    only_in(WRITES_TO_TERMINALS, file, text, code, is_stream, "a standard stream is used")
}

/// Files of a model are opened in one place, which opens nothing but regular files.
fn opened(file: &Path, text: &str, code: &str) -> Vec<Finding> {
    if READS_OTHERS.iter().any(|other| file == Path::new(other)) {
        return Vec::new();
    }
    let is_opened = |line: &str| {
        ["File::open(", "fs::read(", "fs::read_to_string("].iter().any(|name| line.contains(name))
    };
    only_in(OPENS_FILES, file, text, code, is_opened, "a file is opened")
}

/// The lines of the crates' sources outside of `place` for which `is_found` holds, tests aside.
fn only_in(
    place: &str,
    file: &Path,
    text: &str,
    code: &str,
    is_found: impl Fn(&str) -> bool,
    about: &str,
) -> Vec<Finding> {
    let parts: Vec<_> = file.iter().collect();
    let is_source = parts.first().is_some_and(|part| *part == "crates")
        && parts.get(2).is_some_and(|part| *part == "src");
    let is_test = parts
        .iter()
        .any(|part| ["tests", "tests.rs", "testing.rs"].iter().any(|test| part == test));
    if !is_source || is_test || file == Path::new(place) {
        return Vec::new();
    }
    let lines = code.lines().take(code_lines(text)).enumerate();
    let found = lines.filter(|(_, line)| is_found(line));
    found
        .map(|(idx, _)| Finding::new(file, idx + 1, format!("{about} outside of {place}")))
        .collect()
}

/// Public enums of errors and events of the libraries may get further variants without breaking a program.
fn closed_enums(file: &Path, code: &str) -> Vec<Finding> {
    let parts: Vec<_> = file.iter().collect();
    let is_library = parts.first().is_some_and(|part| *part == "crates")
        && parts.get(1).is_some_and(|part| *part != "cli")
        && parts.get(2).is_some_and(|part| *part == "src");
    let lines: Vec<&str> = code.lines().collect();
    let is_closed = |idx: usize| {
        let name = lines[idx].strip_prefix("pub enum ").unwrap_or_default();
        let name = name.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        let above = lines[..idx].iter().rev().take_while(|line| !line.trim().is_empty());
        ["Error", "Event", "Fault"].iter().any(|end| name.ends_with(end))
            && !above.into_iter().any(|line| line.trim() == "#[non_exhaustive]")
    };
    let closed = (0..lines.len()).filter(|&idx| is_library && is_closed(idx));
    let message = "a public enum of errors or events without `#[non_exhaustive]`";
    closed.map(|idx| Finding::new(file, idx + 1, message)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enums_of_errors_and_events_are_open() {
        for (file, text, expected) in [
            ("crates/a/src/error.rs", "//! A.\n#[derive(Debug)]\npub enum Error {\n", 1),
            ("crates/a/src/b.rs", "//! A.\npub enum CacheEvent<'a> {\n", 1),
            ("crates/a/src/b.rs", "//! A.\n#[non_exhaustive]\npub enum Event<'a> {\n", 0),
            (
                "crates/a/src/b.rs",
                "//! A.\n#[non_exhaustive]\n#[derive(Debug)]\npub enum Error {\n",
                0,
            ),
            ("crates/a/src/b.rs", "//! A.\npub enum Kind {\n", 0),
            ("crates/a/src/b.rs", "//! A.\npub(crate) enum Event {\n", 0),
            ("crates/cli/src/b.rs", "//! A.\npub enum Error {\n", 0),
            ("crates/a/tests/b.rs", "//! A.\npub enum Error {\n", 0),
        ] {
            let found = check(Path::new(file), text);
            assert_eq!(found.len(), expected, "{file}: {found:?}");
        }
    }

    #[test]
    fn tests_of_kernels_are_listed() {
        let of = |attribute: &str| {
            format!(
                "//! A.\nmod tests {{\n    use crate::testing::read;\n    {attribute}\n    fn f() {{}}\n}}\n"
            )
        };
        for (file, attribute, expected) in [
            ("crates/kernels-cuda/src/ops/norm.rs", "#[test]", 1),
            ("crates/kernels-cuda/src/ops/norm.rs", "#[cfg_attr(test, test)]", 0),
            ("crates/kernels-cuda/src/tests.rs", "#[test]", 0),
            ("crates/kernels-wgpu/src/ops/norm.rs", "#[test]", 0),
        ] {
            assert_eq!(
                check(Path::new(file), &of(attribute)).len(),
                expected,
                "{file} {attribute}"
            );
        }
        let on_host = "//! A.\nmod tests {\n    #[test]\n    fn f() {}\n}\n";
        assert!(check(Path::new("crates/kernels-cuda/src/matrix/pack.rs"), on_host).is_empty());
        // What is compiled for programs, too, are tests nevertheless.
        let tested = format!(
            "//! A.\n#[cfg(any(test, feature = \"tests\"))]\npub(super) mod tests {{\n{}}}\n",
            "\n".repeat(700)
        );
        assert_eq!(code_lines(&tested), 1);
    }

    #[test]
    fn rules_of_one_file() {
        let long = format!("//! A.\n{}", "fn f() {}\n".repeat(600));
        let tested = format!("//! A.\n#[cfg(test)]\nmod tests {{\n{}}}\n", "\n".repeat(700));
        let cases = [
            ("//! A.\nfn f() {}\n", ""),
            ("fn f() {}\n", "header"),
            (&long, "601 lines"),
            (&tested, ""),
            ("//! A.\ninclude!(\"x.rs\");\n", "include!("),
            ("//! A.\nconst A: &str = include_str!(\"x\");\n", ""),
            ("//! A.\n#[test]\n#[ignore]\nfn f() {}\n", "#[ignore"),
            ("//! A.\nfn f() { todo!() }\n", "todo!("),
            ("//! A.\n// A note on todo!( in words.\n", ""),
            ("//! A.\n#![allow(dead_code, reason = \"x\")]\n", "#![allow"),
            ("//! A.\n#[allow(dead_code)]\nfn f() {}\n", "without a reason"),
            ("//! A.\n#[expect(\n    dead_code,\n    reason = \"y\"\n)]\nfn f() {}\n", ""),
        ];
        for (text, expected) in cases {
            let found = check(Path::new("a.rs"), text);
            match expected {
                "" => assert_eq!(found, [], "{text}"),
                _ => {
                    assert_eq!(found.len(), 1, "{text}: {found:?}");
                    assert!(found[0].message.contains(expected), "{found:?}");
                }
            }
        }
    }

    #[test]
    fn programs_are_started_in_one_place() {
        let start = "//! A.\nfn f() { std::process::Command::new(\"sh\"); }\n";
        let tested = format!("//! A.\n#[cfg(test)]\nmod tests {{\n{start}}}\n");
        for (file, text, expected) in [
            ("crates/cli/src/source/pip.rs", start, 1),
            ("crates/cli/src/program.rs", start, 0),
            ("crates/cli/src/source/pip.rs", &*tested, 0),
            ("crates/cli/tests/it/cli.rs", start, 0),
            ("xtask/src/shell.rs", start, 0),
        ] {
            let found = check(Path::new(file), text);
            assert_eq!(found.len(), expected, "{file}: {found:?}");
        }
    }

    #[test]
    fn standard_streams_are_used_in_one_place() {
        let file = "crates/cli/src/commands/run.rs";
        let cases = [
            (file, "let mut out = std::io::stdout().lock();", 1),
            (file, "let _ = writeln!(stderr(), \"a\");", 1),
            (file, "println!(\"a\");", 1),
            (file, "eprint!(\"a\");", 1),
            (file, "screen::stdout().flush();", 0),
            (file, "command.stdout(Stdio::null()).stderr(errors);", 0),
            (file, "// println!() in words", 0),
            ("crates/cli/src/screen.rs", "io::stdout();", 0),
            ("crates/server/src/server.rs", "println!(\"a\");", 1),
            ("crates/backends/src/wgpu/tests.rs", "println!(\"a\");", 0),
            ("crates/cli/tests/it/cli.rs", "println!(\"a\");", 0),
            ("xtask/src/main.rs", "println!(\"a\");", 0),
        ];
        for (file, line, expected) in cases {
            let found = check(Path::new(file), &format!("//! A.\nfn f() {{ {line} }}\n"));
            assert_eq!(found.len(), expected, "{file} {line}: {found:?}");
        }
    }

    #[test]
    fn files_of_models_are_opened_in_one_place() {
        let read = "//! A.\nfn f() { std::fs::read(\"config.json\"); }\n";
        for (file, text, expected) in [
            ("crates/model/src/checkpoint/mod.rs", read, 1),
            ("crates/model/src/checkpoint/mod.rs", &*read.replace("fs::read(", "fs::read_dir("), 0),
            ("crates/formats/src/map.rs", &read.replace("fs::read(", "File::open("), 1),
            ("crates/base/src/regular.rs", read, 0),
            ("crates/cli/src/grammar.rs", read, 0),
            ("xtask/src/fuzz.rs", read, 0),
        ] {
            let found = check(Path::new(file), text);
            assert_eq!(found.len(), expected, "{file}: {found:?}");
        }
    }
}
