//! Has the driver compile images of kernels, which it keeps for the processes after this one: several processes share them, each
//! with every Nth. Images are compiled as they are and, where the GPU takes them, for dependent launches. One JSON object.
//!
//! Usage: `compile FOLDER PART PARTS FIRST,…`: a folder of images, which part of how many, and the names of those that come first.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use realizar_kernels_cuda::{Driver, tests};
use serde_json::json;

/// The end of an image's name.
const ENDING: &str = ".ptx.br";

pub(crate) fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [folder, part, parts, first] => match (part.parse(), parts.parse()) {
            (Ok(part), Ok(parts)) if (1..=parts).contains(&part) => {
                run(Path::new(folder), part, parts, &first.split(',').collect::<Vec<_>>())
            }
            _ => Err(format!("{part} of {parts} is no part")),
        },
        _ => Err("usage: compile FOLDER PART PARTS FIRST,…".to_owned()),
    };
    match done {
        Ok(json) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(folder: &Path, part: usize, parts: usize, first: &[&str]) -> Result<String, String> {
    let plain = Driver::open(0).map_err(|e| e.to_string())?;
    let early = Driver::open(0).and_then(Driver::with_early_launches).ok();
    let (first, others): (Vec<_>, Vec<_>) =
        images(folder)?.into_iter().partition(|(name, _)| first.contains(&name.as_str()));
    let devices =
        || std::iter::once(("", &plain)).chain(early.as_ref().map(|driver| (" early", driver)));
    // Those that come first in both forms, then the others.
    let all = [first, others].into_iter().flat_map(|images| {
        devices()
            .flat_map(move |device| images.clone().into_iter().map(move |image| (device, image)))
    });
    let mut seconds = BTreeMap::new();
    let mut refused = BTreeMap::new();
    for ((mode, driver), (name, path)) in all.skip(part - 1).step_by(parts) {
        let image = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let start = Instant::now();
        let name = format!("{name}{mode}");
        // The images of one capability alone are refused by GPUs of others.
        match tests::load_image(driver, &name, &image) {
            Ok(()) => drop(seconds.insert(name, start.elapsed().as_secs_f64())),
            Err(error) => drop(refused.insert(name, error.to_string())),
        }
    }
    Ok(json!({"seconds": seconds, "refused": refused}).to_string())
}

/// The images of a folder, the largest first.
fn images(folder: &Path) -> Result<Vec<(String, PathBuf)>, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut images = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(name) = name.strip_suffix(ENDING) {
            images.push((entry.metadata().map_err(failed)?.len(), name.to_owned(), entry.path()));
        }
    }
    images.sort_by(|a, b| b.cmp(a));
    Ok(images.into_iter().map(|(_, name, path)| (name, path)).collect())
}

#[cfg(test)]
mod tests_of_images {
    use super::*;

    #[test]
    fn images_are_those_of_the_crate_the_largest_first() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/kernels-cuda/image");
        let images = images(&folder).unwrap();
        let sizes: Vec<u64> =
            images.iter().map(|(_, path)| std::fs::metadata(path).unwrap().len()).collect();
        assert!(images.len() > 50 && sizes.is_sorted_by(|a, b| a >= b));
        assert!(images.iter().any(|(name, _)| name == "type_q4_k"));
    }
}
