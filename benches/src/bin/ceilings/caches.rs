//! The sizes of this processor's caches, as the kernel reports them.

use std::fs;

/// Bytes of the unified cache of that level; a common size where the kernel reports none.
pub(crate) fn size(level: u32) -> usize {
    let reported = (0..8).find_map(|i| {
        let folder = format!("/sys/devices/system/cpu/cpu0/cache/index{i}");
        let read = |name: &str| fs::read_to_string(format!("{folder}/{name}")).ok();
        let is_wanted = read("level")?.trim() == level.to_string();
        (is_wanted && read("type")?.trim() != "Instruction").then(|| bytes(&read("size")?))?
    });
    reported.unwrap_or(if level < 3 { 512 << 10 } else { 32 << 20 })
}

/// `512K` or `32M` in bytes.
fn bytes(text: &str) -> Option<usize> {
    let text = text.trim();
    let (digits, unit) = match text.strip_suffix('K') {
        Some(digits) => (digits, 10),
        None => text.strip_suffix('M').map_or((text, 0), |digits| (digits, 20)),
    };
    digits.parse::<usize>().ok()?.checked_shl(unit)
}
