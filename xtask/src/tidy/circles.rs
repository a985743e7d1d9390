//! Circles among sibling modules: the modules of a folder use one another without cycles.
//!
//! A module stands for its file and for everything in its folder. It uses a sibling if a path in its code leads there,
//! directly or through a re-export, which is followed to the module that defines the name. The parent module is not part
//! of the graph: it declares and re-exports its children, and may define what they share. Code for tests is not read, and
//! calls of methods are not seen, because they have no path.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::Finding;
use super::lexer::code_only;

/// Folders that may still have circles, each with the number of its modules that are in one. Numbers only fall.
const REMAINING: &[(&str, usize)] = &[
    ("crates/backends/src/cpu", 5),
    ("crates/backends/src/cuda", 5),
    ("crates/backends/src/wgpu", 5),
    ("crates/cli/src/commands", 2),
    ("crates/cli/src/commands/chat", 2),
    ("crates/cli/src/source", 3),
    ("crates/formats/src", 2),
    ("crates/formats/src/gguf", 2),
    ("crates/kernels-cpu/src", 4),
    ("crates/kernels-cpu/src/attention", 4),
    ("crates/kernels-cpu/src/packed", 3),
    ("crates/model/src/architectures", 2),
    ("crates/model/src/checkpoint", 3),
    ("crates/quant/src", 2),
    ("crates/runtime/src/engine", 7),
    ("crates/runtime/src/generate", 3),
    ("crates/runtime/src/run", 5),
    ("crates/server/src/api", 2),
    ("crates/server/src/api/anthropic", 2),
    ("crates/server/src/api/openai", 2),
    ("crates/server/src/registry", 6),
    ("crates/text/src/constrain", 4),
    ("crates/text/src/sampling", 4),
    ("crates/text/src/template", 6),
];

/// The modules of all crates: those of each source folder by path from the root of the crate.
#[derive(Default)]
pub(super) struct Sources(BTreeMap<PathBuf, BTreeMap<Vec<String>, Module>>);

/// One file.
#[derive(Default)]
struct Module {
    file: PathBuf,
    /// Declared modules that are not tests.
    children: BTreeSet<String>,
    /// Names that `use` brings into the module, each with its path.
    imports: BTreeMap<String, Vec<String>>,
    /// Paths before `::*`.
    globs: Vec<Vec<String>>,
    /// Names of the items that are defined here.
    items: BTreeSet<String>,
    /// Paths in the code and their lines.
    paths: Vec<(usize, Vec<String>)>,
}

/// Where a module uses another one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    file: PathBuf,
    line: usize,
}

/// The uses among the modules of a folder: from a module to a module, with the first place.
type Edges = BTreeMap<(String, String), Place>;

impl Sources {
    /// Reads one Rust file, if it is a source of a crate.
    pub(super) fn read(&mut self, file: &Path, text: &str) {
        let parts: Vec<&str> = file.iter().filter_map(|part| part.to_str()).collect();
        let Some(src) = parts.iter().position(|&part| part == "src") else { return };
        let mut path: Vec<String> =
            parts[src + 1..].iter().map(|part| part.trim_end_matches(".rs").to_owned()).collect();
        let is_root = path.len() == 1 && ["lib", "main"].contains(&&*path[0]);
        if is_root || path.last().is_some_and(|last| last == "mod") {
            path.pop();
        }
        let root: PathBuf = parts[..=src].iter().collect();
        let module = self.0.entry(root).or_default().entry(path).or_default();
        module.file = file.to_path_buf();
        module.read(&code_only(text));
    }

    /// Checks all that was read.
    pub(super) fn check(&self) -> Vec<Finding> {
        self.check_with(REMAINING)
    }

    fn check_with(&self, remaining: &[(&str, usize)]) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut allowed: BTreeMap<PathBuf, usize> =
            remaining.iter().map(|&(folder, n)| (PathBuf::from(folder), n)).collect();
        for (root, modules) in &self.0 {
            for (parent, edges) in edges(modules) {
                let folder: PathBuf = root.iter().chain(parent.iter().map(AsRef::as_ref)).collect();
                let circles = circles(&edges);
                let n = circles.iter().map(BTreeSet::len).sum::<usize>();
                match allowed.remove(&folder) {
                    None => {
                        findings.extend(circles.iter().map(|c| finding(&folder, c, &edges)));
                    }
                    Some(n_allowed) if n > n_allowed => {
                        let message =
                            format!("{n} modules are in circles, {n_allowed} are allowed");
                        findings.push(Finding::new(&folder, 0, message));
                        findings.extend(circles.iter().map(|c| finding(&folder, c, &edges)));
                    }
                    Some(n_allowed) if n < n_allowed => {
                        let how = match n {
                            0 => "take the folder out of tidy's table".to_owned(),
                            _ => format!("lower the {n_allowed} of tidy's table"),
                        };
                        let message = format!("{n} modules are in circles: {how}");
                        findings.push(Finding::new(&folder, 0, message));
                    }
                    Some(_) => {}
                }
            }
        }
        let message = "no modules are in circles: take the folder out of tidy's table";
        findings.extend(allowed.keys().map(|folder| Finding::new(folder, 0, message)));
        findings
    }
}

fn finding(folder: &Path, circle: &BTreeSet<String>, edges: &Edges) -> Finding {
    let mut message = String::from("a circle of modules:");
    let inside =
        edges.iter().filter(|((from, to), _)| circle.contains(from) && circle.contains(to));
    for (idx, ((from, to), Place { file, line })) in inside.enumerate() {
        let comma = if idx == 0 { "" } else { "," };
        let file = file.strip_prefix(folder).unwrap_or(file).display();
        let _ = write!(message, "{comma} `{from}` uses `{to}` ({file}:{line})");
    }
    Finding::new(folder, 0, message)
}

/// The uses among the children of each module of a crate.
fn edges(modules: &BTreeMap<Vec<String>, Module>) -> BTreeMap<Vec<String>, Edges> {
    let mut found: BTreeMap<Vec<String>, Edges> = BTreeMap::new();
    for (own, module) in modules.iter().filter(|(path, _)| is_read(modules, path)) {
        for (line, path) in &module.paths {
            let Some(target) = resolve(modules, own, path, 0) else { continue };
            let n_common = own.iter().zip(&target).take_while(|(a, b)| a == b).count();
            let (Some(from), Some(to)) = (own.get(n_common), target.get(n_common)) else {
                continue;
            };
            let place = Place { file: module.file.clone(), line: *line };
            let edges = found.entry(own[..n_common].to_vec()).or_default();
            edges.entry((from.clone(), to.clone())).or_insert(place);
        }
    }
    found
}

/// Whether a module is declared, and none above it is a test.
fn is_read(modules: &BTreeMap<Vec<String>, Module>, path: &[String]) -> bool {
    let declared =
        |n: usize| modules.get(&path[..n]).is_none_or(|parent| parent.children.contains(&path[n]));
    (0..path.len()).all(|n| declared(n) && !is_test(&path[n]))
}

fn is_test(module: &str) -> bool {
    ["tests", "testing"].contains(&module)
}

/// The module that defines what `path` names in the code of `own`; none if that is outside of the crate.
fn resolve(
    modules: &BTreeMap<Vec<String>, Module>,
    own: &[String],
    path: &[String],
    n_followed: usize,
) -> Option<Vec<String>> {
    /// Re-exports that are followed; more are a circle of globs.
    const MAX_FOLLOWED: usize = 16;
    if n_followed > MAX_FOLLOWED {
        return None;
    }
    let mut at = own.to_vec();
    let mut rest = path;
    let mut is_inside = false;
    while let Some((first, others)) = rest.split_first() {
        match &**first {
            "crate" => at.clear(),
            "self" => {}
            "super" => {
                at.pop()?;
            }
            _ => break,
        }
        is_inside = true;
        rest = others;
    }
    while let Some((name, others)) = rest.split_first() {
        let module = modules.get(&at)?;
        if module.children.contains(name) {
            at.push(name.clone());
        } else if let Some(import) = module.imports.get(name).filter(|import| *import != path) {
            let path = [import, others].concat();
            return resolve(modules, &at, &path, n_followed + 1);
        } else {
            let of_globs = module.globs.iter().filter_map(|glob| {
                let target = resolve(modules, &at, glob, n_followed + 1)?;
                let module = modules.get(&target)?;
                let has = module.items.contains(name)
                    || module.children.contains(name)
                    || module.imports.contains_key(name);
                let path = [&["self".to_owned()], rest].concat();
                has.then(|| resolve(modules, &target, &path, n_followed + 1)).flatten()
            });
            let own = || is_inside.then(|| at.clone());
            return of_globs.into_iter().next().or_else(own);
        }
        is_inside = true;
        rest = others;
    }
    Some(at)
}

/// The sets of modules each of which is reached from each other.
fn circles(edges: &Edges) -> Vec<BTreeSet<String>> {
    let reached_from = |start: &str| {
        let mut reached = BTreeSet::new();
        let mut open = vec![start];
        while let Some(module) = open.pop() {
            for (_, to) in edges.keys().filter(|(from, _)| from == module) {
                if reached.insert(to.clone()) {
                    open.push(to);
                }
            }
        }
        reached
    };
    let modules: BTreeSet<&String> = edges.keys().flat_map(|(from, to)| [from, to]).collect();
    let reached: BTreeMap<&String, BTreeSet<String>> =
        modules.iter().map(|module| (*module, reached_from(module))).collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for (module, others) in &reached {
        let circle: BTreeSet<String> =
            others.iter().filter(|other| reached[other].contains(*module)).cloned().collect();
        if circle.len() > 1 && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

impl Module {
    /// Reads the code of a file, without comments and literals.
    fn read(&mut self, code: &str) {
        let tokens = tokens(code);
        self.items(&tokens, 0);
    }

    /// Reads tokens up to the end of a module that is `inner` modules below the one of the file.
    fn items(&mut self, tokens: &[Token<'_>], inner: usize) {
        let (mut at, mut nesting) = (0, 0);
        while at < tokens.len() {
            let word = tokens[at].text;
            let next = tokens.get(at + 1).map_or("", |token| token.text);
            at = match word {
                "#" if is_for_tests(&tokens[at..]) => item_end(tokens, at),
                "#" if next == "[" => closing(tokens, at + 1),
                "mod" if tokens.get(at + 2).is_some_and(|token| token.text == ";") => {
                    if !is_test(next) {
                        self.children.insert(next.to_owned());
                    }
                    at + 3
                }
                "mod" if tokens.get(at + 2).is_some_and(|token| token.text == "{") => {
                    let end = closing(tokens, at + 2);
                    if !is_test(next) {
                        self.items(&tokens[at + 3..end - 1], inner + 1);
                    }
                    end
                }
                "use" => self.import(tokens, at + 1, inner, nesting == 0),
                "crate" | "super" | "self" if next == "::" => self.path(tokens, at, inner),
                "fn" | "struct" | "enum" | "const" | "static" | "type" | "trait" | "union"
                    if nesting == 0 =>
                {
                    self.items.insert(next.to_owned());
                    at + 1
                }
                "macro_rules" => {
                    self.items.extend(tokens.get(at + 2).map(|token| token.text.to_owned()));
                    at + 1
                }
                "{" => {
                    nesting += 1;
                    at + 1
                }
                "}" => {
                    nesting -= 1;
                    at + 1
                }
                _ => at + 1,
            };
        }
    }

    /// Reads a path in an expression or a type, and returns its end.
    fn path(&mut self, tokens: &[Token<'_>], start: usize, inner: usize) -> usize {
        let mut at = start;
        let mut path = vec![tokens[at].text.to_owned()];
        while tokens.get(at + 1).is_some_and(|token| token.text == "::")
            && tokens.get(at + 2).is_some_and(|token| token.is_word())
        {
            at += 2;
            path.push(tokens[at].text.to_owned());
        }
        self.add(tokens[start].line, path, inner);
        at + 1
    }

    /// Notes a path; that of an inner module may lead to the file's own, which is none of its siblings.
    fn add(&mut self, line: usize, mut path: Vec<String>, inner: usize) -> Option<Vec<String>> {
        for _ in 0..inner {
            match path.first().map(String::as_str) {
                Some("super") => drop(path.remove(0)),
                Some("crate") => break,
                _ => return None,
            }
        }
        if inner > 0 && path.first().is_none_or(|first| first != "super" && first != "crate") {
            path.insert(0, "self".to_owned());
        }
        self.paths.push((line, path.clone()));
        Some(path)
    }

    /// Reads the paths of a `use` that begins at `start`, and returns its end.
    fn import(&mut self, tokens: &[Token<'_>], start: usize, inner: usize, is_item: bool) -> usize {
        let end = tokens[start..]
            .iter()
            .position(|token| token.text == ";")
            .map_or(tokens.len(), |n| start + n);
        // Paths in front of the braces that are open.
        let mut open: Vec<Vec<String>> = Vec::new();
        let mut path: Vec<String> = Vec::new();
        let mut at = start;
        while at <= end {
            let token = tokens.get(at).map_or(";", |token| token.text);
            let line = tokens.get(at).map_or(0, |token| token.line);
            match token {
                "{" => open.push(path.clone()),
                "," | "}" | ";" => {
                    let base = open.last().cloned().unwrap_or_default();
                    if path.len() > base.len() {
                        self.imported(line, &path, inner, is_item);
                    }
                    if token == "}" {
                        open.pop();
                    }
                    // After a closing brace, only the end of the entry that it belongs to follows.
                    path = open.last().cloned().unwrap_or_default();
                }
                "::" => {}
                word => path.push(word.to_owned()),
            }
            at += 1;
        }
        end + 1
    }

    /// Notes one entry of a `use`: a path that may end in `*`, `self` or `as` and a name.
    fn imported(&mut self, line: usize, entry: &[String], inner: usize, is_item: bool) {
        let (path, name) = match entry {
            [path @ .., keyword, name] if keyword == "as" => (path, name.clone()),
            [path @ .., last] if last == "self" && !path.is_empty() => {
                (path, path.last().cloned().unwrap_or_default())
            }
            [.., last] => (entry, last.clone()),
            [] => return,
        };
        if let Some((last, before)) = path.split_last()
            && last == "*"
        {
            if let Some(path) = self.add(line, before.to_vec(), inner)
                && inner == 0
                && is_item
            {
                self.globs.push(path);
            }
        } else if let Some(path) = self.add(line, path.to_vec(), inner)
            && inner == 0
            && is_item
        {
            self.imports.insert(name, path);
        }
    }
}

/// A word, `::` or another character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Token<'a> {
    line: usize,
    text: &'a str,
}

impl Token<'_> {
    fn is_word(&self) -> bool {
        self.text.starts_with(is_word)
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (idx, text) in code.lines().enumerate() {
        let mut rest = text.trim_start();
        while let Some(c) = rest.chars().next() {
            let len = match c {
                _ if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                _ if rest.starts_with("::") => 2,
                _ => c.len_utf8(),
            };
            tokens.push(Token { line: idx + 1, text: &rest[..len] });
            rest = rest[len..].trim_start();
        }
    }
    tokens
}

/// Whether an attribute begins here that keeps what follows for tests: `test`, `cfg(test)` or `cfg(all(test, …))`.
fn is_for_tests(tokens: &[Token<'_>]) -> bool {
    let starts = |with: &[&str]| {
        tokens.len() >= with.len() && tokens.iter().zip(with).all(|(a, b)| a.text == *b)
    };
    starts(&["#", "[", "cfg", "(", "test", ")"])
        || starts(&["#", "[", "cfg", "(", "all", "(", "test"])
        || starts(&["#", "[", "test", "]"])
}

/// The end of what follows the attribute at `start`: an item, a statement, or an entry of a list such as a field.
fn item_end(tokens: &[Token<'_>], start: usize) -> usize {
    let mut at = start;
    // Commas end entries only: items have some between generic parameters.
    let mut is_item = false;
    while at < tokens.len() {
        is_item |= ["fn", "impl", "struct", "enum", "trait", "type"].contains(&tokens[at].text);
        at = match tokens[at].text {
            "#" if tokens.get(at + 1).is_some_and(|token| token.text == "[") => {
                closing(tokens, at + 1)
            }
            "(" | "[" => closing(tokens, at),
            "{" => return closing(tokens, at),
            "use" => {
                let end = tokens[at..].iter().position(|token| token.text == ";");
                return end.map_or(tokens.len(), |n| at + n + 1);
            }
            ";" => return at + 1,
            "," if !is_item => return at + 1,
            // The end of the list or the block whose last entry this is.
            "}" => return at,
            _ => at + 1,
        };
    }
    at
}

/// Where the bracket at `start` is closed, one after.
fn closing(tokens: &[Token<'_>], start: usize) -> usize {
    let mut nesting = 0;
    for (n, token) in tokens[start..].iter().enumerate() {
        match token.text {
            "(" | "[" | "{" => nesting += 1,
            ")" | "]" | "}" => nesting -= 1,
            _ => {}
        }
        if nesting == 0 {
            return start + n + 1;
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)], remaining: &[(&str, usize)]) -> Vec<String> {
        let mut sources = Sources::default();
        for (file, text) in files {
            sources.read(Path::new(file), text);
        }
        sources.check_with(remaining).iter().map(ToString::to_string).collect()
    }

    const ROOT: (&str, &str) =
        ("a/src/lib.rs", "mod x;\nmod y;\nmod z;\npub use y::{Y, f as g};\n");

    /// Checks the uses of `x`, `y` and `z` at the root of a crate.
    fn of_three([x, y, z]: [&str; 3]) -> Vec<String> {
        found(&[ROOT, ("a/src/x.rs", x), ("a/src/y.rs", y), ("a/src/z.rs", z)], &[])
    }

    #[test]
    fn circles_name_their_uses() {
        let circle = |uses: &str| vec![format!("a/src: a circle of modules: {uses}")];
        let x_and_y = || circle("`x` uses `y` (x.rs:1), `y` uses `x` (y.rs:1)");
        let cases: [([&str; 3], Vec<String>); 17] = [
            (["use crate::y::Y;", "use crate::z::Z;", ""], vec![]),
            (["use super::y::Y;", "use super::x::X;", ""], x_and_y()),
            (["use crate::{z::Z, y::{self, Y}};", "use super::{x, z};", ""], x_and_y()),
            (["fn f() -> crate::y::Y {}", "fn f() { super::x::f::<u8>() }", ""], x_and_y()),
            (["use crate::Y;", "use super::x::X;", ""], x_and_y()),
            (["use crate::g;", "use super::x::X;", ""], x_and_y()),
            (["use crate::f;", "use super::x::X;", ""], vec![]),
            (["fn f() {}\n// crate::y\n", "use crate::x;", ""], vec![]),
            (["use other::y::Y;", "use crate::x::X;", ""], vec![]),
            (["use super::y::Y as Z;", "pub(super) fn f() {}\n", "use super::x;"], vec![]),
            (
                ["use crate::y;", "use crate::z;", "use crate::x;"],
                circle("`x` uses `y` (x.rs:1), `y` uses `z` (y.rs:1), `z` uses `x` (z.rs:1)"),
            ),
            // Tests.
            (["use crate::y;", "#[cfg(test)]\nmod tests { use crate::x; }", ""], vec![]),
            (["use crate::y;", "#[cfg(test)]\nfn f<A, B>(a: A) { crate::x::f() }", ""], vec![]),
            (["use crate::y;", "#[cfg(test)]\nuse crate::{x, z};", ""], vec![]),
            (["use crate::y;", "struct Y { #[cfg(test)] x: crate::x::X, y: u8 }", ""], vec![]),
            // Modules inside of files.
            (["mod y { use super::Y; }", "use crate::x;", ""], vec![]),
            (["mod i { use super::super::y::Y; }", "use crate::x;", ""], x_and_y()),
        ];
        for (texts, expected) in cases {
            assert_eq!(of_three(texts), expected, "{texts:?}");
        }
    }

    #[test]
    fn folders_are_modules_of_their_parent() {
        let inner = ("a/src/x/mod.rs", "mod i;\nmod j;\nuse i::I;\npub use j::*;\n");
        let y = ("a/src/y.rs", "use crate::x::J;");
        let files = [ROOT, inner, ("a/src/x/i.rs", "use super::super::y::Y;"), y];
        let j = ("a/src/x/j.rs", "pub struct J;\nuse super::I;");
        let expected =
            ["a/src: a circle of modules: `x` uses `y` (x/i.rs:1), `y` uses `x` (y.rs:1)"];
        assert_eq!(found(&[&files[..], &[j]].concat(), &[]), expected);
        // The parent re-exports both, by name and by a glob.
        let files = [ROOT, inner, j, ("a/src/x/i.rs", "use super::J;")];
        let expected =
            ["a/src/x: a circle of modules: `i` uses `j` (i.rs:1), `j` uses `i` (j.rs:2)"];
        assert_eq!(found(&files, &[]), expected);
        // What the parent itself defines may be used by all of its children.
        let inner = ("a/src/x/mod.rs", "mod i;\nmod j;\nuse i::I;\npub struct K;\n");
        let uses = "use super::K;";
        assert!(found(&[ROOT, inner, ("a/src/x/i.rs", uses), j], &[]).is_empty());
        // A module that is compiled for tests alone.
        let root = ("a/src/lib.rs", "#[cfg(test)]\nmod x;\nmod y;\n");
        let y = ("a/src/y.rs", "use crate::x;");
        assert!(found(&[root, ("a/src/x.rs", "use crate::y;"), y], &[]).is_empty());
    }

    #[test]
    fn remaining_circles_only_shrink() {
        let files = [ROOT, ("a/src/x.rs", "use crate::y;"), ("a/src/y.rs", "use crate::x;")];
        assert!(found(&files, &[("a/src", 2)]).is_empty());
        let more = found(&files, &[("a/src", 1)]);
        assert_eq!(more[0], "a/src: 2 modules are in circles, 1 are allowed");
        assert_eq!(more.len(), 2);
        let fewer = ["a/src: 2 modules are in circles: lower the 3 of tidy's table"];
        assert_eq!(found(&files, &[("a/src", 3)]), fewer);
        let none = ["a/src: 0 modules are in circles: take the folder out of tidy's table"];
        assert_eq!(found(&files[..2], &[("a/src", 2)]), none);
        let none = ["b/src: no modules are in circles: take the folder out of tidy's table"];
        assert_eq!(found(&files[..2], &[("b/src", 2)]), none);
    }
}
