//! For tests: a packed folder whose programs are scripts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use super::place::Place;

/// A limit that no test comes to.
pub(super) const LONG: Duration = Duration::from_secs(100);

/// One at a time: a process that another test starts meanwhile would hold a script open for writing, which then cannot be
/// started.
static ONE: Mutex<()> = Mutex::new(());

/// The folder.
pub(super) struct Folder(
    tempfile::TempDir,
    #[expect(dead_code, reason = "held")] MutexGuard<'static, ()>,
);

impl Folder {
    pub(super) fn new(programs: &[(&str, &str)]) -> Self {
        let one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in programs {
            let path = folder.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        for name in ["out", "models"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self(folder, one)
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn place(&self, device: &str) -> Place {
        let root = self.0.path();
        Place {
            root: root.to_owned(),
            tree: root.to_owned(),
            out: root.join("out"),
            models: root.join("models"),
            device: device.to_owned(),
            layers: None,
            tests: ["ops::wgmma::tests::a", "ops::levels::tests::b", "c"]
                .map(str::to_owned)
                .to_vec(),
            tiny: vec!["llama".to_owned(), "qwen2_moe".to_owned()],
            sanitizer: Some("compute-sanitizer".into()),
            ncu: Some("ncu".into()),
            llama: Some("llama".into()),
            libraries: Some("lib".to_owned()),
            n_cores: 2,
            n_gpus: 2,
        }
    }
}
