//! Tables of Markdown, which are laid out when their last row is complete.

use super::inline;
use super::layout::{Layout, Span, Style, width};

/// Between two columns.
const GAP: &str = " │ ";
const GAP_WIDTH: usize = 3;
/// A column is not made narrower than this; a table that would have to be is shown as it was written.
const MIN_COLUMN: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Align {
    Left,
    Center,
    Right,
}

/// Writes the lines of a table, and returns whether they are one.
pub(super) fn write(layout: &mut Layout, lines: &[String], base: Style) -> bool {
    let Some(aligns) = lines.get(1).and_then(|line| alignments(line)) else { return false };
    let mut rows: Vec<Vec<Vec<Span>>> = Vec::new();
    for (n, line) in lines.iter().enumerate().filter(|&(n, _)| n != 1) {
        let style = if n == 0 { base.and(Style::BOLD) } else { base };
        let mut cells: Vec<_> = cells(line)
            .iter()
            .map(|cell| inline::spans(cell).into_iter().map(|(s, t)| (s.and(style), t)).collect())
            .collect();
        cells.resize(aligns.len(), Vec::new());
        rows.push(cells);
    }
    let natural: Vec<usize> = (0..aligns.len())
        .map(|column| rows.iter().map(|row| spans_width(&row[column])).max().unwrap_or(0))
        .collect();
    let Some(widths) = fit(&natural, layout.columns()) else { return false };
    for (n, row) in rows.iter().enumerate() {
        write_row(layout, row, &widths, &aligns, base);
        if n == 0 {
            let line: Vec<_> = widths.iter().map(|&width| "─".repeat(width)).collect();
            layout.raw(base.and(Style::DIM), &line.join("─┼─"));
            layout.newline();
        }
    }
    true
}

/// The alignments that the line below the head states.
fn alignments(line: &str) -> Option<Vec<Align>> {
    let one = |cell: &String| {
        let dashes = cell.trim_start_matches(':').trim_end_matches(':');
        let is_rule = !dashes.is_empty() && dashes.bytes().all(|b| b == b'-');
        is_rule.then_some(match (cell.starts_with(':'), cell.ends_with(':')) {
            (true, true) => Align::Center,
            (false, true) => Align::Right,
            _ => Align::Left,
        })
    };
    let cells = cells(line);
    let aligns: Option<Vec<_>> = cells.iter().map(one).collect();
    aligns.filter(|aligns| !aligns.is_empty())
}

/// The cells of a row; a bar in code or after a backslash divides nothing.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim();
    let line = line.strip_prefix('|').unwrap_or(line);
    let (mut all, mut cell) = (Vec::new(), String::new());
    let (mut in_code, mut escaped) = (false, false);
    for c in line.chars() {
        match c {
            '|' if escaped => {
                cell.pop();
                cell.push('|');
            }
            '|' if !in_code => all.push(std::mem::take(&mut cell).trim().to_owned()),
            _ => cell.push(c),
        }
        in_code ^= c == '`';
        escaped = c == '\\' && !escaped;
    }
    if !cell.trim().is_empty() {
        all.push(cell.trim().to_owned());
    }
    all
}

/// The widths of the columns where the widest give way until all fit.
fn fit(natural: &[usize], columns: Option<usize>) -> Option<Vec<usize>> {
    let Some(columns) = columns else { return Some(natural.to_vec()) };
    let room = columns.checked_sub(GAP_WIDTH * (natural.len() - 1))?;
    let total = |most: usize| natural.iter().map(|&width| width.min(most)).sum::<usize>();
    let widest = natural.iter().copied().max().unwrap_or(0);
    let most = (MIN_COLUMN..=widest.max(MIN_COLUMN)).rev().find(|&most| total(most) <= room)?;
    Some(natural.iter().map(|&width| width.min(most)).collect())
}

fn write_row(
    layout: &mut Layout,
    row: &[Vec<Span>],
    widths: &[usize],
    aligns: &[Align],
    base: Style,
) {
    let cells: Vec<_> = row.iter().zip(widths).map(|(cell, &width)| wrap(cell, width)).collect();
    let height = cells.iter().map(Vec::len).max().unwrap_or(0).max(1);
    for n in 0..height {
        for (column, (cell, &columns)) in cells.iter().zip(widths).enumerate() {
            if column > 0 {
                layout.raw(base.and(Style::DIM), GAP);
            }
            let line = cell.get(n).map_or(&[][..], Vec::as_slice);
            let free = columns - spans_width(line);
            let left = match aligns[column] {
                Align::Left => 0,
                Align::Center => free / 2,
                Align::Right => free,
            };
            layout.raw(base, &" ".repeat(left));
            for (style, text) in line {
                layout.raw(*style, text);
            }
            if column + 1 < cells.len() {
                layout.raw(base, &" ".repeat(free - left));
            }
        }
        layout.newline();
    }
}

/// The lines of a cell, none wider than `columns`.
fn wrap(spans: &[Span], columns: usize) -> Vec<Vec<Span>> {
    let mut lines: Vec<Vec<Span>> = vec![Vec::new()];
    let mut used = 0;
    for (style, text) in spans {
        for word in text.split_inclusive(' ') {
            let bare = width(word.trim_end_matches(' '));
            if used + bare > columns && used > 0 {
                lines.push(Vec::new());
                used = 0;
            }
            for c in word.chars() {
                let columns_of_c = width(c.encode_utf8(&mut [0; 4]));
                if used + columns_of_c > columns {
                    // A space at the edge is the end of its line.
                    if c == ' ' {
                        continue;
                    }
                    lines.push(Vec::new());
                    used = 0;
                }
                used += columns_of_c;
                let last = lines.len() - 1;
                match lines[last].last_mut() {
                    Some((other, text)) if other == style => text.push(c),
                    _ => lines[last].push((*style, c.to_string())),
                }
            }
        }
    }
    lines
}

fn spans_width(spans: &[Span]) -> usize {
    spans.iter().map(|(_, text)| width(text)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(columns: Option<usize>, table: &str) -> Option<String> {
        let mut layout = Layout::new(columns, false);
        let lines: Vec<_> = table.lines().map(str::to_owned).collect();
        let is_table = write(&mut layout, &lines, Style::PLAIN);
        let text = layout.finish().as_str().to_owned();
        // Styles are tested elsewhere.
        let text = ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[2m"]
            .iter()
            .fold(text, |text, sequence| text.replace(sequence, ""));
        is_table.then(|| text.lines().map(|line| line.trim_end().to_owned() + "\n").collect())
    }

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let table = "| Name | N |\n|:-----|--:|\n| a | 1 |\n| 漢字 `x|y` | 22 |\n| **b** |";
        let want = "\
Name     │  N
─────────┼───
a        │  1
漢字 x|y │ 22
b        │
";
        assert_eq!(drawn(Some(40), table).as_deref(), Some(want));
        assert_eq!(drawn(None, table).as_deref(), Some(want));
    }

    #[test]
    fn wide_columns_give_way() {
        let table = "|a|text|\n|-|-|\n|1|several words in one incomprehensibly long cell|";
        let want = "\
a │ text
──┼───────────────
1 │ several words
  │ in one
  │ incomprehensib
  │ ly long cell
";
        assert_eq!(drawn(Some(18), table).as_deref(), Some(want));
        assert_eq!(drawn(Some(8), table), None);
    }

    #[test]
    fn lines_without_a_rule_are_no_table() {
        for lines in ["| a | b |", "| a |\n| b |", "| a |\n| :x: |", "| a |\n|"] {
            assert_eq!(drawn(None, lines), None, "{lines:?}");
        }
        assert_eq!(cells(r"| a \| b | `c|d` | e"), ["a | b", "`c|d`", "e"]);
    }
}
