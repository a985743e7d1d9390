//! Licences of packages, as SPDX expressions.

use anyhow::{Result, bail};
use spdx::{Expression, ParseMode};

/// Fails if the licence, an SPDX expression, is not one of those allowed.
pub(crate) fn check(text: &str, allowed: &[String]) -> Result<()> {
    let licence = Expression::parse_mode(text, ParseMode::LAX)?;
    if !licence.evaluate(|needed| allowed.contains(&needed.to_string())) {
        bail!("its licence `{text}` is not allowed");
    }
    Ok(())
}
