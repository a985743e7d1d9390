//! Mesa's lavapipe: Vulkan on the processor, so that GPU kernels run on any Linux machine.
//!
//! It is pinned by the environment of the program that is started, whatever other drivers there
//! are, and its vector width sets the size of subgroups.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::shell;

/// Where Vulkan drivers are registered.
const DRIVER_FOLDERS: &[&str] =
    &["/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d"];

/// Bits of lavapipe's vectors; a subgroup has one invocation per 32 of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Width {
    /// Subgroups of 4.
    #[value(name = "128")]
    W128,
    /// Subgroups of 8.
    #[value(name = "256")]
    W256,
    /// Subgroups of 16.
    #[value(name = "512")]
    W512,
}

impl Width {
    /// The number of bits.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::W128 => 128,
            Self::W256 => 256,
            Self::W512 => 512,
        }
    }
}

/// The file that registers lavapipe, if it is installed.
pub(crate) fn driver() -> Option<PathBuf> {
    DRIVER_FOLDERS.iter().find_map(|folder| driver_in(Path::new(folder)))
}

fn driver_in(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?;
    let mut files: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    files.retain(|path| {
        let name = name(path);
        name.starts_with("lvp_icd") && name.ends_with(".json")
    });
    // Some systems have a driver for each of several instruction sets.
    let own = format!(".{}.", std::env::consts::ARCH);
    files.sort_by_key(|path| (!name(path).contains(&own), path.clone()));
    files.into_iter().next()
}

fn name(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// The environment in which a program sees lavapipe and no other driver.
pub(crate) fn environment(width: Option<Width>) -> Result<Vec<(&'static str, OsString)>> {
    let driver = driver().with_context(|| {
        format!(
            "lavapipe, Mesa's Vulkan driver for the processor, is not installed (no lvp_icd*.json \
             in {}); `cargo xtask setup` installs it or says how",
            DRIVER_FOLDERS.join(", ")
        )
    })?;
    let mut environment = vec![
        ("VK_DRIVER_FILES", driver.into_os_string()),
        // What it has compiled serves later programs, and later runs.
        ("MESA_SHADER_CACHE_DIR", shell::cache_dir().join("shaders").into_os_string()),
    ];
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // The driver looks for a display there and complains when the variable is not set.
        environment.push(("XDG_RUNTIME_DIR", std::env::temp_dir().into_os_string()));
    }
    if let Some(width) = width {
        environment.push(("LP_NATIVE_VECTOR_WIDTH", width.bits().to_string().into()));
    }
    Ok(environment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_is_found_by_its_name() {
        let folder = std::env::temp_dir().join(format!("xtask-icd-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(driver_in(&folder), None);
        let own = format!("lvp_icd.{}.json", std::env::consts::ARCH);
        let others = ["nvidia_icd.json", "lvp_icd.a.json", "lvp_icd.z.json", "lvp_icd.a.json.bak"];
        for name in others {
            std::fs::write(folder.join(name), "{}").unwrap();
        }
        assert_eq!(driver_in(&folder), Some(folder.join("lvp_icd.a.json")));
        std::fs::write(folder.join(&own), "{}").unwrap();
        assert_eq!(driver_in(&folder), Some(folder.join(own)));
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(driver_in(&folder), None);
    }

    #[test]
    fn widths_are_numbers_of_bits() {
        for (name, bits) in [("128", 128), ("256", 256), ("512", 512)] {
            assert_eq!(Width::from_str(name, false).unwrap().bits(), bits);
        }
    }
}
