//! Relative links of Markdown files lead somewhere: to a file, and to a heading or an anchor of it.

use std::collections::HashMap;
use std::path::Path;

use super::Finding;

/// An inline link that is not a URL.
#[derive(Debug, PartialEq, Eq)]
struct Link<'a> {
    line: usize,
    /// Empty for a link within the file.
    path: &'a str,
    anchor: Option<&'a str>,
}

/// Check the links of one Markdown file.
pub(super) fn check(root: &Path, file: &Path, text: &str) -> Vec<Finding> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let mut findings = Vec::new();
    for Link { line, path, anchor } in relative_links(text) {
        let target = path.strip_prefix('/').map_or(folder.join(path), |l| l.into());
        if !path.is_empty() && !root.join(&target).exists() {
            findings.push(Finding::new(file, line, format!("dead link {path}")));
            continue;
        }
        let Some(anchor) = anchor else { continue };
        let is_dead = if path.is_empty() {
            !has_anchor(text, anchor)
        } else {
            // What other files call an anchor, such as a line, is not checked.
            target.extension().is_some_and(|e| e == "md")
                && !std::fs::read_to_string(root.join(&target))
                    .is_ok_and(|t| has_anchor(&t, anchor))
        };
        if is_dead {
            findings.push(Finding::new(file, line, format!("dead anchor {path}#{anchor}")));
        }
    }
    findings
}

/// The lines of a text with their numbers, without those of fenced code.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(idx, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        (!fenced && !is_fence).then_some((idx + 1, line))
    })
}

fn relative_links(text: &str) -> Vec<Link<'_>> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        for piece in line.split("](").skip(1) {
            let Some((target, _)) = piece.split_once(')') else { continue };
            let target = target.split(' ').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = match target.split_once('#') {
                Some((path, anchor)) => (path, Some(anchor)),
                None => (target, None),
            };
            links.push(Link { line: number, path, anchor });
        }
    }
    links
}

/// Whether a Markdown text has an anchor: `<a id="…">`, or a heading, by the rules of GitHub.
fn has_anchor(text: &str, anchor: &str) -> bool {
    let mut seen: HashMap<String, usize> = HashMap::new();
    prose(text).any(|(_, line)| {
        let Some(heading) = line.strip_prefix('#') else {
            return line.contains(&format!("<a id=\"{anchor}\">"));
        };
        let name = slug(heading.trim_start_matches('#').trim());
        let n = seen.entry(name.clone()).or_default();
        *n += 1;
        match *n {
            1 => name == anchor,
            n => format!("{name}-{}", n - 1) == anchor,
        }
    })
}

/// The anchor of a heading: lower case, hyphens for spaces, no punctuation and no targets of links.
fn slug(heading: &str) -> String {
    let mut slug = String::new();
    let mut pieces = heading.split("](");
    slug += pieces.next().unwrap_or_default();
    for piece in pieces {
        slug += piece.split_once(')').map_or(piece, |(_, rest)| rest);
    }
    let kept = slug.chars().filter(|&c| c.is_alphanumeric() || " -_".contains(c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found() {
        let text = "[a](b.md) and [c](https://x.y/z)\n```\n[no](no.md)\n```\n[d](e.md#f) [g](#h)\n";
        let link = |line, path, anchor| Link { line, path, anchor };
        let expected = [link(1, "b.md", None), link(5, "e.md", Some("f")), link(5, "", Some("h"))];
        assert_eq!(relative_links(text), expected);
    }

    #[test]
    fn anchors_are_found() {
        let text = "# A page\n<a id=\"x\"></a>**X**\n## llama.cpp's `-c`, [b](c.md)\n### A page\n\
                    ```\n# no\n```\n";
        for anchor in ["a-page", "x", "llamacpps--c-b", "a-page-1"] {
            assert!(has_anchor(text, anchor), "{anchor}");
        }
        for anchor in ["no", "a-page-2", "A-page", ""] {
            assert!(!has_anchor(text, anchor), "{anchor}");
        }
    }

    #[test]
    fn dead_links_are_reported() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = "# Here\n[manifest](Cargo.toml#L1)\n[gone](gone.md)\n[up](/Cargo.toml)\n\
                    [here](#here) [there](#there)\n[style](../docs/style.md#no-such-heading)\n\
                    [names](../docs/style.md#names)\n";
        let found = check(root, Path::new("README.md"), text);
        let expected = [
            (3, "dead link gone.md"),
            (5, "dead anchor #there"),
            (6, "dead anchor ../docs/style.md#no-such-heading"),
        ];
        let expected =
            expected.map(|(line, text)| Finding::new(Path::new("README.md"), line, text));
        assert_eq!(found, expected);
    }
}
