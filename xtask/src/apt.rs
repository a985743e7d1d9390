//! Packages of Debian and its relatives, installed where this user may.

use anyhow::{Context, Result};

use crate::shell;

/// Whether a program runs without an error.
fn works(program: &str, args: &[&str]) -> bool {
    shell::output(shell::command(program).args(args)).is_ok()
}

/// What stands before apt-get for a user who may install packages; none for others.
fn sudo() -> Option<&'static [&'static str]> {
    if !works("apt-get", &["--version"]) {
        None
    } else if shell::output(shell::command("id").arg("-u")).is_ok_and(|id| id.trim() == "0") {
        Some(&[])
    } else {
        works("sudo", &["-n", "true"]).then_some(&["sudo", "-n"])
    }
}

/// Whether packages can be installed at all.
pub(crate) fn may_install() -> bool {
    sudo().is_some()
}

/// Installs Debian's packages, or says how if this user may not.
pub(crate) fn install(packages: &[&str], how: &str) -> Result<()> {
    let Some(sudo) = sudo() else {
        println!("setup: no right or no apt-get to install packages; {how}");
        return Ok(());
    };
    println!("setup: {}", packages.join(" "));
    let apt = |args: &[&str]| {
        let line = [sudo, &["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"], args];
        let line = line.concat();
        shell::check(shell::command(line[0]).args(&line[1..]))
    };
    let install = [&["install", "-y", "--no-install-recommends"], packages].concat();
    let installed = apt(&["update"]).and_then(|()| apt(&install));
    installed.with_context(|| how.to_owned())
}
