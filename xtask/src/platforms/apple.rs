//! Linking for macOS where Apple's SDK is not: stubs name the system's libraries and those of their symbols
//! that the program uses. With `SDKROOT` set, the SDK is used.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

/// A library of macOS that the program is linked with.
struct Library {
    name: &'static str,
    is_framework: bool,
    /// Classes are looked up by name, at run time.
    symbols: &'static [&'static str],
}

/// A symbol that is missing here is an error of the linker that names it.
const LIBRARIES: &[Library] = &[
    Library { name: "CoreFoundation", is_framework: true, symbols: &["_CFRelease"] },
    Library {
        name: "CoreGraphics",
        is_framework: true,
        symbols: &[
            "_CGColorSpaceCreateWithName",
            "_kCGColorSpaceDisplayP3",
            "_kCGColorSpaceExtendedLinearSRGB",
            "_kCGColorSpaceExtendedSRGB",
        ],
    },
    Library { name: "Foundation", is_framework: true, symbols: &["_NSKeyValueChangeNewKey"] },
    Library { name: "Metal", is_framework: true, symbols: &["_MTLCopyAllDevices"] },
    Library { name: "QuartzCore", is_framework: true, symbols: &[] },
    Library {
        name: "objc",
        is_framework: false,
        symbols: &[
            "_class_addIvar",
            "_class_addMethod",
            "_class_getInstanceVariable",
            "_class_getName",
            "_class_isMetaClass",
            "_class_respondsToSelector",
            "_ivar_getOffset",
            "_objc_alloc",
            "_objc_allocateClassPair",
            "_objc_autoreleasePoolPop",
            "_objc_autoreleasePoolPush",
            "_objc_destroyWeak",
            "_objc_disposeClassPair",
            "_objc_getClass",
            "_objc_initWeak",
            "_objc_loadWeakRetained",
            "_objc_msgSend",
            "_objc_msgSendSuper",
            "_objc_registerClassPair",
            "_objc_release",
            "_objc_retain",
            "_objc_retainAutoreleasedReturnValue",
            "_object_getClass",
            "_sel_getName",
            "_sel_registerName",
        ],
    },
];

/// The oldest macOS that Rust's programs run on. zig takes a newer one if none is named.
const OLDEST: (&str, &str) = ("MACOSX_DEPLOYMENT_TARGET", "11.0");

/// Tells cargo for which macOS to link, and where the stubs are, which are written to `folder`.
pub(super) fn link(cargo: &mut Command, triple: &str, folder: &Path) -> Result<()> {
    if std::env::var_os(OLDEST.0).is_none() {
        cargo.env(OLDEST.0, OLDEST.1);
    }
    if std::env::var_os("SDKROOT").is_some() {
        return Ok(());
    }
    let stubs = folder.join("stubs");
    for library in LIBRARIES {
        let name = library.name;
        let file = if library.is_framework {
            stubs.join(format!("{name}.framework/{name}.tbd"))
        } else {
            stubs.join(format!("lib{name}.tbd"))
        };
        fs::create_dir_all(file.parent().unwrap_or(&stubs))?;
        fs::write(file, library.stub())?;
    }
    let flag = |kind: &str| format!("\"-L{kind}={}\"", stubs.display());
    let flags = [flag("framework"), flag("native")].join(", ");
    cargo.args(["--config", &format!("target.{triple}.rustflags=[{flags}]")]);
    Ok(())
}

impl Library {
    /// What a linker reads of it.
    fn stub(&self) -> String {
        let name = self.name;
        let path = if self.is_framework {
            format!("/System/Library/Frameworks/{name}.framework/Versions/A/{name}")
        } else {
            format!("/usr/lib/lib{name}.A.dylib")
        };
        let targets = "[ arm64-macos, x86_64-macos ]";
        let symbols = self.symbols.join(", ");
        format!(
            "--- !tapi-tbd\ntbd-version: 4\ntargets: {targets}\ninstall-name: '{path}'\n\
             exports:\n  - targets: {targets}\n    symbols: [ {symbols} ]\n...\n"
        )
    }
}
