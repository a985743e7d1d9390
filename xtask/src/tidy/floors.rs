//! The floors of a crate: a module uses only the floors below its own.
//!
//! A floor is a module of the crate's root. Paths that begin with `crate::` are read from code, not
//! from comments, and a name that the root re-exports counts as the floor that it comes from. Tests
//! may use every floor.

use std::collections::BTreeMap;
use std::path::Path;

use super::Finding;
use super::lexer::code_only;
use super::source::code_lines;

/// The beginning of the names of this workspace's crates.
const OTHER_CRATES: &str = "realizar_";

/// A crate that has floors.
struct House {
    /// The folder of its sources.
    src: &'static str,
    /// The floors from the bottom up, in groups whose members do not know one another.
    floors: &'static [&'static [&'static str]],
}

const HOUSES: &[House] = &[
    House {
        src: "crates/kernels-cuda/src",
        floors: &[
            &["error"],
            &["device"],
            &["image", "matrix", "pages", "states"],
            &["kernels"],
            &["ops"],
            &["bench"],
        ],
    },
    House {
        src: "crates/kernels-wgpu/src",
        floors: &[&["error"], &["device"], &["dispatch"], &["storage"], &["ops"]],
    },
    House {
        src: "crates/model/src",
        floors: &[&["error"], &["checkpoint"], &["graph"], &["architectures"]],
    },
    House {
        src: "crates/runtime/src",
        floors: &[&["error"], &["run"], &["generate"], &["engine"], &["measure"]],
    },
    House {
        src: "crates/backends/src",
        floors: &[
            &["arithmetic", "error"],
            &["batch", "memory", "metrics"],
            &["fingerprint"],
            &["packed_cache", "sample_requests"],
            &["seam"],
            &["gpu"],
            &["cpu", "cuda", "stages", "wgpu"],
        ],
    },
    House {
        src: "crates/server/src",
        floors: &[
            &["fields", "ids", "ignored", "record", "tool_host"],
            &["config", "error"],
            &["chat", "hosts", "kv_events", "page"],
            &["registry"],
            &["state"],
            &["http"],
            &["answer"],
            &["api"],
            &["openapi"],
            &["app"],
            &["server"],
        ],
    },
    House {
        src: "crates/cli/src",
        floors: &[
            &["screen"],
            &["status"],
            &["interrupt", "log", "program"],
            &["ui"],
            &["flags", "grammar", "otel", "source", "terminal"],
            &["config", "mcp"],
            &["options"],
            &["engine"],
            &["commands"],
        ],
    },
];

impl House {
    fn floor(&self, module: &str) -> Option<usize> {
        self.floors.iter().position(|floor| floor.contains(&module))
    }
}

/// What roots of crates re-export: of every source folder, the module behind each name.
#[derive(Default)]
pub(super) struct Roots(BTreeMap<&'static str, BTreeMap<String, String>>);

impl Roots {
    /// Notes the names of a file, if it is the root of a crate with floors.
    pub(super) fn read(&mut self, file: &Path, text: &str) {
        let house = HOUSES.iter().find(|house| {
            ["lib.rs", "main.rs"].iter().any(|root| file == Path::new(house.src).join(root))
        });
        if let Some(house) = house {
            self.0.insert(house.src, re_exports(&code_only(text)));
        }
    }
}

/// The names behind `use MODULE::…;` at the root of a crate, each with its module.
fn re_exports(code: &str) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for (at, _) in code.match_indices("pub use ").chain(code.match_indices("pub(crate) use ")) {
        let path = code[at..].split_once("use ").map_or("", |(_, rest)| rest);
        let path = path.split_once(';').map_or("", |(path, _)| path);
        let Some((module, items)) = path.split_once("::") else { continue };
        for item in items.split(['{', '}', ',']).map(str::trim).filter(|item| !item.is_empty()) {
            let name = item.rsplit(|c: char| !is_word(c)).next().unwrap_or(item);
            names.insert(name.to_owned(), module.trim().to_owned());
        }
    }
    names
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Check one Rust file.
pub(super) fn check(file: &Path, text: &str, roots: &Roots) -> Vec<Finding> {
    let Some(house) = HOUSES.iter().find(|house| file.starts_with(house.src)) else {
        return Vec::new();
    };
    let inside: Vec<&str> = file
        .strip_prefix(house.src)
        .into_iter()
        .flatten()
        .filter_map(|part| part.to_str())
        .collect();
    let is_test = inside.iter().any(|part| ["tests", "tests.rs", "testing.rs"].contains(part));
    let is_root = ["lib.rs", "main.rs"].contains(&inside[0]);
    if is_test || is_root {
        return Vec::new();
    }
    let own_module = inside[0].trim_end_matches(".rs");
    let Some(own) = house.floor(own_module) else {
        let message = format!("`{own_module}` has no place in the floors; add it to tidy's table");
        return vec![Finding::new(file, 0, message)];
    };
    let lines = code_lines(text);
    let code = code_only(text);
    let code: String = code.lines().take(lines).flat_map(|line| [line, "\n"]).collect();
    let empty = BTreeMap::new();
    let names = roots.0.get(house.src).unwrap_or(&empty);
    let mut findings = Vec::new();
    for (at, name) in used(&code, depth(&inside)) {
        let module = names.get(name).map_or(name, String::as_str);
        let message = match house.floor(module) {
            Some(floor) if floor < own || module == own_module => continue,
            // Layers of crates are checked by their manifests.
            None if module.starts_with(OTHER_CRATES) => continue,
            Some(_) => {
                format!("`{own_module}` must not use `{module}`, which is not a floor below it")
            }
            None => format!("`{name}` is not a floor; name one, or add it to tidy's table"),
        };
        findings.push(Finding::new(file, code[..at].matches('\n').count() + 1, message));
    }
    findings
}

/// How many modules are above the one of this file, the root included.
fn depth(inside: &[&str]) -> usize {
    inside.len() - usize::from(inside.last() == Some(&"mod.rs"))
}

/// The names that `code` takes from the root of its crate, with their places: what follows
/// `crate::`, or as many `super::` as there are modules above.
fn used(code: &str, depth: usize) -> Vec<(usize, &str)> {
    let to_root = vec!["super"; depth].join("::");
    let mut found = Vec::new();
    for root in ["crate", &to_root] {
        for (at, _) in code.match_indices(root) {
            let starts = !code[..at].ends_with(is_word) && !code[..at].trim_end().ends_with("::");
            let Some(rest) = code[at + root.len()..].strip_prefix("::") else { continue };
            if starts {
                let offset = at + root.len() + "::".len();
                found.extend(firsts(rest).into_iter().map(|(i, name)| (offset + i, name)));
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The first names of a path: one, or those of the entries of a list in braces.
fn firsts(path: &str) -> Vec<(usize, &str)> {
    let word = |from: usize| {
        if path[from..].starts_with('*') {
            return (from, "*");
        }
        let len = path[from..].find(|c: char| !is_word(c)).unwrap_or(path.len() - from);
        (from, &path[from..from + len])
    };
    if !path.starts_with('{') {
        return vec![word(0)];
    }
    let mut names = Vec::new();
    let mut nesting = 0;
    let mut begins = false;
    for (at, c) in path.char_indices() {
        match c {
            '{' => nesting += 1,
            '}' => nesting -= 1,
            c if begins && nesting == 1 && (is_word(c) || c == '*') => {
                names.push(word(at));
                begins = false;
            }
            _ => {}
        }
        if nesting == 0 {
            break;
        }
        begins |= nesting == 1 && matches!(c, '{' | ',');
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, text: &str) -> Vec<String> {
        let mut roots = Roots::default();
        let root = "pub use error::{DeviceFault, Error};\npub use engine::Engine;\n\
                    pub use run::{\n    Model,\n    device,\n};\n\
                    pub use realizar_backends::Error as BackendError;\n";
        roots.read(Path::new("crates/runtime/src/lib.rs"), root);
        let findings = check(Path::new(file), text, &roots);
        findings.into_iter().map(|f| format!("{}: {}", f.line, f.message)).collect()
    }

    #[test]
    fn only_lower_floors_are_used() {
        let chat = "crates/runtime/src/generate/chat.rs";
        let cases: [(&str, &str, &[&str]); 20] = [
            (chat, "use crate::run::Runner;\nuse crate::Error;\n", &[]),
            (chat, "use super::params::Params;\nuse crate::generate::Session;\n", &[]),
            (chat, "use crate::engine::Engine;\n", &["1: engine"]),
            (chat, "//! Text.\nuse crate::Engine;\n", &["2: engine"]),
            (
                chat,
                "use crate::{\n    Engine, Error, device,\n    measure::{Engine, text},\n};\n",
                &["2: engine", "3: measure"],
            ),
            (chat, "use crate::{run::{own_file, engine}, error::DeviceFault};\n", &[]),
            (chat, "use crate::{BackendError, Error};\n", &[]),
            (chat, "fn f() -> crate::engine::Role {}\n", &["1: engine"]),
            (chat, "// crate::engine\nfn f() { \"crate::engine\"; }\n", &[]),
            (chat, "/// As [`Engine`](crate::engine::Engine).\nfn f() {}\n", &[]),
            (chat, "use super::super::engine::Engine;\n", &["1: engine"]),
            (chat, "use other::crate_like::engine;\nuse mycrate::engine::x;\n", &[]),
            (chat, "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::engine::X;\n}\n", &[]),
            ("crates/runtime/src/generate/mod.rs", "use super::engine::X;\n", &["1: engine"]),
            ("crates/runtime/src/generate/tests.rs", "use crate::engine::X;\n", &[]),
            ("crates/runtime/src/error.rs", "use realizar_text::tokenizer;\n", &[]),
            ("crates/runtime/src/error.rs", "use super::run::X;\n", &["1: run"]),
            ("crates/runtime/src/lib.rs", "use measure::X;\nuse crate::measure::Y;\n", &[]),
            ("crates/runtime/tests/it/x.rs", "use crate::engine::X;\n", &[]),
            ("crates/formats/src/x.rs", "use crate::engine::X;\n", &[]),
        ];
        for (file, text, expected) in cases {
            let found = found(file, text);
            assert_eq!(found.len(), expected.len(), "{file} {text}: {found:?}");
            for (found, expected) in found.iter().zip(expected) {
                let (line, module) = expected.split_once(": ").unwrap();
                let own = if file.ends_with("error.rs") { "error" } else { "generate" };
                let start = format!("{line}: `{own}` must not use `{module}`");
                assert!(found.starts_with(&start), "{found} is not {start}");
            }
        }
    }

    #[test]
    fn every_module_has_its_floor() {
        let own = found("crates/runtime/src/attic.rs", "use crate::run::Model;\n");
        assert_eq!(own, ["0: `attic` has no place in the floors; add it to tidy's table"]);
        let all = found("crates/runtime/src/generate/mod.rs", "use crate::{run, *};\n");
        assert_eq!(all, ["1: `*` is not a floor; name one, or add it to tidy's table"]);
        let other = found("crates/runtime/src/generate/mod.rs", "use crate::attic::Box;\n");
        assert_eq!(other, ["1: `attic` is not a floor; name one, or add it to tidy's table"]);
    }
}
