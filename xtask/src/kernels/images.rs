//! The committed images of CUDA kernels, and the list of hashes that ties each to what it was made of.
//!
//! The list has the form that `sha256sum --check` reads, from the folder of the crate. The line before that of an image, a
//! comment to that program, has the hash of its ingredients: its source, the headers that it includes, the compiler and
//! its options. So each image is current or stale by itself.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use brotli_decompressor::Decompressor;
use sha2::{Digest, Sha256};

/// The sources.
pub(crate) const SOURCES: &str = "crates/kernels-cuda/cuda";
/// What was compiled from them.
pub(crate) const IMAGES: &str = "crates/kernels-cuda/image";
/// The hashes of images and ingredients.
pub(crate) const LIST: &str = "crates/kernels-cuda/image/SHA256SUMS";

/// The report of [`resources`](super::resources).
pub(crate) const RESOURCES: &str = "crates/kernels-cuda/image/RESOURCES";

/// What lies beside the images.
const BESIDE: [&str; 2] = [LIST, RESOURCES];

/// The image of a source.
pub(crate) fn image_name(source: &Path) -> PathBuf {
    PathBuf::from(source.file_name().unwrap_or_default()).with_extension("ptx.br")
}

/// The files of a folder, by name.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut files = entries.map(|e| Ok(e?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.is_file());
    files.sort();
    Ok(files)
}

/// The images that are there, by name.
pub(super) fn packed(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = files(&root.join(IMAGES))?;
    files.retain(|file| file.to_string_lossy().ends_with(".ptx.br"));
    Ok(files)
}

/// The text of an image.
pub(super) fn unpacked(image: &Path) -> Result<String> {
    let file = fs::File::open(image).with_context(|| image.display().to_string())?;
    let mut text = String::new();
    let mut unpacked = Decompressor::new(file, 1 << 16);
    unpacked.read_to_string(&mut text).with_context(|| image.display().to_string())?;
    Ok(text)
}

/// The kernels of a module of PTX, in its order.
pub(super) fn kernels(ptx: &str) -> Vec<&str> {
    let entries = ptx.lines().filter_map(|line| line.strip_prefix(".visible .entry "));
    entries.filter_map(|rest| rest.split('(').next()).map(str::trim).collect()
}

/// The SHA-256 of a file in hexadecimal digits.
pub(crate) fn hash(file: &Path) -> Result<String> {
    let bytes = fs::read(file).with_context(|| file.display().to_string())?;
    Ok(hex(Sha256::new_with_prefix(bytes)))
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// A source and the headers in its folder that it includes, directly or not, by name.
fn ingredients(source: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut open = vec![source.to_owned()];
    while let Some(file) = open.pop() {
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let named = text.lines().filter_map(|line| line.trim().strip_prefix("#include \""));
        let names = named.filter_map(|rest| rest.split('"').next());
        open.extend(names.map(|name| file.with_file_name(name)).filter(|f| !found.contains(f)));
        found.insert(file);
    }
    Ok(found)
}

/// The hash of what an image is made of; `recipe` is how.
fn recipe_hash(source: &Path, recipe: &str) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(recipe);
    for file in ingredients(source)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        hash.update(format!("\n{name} {}", self::hash(&file)?));
    }
    Ok(hex(hash))
}

/// The image that a source would be made to.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) source: PathBuf,
    /// The hash of its ingredients.
    made_of: String,
}

/// The images of sources, each of which stands with its recipe.
pub(crate) fn wanted(sources: &[(PathBuf, String)]) -> Result<Vec<Wanted>> {
    let wanted = |(source, recipe): &(PathBuf, String)| {
        Ok(Wanted { source: source.clone(), made_of: recipe_hash(source, recipe)? })
    };
    sources.iter().map(wanted).collect()
}

impl Wanted {
    /// The entry of the image that is there; none if there is no image.
    fn entry(&self, root: &Path) -> Option<Entry> {
        let name = image_name(&self.source);
        let image = hash(&root.join(IMAGES).join(&name)).ok()?;
        let name = name.to_string_lossy().into_owned();
        Some(Entry { name, made_of: self.made_of.clone(), image })
    }

    /// Whether the image is there, and listed as made of the same.
    pub(crate) fn is_current(&self, root: &Path) -> bool {
        let listed = fs::read_to_string(root.join(LIST)).ok().and_then(|list| parse(&list).ok());
        self.entry(root).is_some_and(|entry| listed.unwrap_or_default().contains(&entry))
    }
}

/// An image as the list has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    /// The image's file.
    name: String,
    /// The hash of its ingredients.
    made_of: String,
    /// Its own hash.
    image: String,
}

impl Entry {
    fn line(&self) -> String {
        let Self { name, made_of, image } = self;
        format!("# image/{name} is made of {made_of}\n{image}  image/{name}\n")
    }
}

/// The entries of a list. Any other line is an error.
fn parse(list: &str) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut lines = list.lines();
    while let Some(line) = lines.next() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let next: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
        let (["#", of, "is", "made", "of", made_of], [image, file]) = (&words[..], &next[..])
        else {
            anyhow::bail!("{LIST}: `{line}` and the line after it are not an image");
        };
        ensure!(of == file, "{LIST}: {of} stands before {file}");
        let name = file.strip_prefix("image/").unwrap_or(file).to_owned();
        let (made_of, image) = ((*made_of).to_owned(), (*image).to_owned());
        entries.push(Entry { name, made_of, image });
    }
    Ok(entries)
}

/// The list of the images that are there.
pub(crate) fn list(root: &Path, images: &[Wanted]) -> Result<String> {
    let mut text = String::new();
    for image in images {
        let entry = image.entry(root);
        text += &entry.with_context(|| format!("no image of {}", image.source.display()))?.line();
    }
    Ok(text)
}

/// The images that are not what they would be made to now, that are not listed, or that have no source.
pub(crate) fn stale(root: &Path, sources: &[(PathBuf, String)]) -> Result<Vec<String>> {
    let listed = fs::read_to_string(root.join(LIST)).with_context(|| LIST.to_owned())?;
    let wanted = wanted(sources)?;
    let found: Vec<Entry> = wanted.iter().filter_map(|image| image.entry(root)).collect();
    let mut names = differing(&parse(&listed)?, &found);
    for file in files(&root.join(IMAGES))? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !BESIDE.iter().any(|list| file == root.join(list))
            && !found.iter().any(|entry| entry.name == name)
        {
            names.push(name);
        }
    }
    Ok(names)
}

/// The names of entries that one side has and the other has not, or not in the same way.
fn differing(listed: &[Entry], found: &[Entry]) -> Vec<String> {
    let missing = |a: &[Entry], b: &[Entry]| -> Vec<String> {
        a.iter().filter(|entry| !b.contains(entry)).map(|entry| entry.name.clone()).collect()
    };
    let mut names = missing(found, listed);
    names.extend(missing(listed, found));
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, made_of: &str, image: &str) -> Entry {
        Entry { name: name.to_owned(), made_of: made_of.to_owned(), image: image.to_owned() }
    }

    #[test]
    fn images_that_changed_came_or_went_are_named() {
        let listed = [entry("a.ptx.br", "aa", "ab"), entry("b.ptx.br", "ba", "bb")];
        let cases: [(&[Entry], &[&str]); 5] = [
            (&listed, &[]),
            (&[entry("a.ptx.br", "ac", "ab"), listed[1].clone()], &["a.ptx.br"]),
            (&[entry("a.ptx.br", "aa", "ac"), listed[1].clone()], &["a.ptx.br"]),
            (&listed[..1], &["b.ptx.br"]),
            (&[listed[0].clone(), listed[1].clone(), entry("c.ptx.br", "c", "c")], &["c.ptx.br"]),
        ];
        for (found, expected) in cases {
            assert_eq!(differing(&listed, found), expected, "{found:?}");
        }
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let entries = [entry("a.ptx.br", "aa", "ab"), entry("b.ptx.br", "ba", "bb")];
        let text: String = entries.iter().map(Entry::line).collect();
        assert_eq!(parse(&text).unwrap(), entries);
        for broken in ["aa  image/a.ptx.br", "# image/a is made of aa\nbb  image/b", "<<<<<<<"] {
            assert!(parse(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn the_kernels_of_an_image_are_its_entries() {
        let ptx = "// .visible .entry no()\n.target sm_80\n.visible .entry one(\n\t.param .u64 a\n)\n\
                   {\n}\n.func two()\n.visible .entry three()\n.entry\n";
        assert_eq!(kernels(ptx), ["one", "three"]);
    }

    #[test]
    fn an_image_is_made_of_all_headers_that_its_source_leads_to() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let put = |name: &str, text: &str| fs::write(at(name), text).unwrap();
        put("k.cu", "// A kernel.\n#include \"a.cuh\"\n#include <stdint.h>\n");
        put("a.cuh", "#pragma once\n  #include \"b.cuh\"\n");
        put("b.cuh", "#include \"a.cuh\"\n");
        put("c.cuh", "");
        let found: Vec<_> = ingredients(&at("k.cu")).unwrap().into_iter().collect();
        assert_eq!(found, ["a.cuh", "b.cuh", "k.cu"].map(at));
        let before = recipe_hash(&at("k.cu"), "recipe").unwrap();
        put("c.cuh", "int c;");
        assert_eq!(recipe_hash(&at("k.cu"), "recipe").unwrap(), before);
        assert_ne!(recipe_hash(&at("k.cu"), "another").unwrap(), before);
        put("b.cuh", "int b;");
        assert_ne!(recipe_hash(&at("k.cu"), "recipe").unwrap(), before);
    }
}
