//! Extremes of a slice, compared in the order of ggml's reference.

/// The largest magnitude; 0 if empty.
pub(crate) fn peak(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |peak, v| peak.max(v.abs()))
}

/// The value of largest magnitude, the first among equals; 0 if all are 0.
pub(crate) fn signed_peak(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |peak: f32, v| if v.abs() > peak.abs() { *v } else { peak })
}

/// The smallest and the largest value.
pub(crate) fn min_max(values: &[f32]) -> (f32, f32) {
    let first = values.first().copied().unwrap_or(0.0);
    values.iter().fold((first, first), |(min, max), v| (min.min(*v), max.max(*v)))
}
