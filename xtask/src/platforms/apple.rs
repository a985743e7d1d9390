//! Linking for macOS where Apple's SDK is not: stubs name the system's libraries, and their symbols are
//! looked up when the program starts. With `SDKROOT` set, the SDK is used.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

/// Frameworks that the program is linked with.
const FRAMEWORKS: &[&str] =
    &["CoreFoundation", "CoreGraphics", "Foundation", "Metal", "QuartzCore"];

/// Libraries: (name, its path on macOS).
const LIBRARIES: &[(&str, &str)] = &[("objc", "/usr/lib/libobjc.A.dylib")];

/// Tells cargo where the stubs are, which are written to `folder`.
pub(super) fn link(cargo: &mut Command, triple: &str, folder: &Path) -> Result<()> {
    if std::env::var_os("SDKROOT").is_some() {
        return Ok(());
    }
    let stubs = folder.join("stubs");
    for name in FRAMEWORKS {
        let framework = stubs.join(format!("{name}.framework"));
        fs::create_dir_all(&framework)?;
        let path = format!("/System/Library/Frameworks/{name}.framework/Versions/A/{name}");
        fs::write(framework.join(format!("{name}.tbd")), stub(&path))?;
    }
    for (name, path) in LIBRARIES {
        fs::write(stubs.join(format!("lib{name}.tbd")), stub(path))?;
    }
    let flag = |kind: &str| format!("\"-L{kind}={}\"", stubs.display());
    let flags = [flag("framework"), flag("native")].join(", ");
    cargo.args(["--config", &format!("target.{triple}.rustflags=[{flags}]")]);
    Ok(())
}

/// A library without symbols, as Apple's linkers read it.
fn stub(path: &str) -> String {
    format!(
        "--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos, x86_64-macos ]\n\
         install-name: '{path}'\n...\n"
    )
}
