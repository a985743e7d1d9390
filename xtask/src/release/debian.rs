//! A Debian package, put together by `dpkg-deb` from a folder and a control file.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::Release;
use crate::shell;

/// The folder of each kind of file: (name of the file made, path in the package).
const COMPLETIONS: &[(&str, &str)] = &[
    ("realizar.bash", "usr/share/bash-completion/completions/realizar"),
    ("_realizar", "usr/share/zsh/vendor-completions/_realizar"),
    ("realizar.fish", "usr/share/fish/vendor_completions.d/realizar.fish"),
];

/// Writes the package, where `dpkg-deb` is installed.
pub(super) fn build(release: &Release) -> Result<()> {
    let arch = match release.triple.as_str() {
        "x86_64-unknown-linux-gnu" => "amd64",
        "aarch64-unknown-linux-gnu" => "arm64",
        triple => {
            println!("release: no Debian package for {triple}");
            return Ok(());
        }
    };
    if shell::on_path("dpkg-deb").is_none() {
        println!("release: no Debian package, as dpkg-deb is not installed");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let root = folder.path();
    let put = |from: &Path, to: &str| -> Result<()> {
        let to = root.join(to);
        fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
        fs::copy(from, &to).with_context(|| from.display().to_string())?;
        Ok(())
    };
    put(&release.program, "usr/bin/realizar")?;
    put(
        &shell::root().join("deploy/systemd/realizar.service"),
        "usr/lib/systemd/system/realizar.service",
    )?;
    let extras = release.extras.path();
    for (file, path) in COMPLETIONS {
        put(&extras.join("completions").join(file), path)?;
    }
    for entry in fs::read_dir(extras.join("man"))? {
        let page = entry?;
        let name = page.file_name().to_string_lossy().into_owned();
        let path = format!("usr/share/man/man1/{name}");
        put(&page.path(), &path)?;
        shell::check(shell::command("gzip").arg("-9nf").arg(root.join(path)))?;
    }
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        put(&shell::root().join(licence), &format!("usr/share/doc/realizar/{licence}"))?;
    }
    let copyright = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
                     Upstream-Name: realizar\n\nFiles: *\nCopyright: the authors of realizar\n\
                     License: Expat or Apache-2.0\n See LICENSE-MIT and LICENSE-APACHE in this folder.\n";
    fs::write(root.join("usr/share/doc/realizar/copyright"), copyright)?;
    fs::create_dir(root.join("DEBIAN"))?;
    let program = fs::read(&release.program)?;
    let (major, minor) = glibc(&program).context("the program names no version of glibc")?;
    let kib = program.len().div_ceil(1024);
    let control = format!(
        "Package: realizar\nVersion: {}\nArchitecture: {arch}\nMaintainer: The realizar authors <realizar@users.noreply.github.com>\n\
         Section: science\nPriority: optional\nInstalled-Size: {kib}\n\
         Depends: libc6 (>= {major}.{minor}), libgcc-s1\nRecommends: ca-certificates\n\
         Suggests: libvulkan1, mesa-vulkan-drivers, python3-pip\n\
         Homepage: https://github.com/realizar/realizar\n\
         Description: inference engine for large language models\n \
         Loads GGUF and safetensors models as they are, on CPUs and GPUs, and chats,\n serves, \
         embeds and measures.\n",
        release.version
    );
    fs::write(root.join("DEBIAN/control"), control)?;
    let name = format!("realizar_{}_{arch}.deb", release.version);
    let mut pack = shell::command("dpkg-deb");
    pack.args(["--root-owner-group", "-Zxz", "--build"]).arg(root).arg(release.out.join(&name));
    let text = shell::output(pack.env("SOURCE_DATE_EPOCH", "0"))?;
    if !text.contains("building package") {
        bail!("dpkg-deb: {text}");
    }
    Ok(())
}

/// The newest version of glibc that a program asks for (`GLIBC_2.34` among its symbols' versions).
fn glibc(program: &[u8]) -> Option<(u32, u32)> {
    let mark = b"GLIBC_";
    let at = program.windows(mark.len()).enumerate().filter(|(_, w)| w == mark).map(|(i, _)| i);
    at.filter_map(|i| {
        let rest = &program[i + mark.len()..];
        let text: String = rest
            .iter()
            .map(|&b| char::from(b))
            .take_while(|c| c.is_ascii_digit() || *c == '.')
            .collect();
        let (major, minor) = text.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    })
    .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_glibc_is_found() {
        assert_eq!(glibc(b"x\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0GLIBC_PRIVATE"), Some((2, 34)));
        assert_eq!(glibc(b"GLIB"), None);
    }
}
