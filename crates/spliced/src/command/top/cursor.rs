//! Which row of a list is selected, and which rows are shown.

/// It follows what it is on, by `K`. Until it is moved, it stays on the first row.
#[derive(Debug)]
pub(super) struct Cursor<K> {
    on: Option<K>,
    row: usize,
    first_shown: usize,
}

impl<K> Default for Cursor<K> {
    fn default() -> Self {
        Self {
            on: None,
            row: 0,
            first_shown: 0,
        }
    }
}

/// Where a cursor is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// So many rows down, or up if it is negative.
    By(isize),
    To(usize),
    /// To the first row, whatever that will be.
    First,
    Last,
}

impl<K: PartialEq + Clone> Cursor<K> {
    pub(super) fn row(&self) -> usize {
        self.row
    }

    pub(super) fn first_shown(&self) -> usize {
        self.first_shown
    }

    /// The list has these rows now, of which `shown` fit. If what it was on is gone, it stays where it is.
    pub(super) fn settle(&mut self, keys: &[K], shown: usize) {
        if let Some(on) = &self.on {
            match keys.iter().position(|key| key == on) {
                Some(row) => self.row = row,
                None => {
                    self.row = self.row.min(keys.len().saturating_sub(1));
                    self.on = keys.get(self.row).cloned();
                }
            }
        } else {
            self.row = 0;
        }
        self.scroll(keys.len(), shown);
    }

    pub(super) fn go(&mut self, to: Move, keys: &[K], shown: usize) {
        let last = keys.len().saturating_sub(1);
        self.row = match to {
            Move::By(rows) => self.row.saturating_add_signed(rows).min(last),
            Move::To(row) => row.min(last),
            Move::First => 0,
            Move::Last => last,
        };
        self.on = match to {
            Move::First => None,
            _ => keys.get(self.row).cloned(),
        };
        self.scroll(keys.len(), shown);
    }

    fn scroll(&mut self, length: usize, shown: usize) {
        let shown = shown.max(1);
        let most = length.saturating_sub(shown);
        let least = (self.row + 1).saturating_sub(shown);
        self.first_shown = self.first_shown.min(most).clamp(least, self.row.max(least));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_it_is_on() {
        let mut cursor = Cursor::default();
        cursor.settle(&['a', 'b', 'c', 'd'], 2);
        assert_eq!((cursor.row(), cursor.first_shown()), (0, 0));
        // It has not been moved.
        cursor.settle(&['d', 'a', 'b', 'c'], 2);
        assert_eq!(cursor.row(), 0);
        cursor.go(Move::By(1), &['d', 'a', 'b', 'c'], 2);
        cursor.settle(&['b', 'c', 'd', 'a'], 2);
        assert_eq!((cursor.row(), cursor.first_shown()), (3, 2));
        // It is gone.
        cursor.settle(&['b', 'c'], 2);
        assert_eq!((cursor.row(), cursor.first_shown()), (1, 0));
        cursor.settle(&['c', 'b'], 2);
        assert_eq!(cursor.row(), 0);
        cursor.settle(&[], 2);
        assert_eq!((cursor.row(), cursor.first_shown()), (0, 0));
        cursor.settle(&['x', 'y'], 2);
        assert_eq!(cursor.row(), 0);
    }

    #[test]
    fn it_stays_within_the_list_and_in_sight() {
        let keys: Vec<_> = (0..10).collect();
        let mut cursor = Cursor::default();
        for (to, row, first) in [
            (Move::By(-1), 0, 0),
            (Move::By(3), 3, 1),
            (Move::By(-1), 2, 1),
            (Move::Last, 9, 7),
            (Move::By(1), 9, 7),
            (Move::To(6), 6, 6),
            (Move::To(100), 9, 7),
            (Move::First, 0, 0),
        ] {
            cursor.go(to, &keys, 3);
            assert_eq!((cursor.row(), cursor.first_shown()), (row, first), "{to:?}");
        }
        // A terminal without room for a row.
        cursor.go(Move::Last, &keys, 0);
        assert_eq!(cursor.row(), 9);
    }
}
