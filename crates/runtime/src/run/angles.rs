//! The positions that angles are made of, where segments of embeddings have their own. They are apart
//! from positions in the sequence, which say where keys and values go.
//!
//! A segment's positions are counted from the one that its first row would have as a token. What comes
//! after it continues after the largest of them, so from then on the two kinds of positions differ by an
//! offset, which the sequence keeps.

use super::prompt::{Rows, Segment};
use realizar_model::architectures::config::MAX_POSITIONS;

/// What is added to the positions of a sequence's rows to get those of their angles.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Offsets {
    /// Positions in the sequence and the offsets from there on.
    from: Vec<(usize, i64)>, // ascending
}

impl Offsets {
    /// The offsets that [`Self::as_list`] gave, of a sequence of `len` rows; `None` if they cannot be
    /// of one.
    pub(crate) fn from_list(from: &[(usize, i64)], len: usize) -> Option<Self> {
        let is_position = |&(pos, offset): &(usize, i64)| {
            let own = i64::try_from(pos).ok().and_then(|pos| pos.checked_add(offset));
            pos <= len && own.is_some_and(|own| (0..=MAX_POSITIONS as i64).contains(&own))
        };
        let is_sound = from.is_sorted_by(|a, b| a.0 < b.0) && from.iter().all(is_position);
        is_sound.then(|| Self { from: from.to_vec() })
    }

    /// Positions in the sequence and the offsets from there on.
    pub(crate) fn as_list(&self) -> &[(usize, i64)] {
        &self.from
    }

    /// The offset of what comes next.
    fn last(&self) -> i64 {
        self.from.last().map_or(0, |&(_, offset)| offset)
    }

    /// The sequence has `len` rows now.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.from.retain(|&(pos, _)| pos <= len);
    }

    /// As those of another sequence.
    pub(crate) fn copy(&mut self, other: &Self) {
        self.from.clone_from(&other.from);
    }

    /// The sequence got `rows` from `pos` on.
    pub(crate) fn extend(&mut self, pos: usize, rows: Rows<'_>) {
        for segment in positioned(rows).filter(Segment::is_last_part) {
            let offset = self.last() + change(&segment);
            if offset != self.last() {
                self.from.push((pos + segment.rows.end, offset));
            }
        }
    }

    /// Whether the angles of `rows`, which come next, are not those of their positions.
    pub(crate) fn concern(&self, rows: Rows<'_>) -> bool {
        self.last() != 0 || positioned(rows).next().is_some()
    }

    /// The largest position that an angle of `rows` is made of, which come next at `pos`.
    pub(crate) fn largest(&self, pos: usize, rows: Rows<'_>) -> i64 {
        let (mut offset, mut largest) = (self.last(), 0);
        for segment in positioned(rows) {
            let end = pos + segment.rows.start - segment.first;
            largest = largest.max(end as i64 + offset + i64::from(segment.embeddings.extent()));
            if segment.is_last_part() {
                offset += change(&segment);
            }
        }
        largest.max((pos + rows.len()) as i64 + offset)
    }

    /// Appends the positions of the angles of `rows`, which come next at `pos`.
    pub(crate) fn angles(&self, pos: usize, rows: Rows<'_>, out: &mut Vec<[u32; 3]>) {
        let mut offset = self.last();
        let position = |pos: usize, offset: i64| {
            u32::try_from(pos as i64 + offset).expect("positions of angles were checked")
        };
        let mut done = 0;
        for segment in positioned(rows) {
            let text = done..segment.rows.start;
            out.extend(text.map(|row| [position(pos + row, offset); 3]));
            let base = position(pos + segment.rows.start - segment.first, offset);
            let own = segment.embeddings.positions().unwrap_or_default();
            let own = &own[segment.first..][..segment.rows.len()];
            out.extend(own.iter().map(|components| components.map(|x| base + x)));
            done = segment.rows.end;
            if segment.is_last_part() {
                offset += change(&segment);
            }
        }
        out.extend((done..rows.len()).map(|row| [position(pos + row, offset); 3]));
    }
}

/// The segments with positions of their own.
fn positioned(rows: Rows<'_>) -> impl Iterator<Item = Segment<'_>> + Clone {
    rows.segments().filter(|segment| segment.embeddings.positions().is_some())
}

/// By how much the offset after a segment differs from that before it.
fn change(segment: &Segment<'_>) -> i64 {
    i64::from(segment.embeddings.extent()) - segment.embeddings.n_rows() as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Embeddings, Prompt};
    use std::sync::Arc;

    fn image(positions: Vec<[u32; 3]>) -> Arc<Embeddings> {
        let rows = Embeddings::new(vec![0.5; 2 * positions.len()], 2).unwrap();
        Arc::new(rows.with_positions(positions).unwrap())
    }

    #[test]
    fn offsets_that_no_sequence_has_are_none() {
        for list in [&[][..], &[(3, -3)], &[(3, 5), (7, -7), (10, 0)]] {
            let offsets = Offsets::from_list(list, 10);
            assert_eq!(offsets.as_ref().map(Offsets::as_list), Some(list));
        }
        for list in
            [&[(3, -4)][..], &[(11, 0)], &[(3, 1), (3, 2)], &[(7, 1), (3, 1)], &[(3, i64::MAX)]]
        {
            assert_eq!(Offsets::from_list(list, 10), None, "{list:?}");
        }
    }

    #[test]
    fn text_goes_on_behind_the_largest_position_of_an_image() {
        let grid = vec![[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 1, 0], [0, 1, 1], [0, 1, 2]];
        let mut prompt = Prompt::from(vec![5, 6]);
        prompt.push_embeddings(image(grid));
        prompt.push_tokens(&[7, 8]);
        prompt.push_embeddings(image(vec![[4; 3]]));
        prompt.push_tokens(&[9]);
        let all = [
            [0; 3],
            [1; 3],
            [2, 2, 2],
            [2, 2, 3],
            [2, 2, 4],
            [2, 3, 2],
            [2, 3, 3],
            [2, 3, 4],
            [5; 3],
            [6; 3],
            // Seven ahead of the text, so it is counted from there.
            [11; 3],
            [12; 3],
        ];
        // Cut anywhere, and as a whole.
        for cut in 0..=12 {
            let (mut offsets, mut found) = (Offsets::default(), Vec::new());
            for (pos, rows) in
                [(0, prompt.rows().slice(0..cut)), (cut, prompt.rows().slice(cut..12))]
            {
                offsets.angles(pos, rows, &mut found);
                let largest = i64::from(found.iter().flatten().max().copied().unwrap_or(0));
                assert!(rows.is_empty() || offsets.largest(pos, rows) > largest);
                offsets.extend(pos, rows);
            }
            assert_eq!(found, all, "cut at {cut}");
            assert_eq!(offsets.last(), 1);
            let next: Rows<'_> = (&[3]).into();
            assert!(offsets.concern(next));
            offsets.angles(12, next, &mut found);
            assert_eq!(found[12], [13; 3]);
            // What is forgotten has no effect.
            offsets.truncate(9);
            assert_eq!(offsets.last(), -3);
            offsets.truncate(7);
            assert_eq!(offsets, Offsets::default());
            assert!(!offsets.concern(next));
        }
    }
}
