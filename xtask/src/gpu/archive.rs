//! The archives of a pack: how they are compressed and unpacked, and whether they fit beside the tree.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::shell;

/// The compressor: one window over the whole archive, and the filter for jumps in x86 code.
const COMPRESSOR: &str = if cfg!(target_arch = "x86_64") {
    "xz --threads=1 --x86 --lzma2=preset=9e,dict=128MiB"
} else {
    "xz --threads=1 --lzma2=preset=9e,dict=128MiB"
};

/// Unpacks the archives beside it, each once, and starts a command. Where there is no xz, Python unpacks them.
const SCRIPT: &str = r#"#!/bin/sh
# Unpacks the archives beside this file, once, and runs `cargo xtask gpu "$@"` for the tree that is the working directory.
set -e
here=$(cd "$(dirname "$0")" && pwd)
to=${REALIZAR_GPU_TOOLS:-${TMPDIR:-/tmp}/realizar-gpu-ID}
mkdir -p "$to"
for archive in "$here"/*.tar.xz; do
    done="$to/$(basename "$archive").unpacked"
    test -e "$done" && continue
    if command -v xz >/dev/null; then
        xz --decompress --stdout "$archive" | tar -xf - -C "$to"
    else
        python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$archive" "$to"
    fi
    touch "$done"
done
exec "$to/xtask" gpu "$@"
"#;

/// The script, for the folder of this archive.
pub(super) fn script(archive: &Path) -> Result<String> {
    let bytes = fs::read(archive).with_context(|| archive.display().to_string())?;
    let id: String = Sha256::digest(&bytes)[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(SCRIPT.replace("-ID", &format!("-{id}")))
}

/// Compresses what is in a folder (needs tar and xz); returns the archive's size.
pub(super) fn compress(folder: &Path, archive: &Path) -> Result<Bytes> {
    let mut tar = std::process::Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg("--use-compress-program").arg(COMPRESSOR).arg("-cf").arg(archive);
    shell::check(tar.arg("-C").arg(folder).arg("."))?;
    Ok(Bytes(fs::metadata(archive).with_context(|| archive.display().to_string())?.len()))
}

/// Bytes of the files that git tracks or would, but for those of `except`.
pub(super) fn tree_size(except: &Path) -> Result<Bytes> {
    let mut git = shell::command("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]);
    let listed = shell::output(&mut git)?;
    let root = shell::root();
    let root = root.canonicalize().with_context(|| root.display().to_string())?;
    let paths = listed.split('\0').filter(|name| !name.is_empty()).map(|name| root.join(name));
    // A file that was removed and is still in the index does not travel.
    let sizes = paths
        .filter(|path| !path.starts_with(except))
        .filter_map(|path| fs::symlink_metadata(path).ok().map(|about| about.len()));
    Ok(Bytes(sizes.sum()))
}

/// A number of bytes, printed in MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bytes(pub(super) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB", self.0 as f64 / f64::from(1 << 20))
    }
}

/// What travels beside archives, and how much may.
pub(super) struct Sizes {
    pub(super) tree: Bytes,
    pub(super) limit: u64,
}

impl Sizes {
    /// Whether each archive fits beside the tree; prints all sizes.
    pub(super) fn check(&self, archives: &[(&str, Bytes)]) -> Result<()> {
        let limit = Bytes(self.limit);
        for (name, size) in archives {
            let both = Bytes(self.tree.0 + size.0);
            let line = format!("the tree {} + {name} {size} = {both} of {limit}", self.tree);
            if both > limit {
                bail!("too large: {line}");
            }
            println!("{line}");
        }
        let all = Bytes(self.tree.0 + archives.iter().map(|(_, size)| size.0).sum::<u64>());
        if archives.len() > 1 && all > limit {
            println!("together {all}, so a call takes one archive alone");
        }
        Ok(())
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn an_archive_fits_beside_the_tree_or_is_refused_with_both_sizes() {
        let sizes = Sizes { tree: Bytes(42 << 20), limit: 64 << 20 };
        assert!(sizes.check(&[("the programs", Bytes(22 << 20))]).is_ok());
        assert!(sizes.check(&[("a", Bytes(20 << 20)), ("b", Bytes(21 << 20))]).is_ok());
        let error = sizes.check(&[("the programs", Bytes(23 << 20))]).unwrap_err().to_string();
        let expected =
            "too large: the tree 42.0 MiB + the programs 23.0 MiB = 65.0 MiB of 64.0 MiB";
        assert_eq!(error, expected);
    }

    #[test]
    fn what_was_packed_is_unpacked_once_and_started() {
        let folder = tempfile::tempdir().unwrap();
        let (stage, packed, to) =
            (folder.path().join("s"), folder.path().join("p"), folder.path().join("to"));
        for path in [&stage, &packed] {
            fs::create_dir(path).unwrap();
        }
        let program = stage.join("xtask");
        fs::write(&program, "#!/bin/sh\necho \"$@\"\n").unwrap();
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        fs::hard_link(&program, stage.join("again")).unwrap();
        let archive = packed.join("programs.tar.xz");
        if shell::on_path("xz").is_none() {
            println!("skipped: no xz");
            return;
        }
        let size = compress(&stage, &archive).unwrap();
        assert_eq!(size.0, fs::metadata(&archive).unwrap().len());
        let start = packed.join("start.sh");
        fs::write(&start, script(&archive).unwrap()).unwrap();
        let call = || {
            let mut command = std::process::Command::new("sh");
            command.arg(&start).args(["quick", "--out"]).env("REALIZAR_GPU_TOOLS", &to);
            shell::output(&mut command).unwrap()
        };
        assert_eq!(call(), "gpu quick --out\n");
        assert!(to.join("again").is_file());
        // The second call unpacks nothing.
        fs::write(to.join("xtask"), "#!/bin/sh\necho changed\n").unwrap();
        assert_eq!(call(), "changed\n");
    }
}
