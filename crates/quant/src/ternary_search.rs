//! Scale search for ternary elements: the scale of least squared error for levels -1, 0 and 1.

/// The scale, at least 0. If the `k` largest magnitudes get level 1 and the others 0, the least-squares
/// scale is the mean of the `k`, and the error falls by `sum^2 / k`. All `k` are tried.
pub(crate) fn fit_ternary(values: &[f32]) -> f32 {
    let mut magnitudes: Vec<f32> = values.iter().map(|v| v.abs()).collect();
    magnitudes.sort_unstable_by(|a, b| b.total_cmp(a));
    let (mut sum, mut best, mut best_gain) = (0.0f64, 0.0, 0.0);
    for (k, magnitude) in (1u32..).zip(magnitudes) {
        sum += f64::from(magnitude);
        let gain = sum * sum / f64::from(k);
        if gain > best_gain {
            best_gain = gain;
            best = sum / f64::from(k);
        }
    }
    best as f32
}

/// One plus the number among -1, 0 and 1 that is nearest to `x / d`.
#[inline]
pub(crate) fn ternary_level(x: f32, d: f32) -> u8 {
    match x.abs() * 2.0 >= d && d > 0.0 {
        true if x < 0.0 => 0,
        true => 2,
        false => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ternary_values_keep_their_scale() {
        let values: Vec<f32> = (0..256).map(|i| [-0.375, 0.0, 0.375, 0.0][i * 7 % 4]).collect();
        assert_eq!(fit_ternary(&values), 0.375);
        assert_eq!(fit_ternary(&[0.0; 8]), 0.0);
        assert_eq!([-0.3, -0.1, 0.0, 0.1, 0.3].map(|x| ternary_level(x, 0.375)), [0, 1, 1, 1, 2]);
        assert_eq!(ternary_level(1.0, 0.0), 1);
    }

    /// Against every scale of a fine grid.
    #[test]
    fn the_scale_has_the_least_error() {
        let values: Vec<f32> = (0..64).map(|i| ((i * i) as f32 * 0.71).sin() * i as f32).collect();
        let error = |d: f32| -> f64 {
            let values = values.iter();
            let e = values.map(|x| f64::from(d * (f32::from(ternary_level(*x, d)) - 1.0) - x));
            e.map(|e| e * e).sum()
        };
        let best = error(fit_ternary(&values));
        assert!((1..640).all(|i| best <= error(i as f32 * 0.1) * (1.0 + 1e-6)));
    }
}
