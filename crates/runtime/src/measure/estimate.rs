//! Statistics of what is measured token by token, with their standard errors.

/// A statistic with its standard error.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// Its standard error.
    pub error: f64,
}

impl Estimate {
    /// The exponential, with the error to first order.
    pub(super) fn exp(self) -> Self {
        let value = self.value.exp();
        Self { value, error: self.error * value }
    }
}

/// The sum of a quantity over all tokens, and that of its squares.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Sum {
    sum: f64,
    pub(super) squares: f64,
}

impl Sum {
    pub(super) fn add(&mut self, x: f64) {
        self.sum += x;
        self.squares += x * x;
    }

    /// The mean of `n` values.
    pub(super) fn mean(&self, n: usize) -> Estimate {
        let value = self.sum / n as f64;
        let variance = (self.squares / n as f64 - value * value).max(0.0);
        Estimate { value, error: (variance / degrees(n)).sqrt() }
    }
}

/// What a variance of `n` values is divided by for that of their mean.
pub(super) fn degrees(n: usize) -> f64 {
    if n > 1 { (n - 1) as f64 } else { f64::INFINITY }
}
