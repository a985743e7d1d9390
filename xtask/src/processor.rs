//! The processor: its name, and how long a step or a build kept it.

use std::fs;

/// Ticks of a second in `/proc`: Linux has this number on every processor.
const TICKS: f64 = 100.0;

/// Seconds of processor time of this process and of those that it has waited for; `None` where there is no
/// `/proc`.
pub(crate) fn seconds() -> Option<f64> {
    seconds_of(&fs::read_to_string("/proc/self/stat").ok()?)
}

/// The sum of utime, stime, cutime and cstime (proc_pid_stat(5), fields 14 to 17).
fn seconds_of(stat: &str) -> Option<f64> {
    // The second field is the program's name, which may have blanks and brackets.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(4).map(|field| field.parse::<f64>().ok());
    Some(ticks.sum::<Option<f64>>()? / TICKS)
}

/// The processor's name as the kernel gives it; the architecture where it gives none.
pub(crate) fn name() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find_map(|l| l.strip_prefix("model name"));
    let name = line.and_then(|l| l.split_once(':')).map(|(_, name)| name.trim().to_owned());
    name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_behind_any_name() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 100 20 3 7 15 16";
        assert_eq!(seconds_of(&format!("9 (a) b) {fields}")), Some(1.3));
        assert_eq!(seconds_of("9 (a) S 1"), Some(0.0));
        assert_eq!(seconds_of("9"), None);
    }
}
