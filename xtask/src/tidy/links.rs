//! Relative links of Markdown files lead somewhere.

use std::path::Path;

use super::Finding;

/// Check the links of one Markdown file.
pub(super) fn check(root: &Path, file: &Path, text: &str) -> Vec<Finding> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let dead = relative_links(text).into_iter().filter(|(_, link)| {
        let target = link.strip_prefix('/').map_or(folder.join(link), |l| l.into());
        !root.join(target).exists()
    });
    dead.map(|(line, link)| Finding::new(file, line, format!("dead link {link}"))).collect()
}

/// (line number, path) of each inline link that is not a URL or an anchor; fenced code is skipped.
fn relative_links(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    let mut fenced = false;
    for (idx, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for piece in line.split("](").skip(1) {
            let Some((target, _)) = piece.split_once(')') else { continue };
            let target = target.split([' ', '#']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
                links.push((idx + 1, target));
            }
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found() {
        let text = "[a](b.md) and [c](https://x.y/z)\n```\n[no](no.md)\n```\n[d](e.md#f) [g](#h)\n";
        assert_eq!(relative_links(text), [(1, "b.md"), (5, "e.md")]);
    }

    #[test]
    fn dead_links_are_reported() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = "[manifest](Cargo.toml)\n[gone](gone.md)\n[up](/Cargo.toml)\n";
        let found = check(root, Path::new("README.md"), text);
        assert_eq!(found, [Finding::new(Path::new("README.md"), 2, "dead link gone.md")]);
    }
}
