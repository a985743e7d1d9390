//! Plain text and Markdown tables.

/// A Markdown table with aligned columns; reads well in a terminal too.
pub(crate) fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &[String]| {
        let padded = cells.iter().zip(&widths).map(|(c, &w)| format!("{c:<w$}"));
        format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
    };
    let header: Vec<String> = header.iter().map(|&h| h.to_owned()).collect();
    let rule: Vec<String> = widths.iter().map(|&w| "-".repeat(w)).collect();
    let mut out = line(&header) + &line(&rule);
    for row in rows {
        out += &line(row);
    }
    out
}

/// The middle value; the mean of the two middle values for an even count, NaN for none.
#[cfg(feature = "all")]
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mid = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[mid],
        _ => (sorted[mid - 1] + sorted[mid]) / 2.0,
    }
}

/// Three digits or more, for whole zeros one; a dash for no value.
#[cfg(feature = "all")]
pub(crate) fn shown(value: f64) -> String {
    let digits = match value {
        _ if value.is_nan() => return "-".to_owned(),
        0.0 | 100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["llama".to_owned(), "ok".to_owned()]];
        assert_eq!(
            render(&["name", "result"], &rows),
            "| name  | result |\n| ----- | ------ |\n| llama | ok     |\n"
        );
    }

    #[test]
    #[cfg(feature = "all")]
    fn median_of_odd_and_even_counts() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    #[cfg(feature = "all")]
    fn values_have_three_digits() {
        let cases =
            [(1234.5, "1234"), (99.96, "100.0"), (0.256, "0.26"), (0.0, "0"), (f64::NAN, "-")];
        for (value, text) in cases {
            assert_eq!(shown(value), text);
        }
    }
}
