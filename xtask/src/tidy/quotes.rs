//! The code that recipes (`docs/adding-*.md`) show is a quotation of the sources, which are compiled.
//!
//! A line `// …` in a block stands for lines that are left out. The parts around it occur in this order in one file.
//! Indentation is not compared.

use std::path::{Path, PathBuf};

use super::Finding;

/// The beginning of the paths of the documents that are checked.
const RECIPES: &str = "docs/adding-";

/// Stands for lines that are left out.
const ELLIPSIS: &str = "// …";

/// Languages of blocks, each with the extensions of the files that are quoted.
const LANGUAGES: &[(&str, &[&str])] =
    &[("rust", &["rs"]), ("wgsl", &["wgsl"]), ("cpp", &["cu", "cuh"])];

/// The lines of every file that may be quoted, and the blocks of the recipes.
#[derive(Default)]
pub(super) struct Quotes {
    sources: Vec<(String, Vec<String>)>, // the extension and the lines of each file
    blocks: Vec<Block>,
}

/// A block of code in a recipe.
struct Block {
    file: PathBuf,
    line: usize,
    extensions: &'static [&'static str],
    parts: Vec<Vec<String>>,
}

impl Quotes {
    /// Notes the lines of a source file, or the blocks of a recipe.
    pub(super) fn read(&mut self, file: &Path, text: &str) {
        let extension = file.extension().and_then(|e| e.to_str()).unwrap_or_default();
        if LANGUAGES.iter().any(|(_, extensions)| extensions.contains(&extension)) {
            let lines = text.lines().map(|line| line.trim().to_owned()).collect();
            self.sources.push((extension.to_owned(), lines));
        } else if extension == "md" && file.to_str().is_some_and(|path| path.starts_with(RECIPES)) {
            self.blocks.extend(blocks(file, text));
        }
    }

    /// Reports the blocks that no file has.
    pub(super) fn check(&self) -> Vec<Finding> {
        let gone = self.blocks.iter().filter(|block| {
            !self.sources.iter().any(|(extension, lines)| {
                block.extensions.contains(&extension.as_str()) && has_parts(lines, &block.parts)
            })
        });
        let message = "no source file has this code; quote one, with `// …` for lines left out";
        gone.map(|block| Finding::new(&block.file, block.line, message)).collect()
    }
}

/// The blocks of a document in the languages that are checked.
fn blocks(file: &Path, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((idx, line)) = lines.next() {
        let Some(language) = line.trim().strip_prefix("```") else { continue };
        let body = lines.by_ref().map(|(_, line)| line.trim()).take_while(|line| *line != "```");
        let body: Vec<String> = body.map(str::to_owned).collect();
        let Some((_, extensions)) = LANGUAGES.iter().find(|(name, _)| *name == language) else {
            continue;
        };
        let parts = body.split(|line| line == ELLIPSIS);
        let parts = parts.filter(|part| !part.is_empty()).map(<[String]>::to_vec).collect();
        blocks.push(Block { file: file.to_path_buf(), line: idx + 1, extensions, parts });
    }
    blocks
}

/// Whether the parts occur in a file one after the other.
fn has_parts(lines: &[String], parts: &[Vec<String>]) -> bool {
    let mut rest = lines;
    parts.iter().all(|part| {
        let at = rest.windows(part.len()).position(|window| window == part);
        at.is_some_and(|at| {
            rest = &rest[at + part.len()..];
            true
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of the blocks that are reported for a recipe with one block.
    fn found(name: &str, language: &str, code: &str) -> Vec<usize> {
        let mut quotes = Quotes::default();
        let source = "fn f() {\n    if a {\n        b();\n    }\n    c();\n}\n";
        quotes.read(Path::new("crates/a/src/lib.rs"), source);
        quotes.read(Path::new("crates/a/src/b.rs"), "d();\n");
        quotes.read(Path::new("crates/a/shaders/e.wgsl"), "e();\n");
        let text = format!("# To do\n\n1. Write\n\n   ```{language}\n{code}\n   ```\n\n2. Test\n");
        quotes.read(Path::new(name), &text);
        quotes.check().iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn recipes_quote_the_sources() {
        let recipe = "docs/adding-it.md";
        let cases: [(&str, &str, &str, &[usize]); 12] = [
            (recipe, "rust", "   if a {\n       b();\n   }", &[]),
            (recipe, "rust", "   fn f() {\n       // …\n       c();\n   }", &[]),
            (recipe, "rust", "   // …\n   b();", &[]),
            (recipe, "rust", "   b();\n   c();", &[5]),
            (recipe, "rust", "   c();\n   // …\n   b();", &[5]),
            (recipe, "rust", "   c();\n   // …\n   d();", &[5]),
            (recipe, "rust", "   // … the rest\n   b();", &[5]),
            (recipe, "rust", "   e();", &[5]),
            (recipe, "wgsl", "   e();", &[]),
            (recipe, "cpp", "   e();", &[5]),
            (recipe, "sh", "   x();", &[]),
            ("docs/library.md", "rust", "   x();", &[]),
        ];
        for (name, language, code, expected) in cases {
            assert_eq!(found(name, language, code), expected, "{name} {language} {code}");
        }
    }
}
