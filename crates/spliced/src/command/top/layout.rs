//! Which lines of the terminal are for what.

use ratatui_core::layout::{Rect, Size};

/// From top to bottom; what has no room is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Processes, sessions, rates.
    pub(super) title: Rect,
    /// The pages, order and filters.
    pub(super) tabs: Rect,
    pub(super) head: Rect,
    pub(super) list: Rect,
    /// What is missing, and why.
    pub(super) notice: Rect,
    /// More of the selected row; messages.
    pub(super) detail: Rect,
    /// What the keys do, or what is being typed.
    pub(super) keys: Rect,
}

impl Layout {
    pub(super) fn of(size: Size, has_notice: bool) -> Self {
        let height = size.height;
        let detail = match height {
            0..7 => 0,
            7..16 => 1,
            _ => 2,
        };
        let mut next = 0;
        let mut take = |wanted: u16| {
            let taken = wanted.min(height - next);
            next += taken;
            Rect::new(0, next - taken, size.width, taken)
        };
        let title = take(u16::from(height >= 6));
        let tabs = take(u16::from(height >= 5));
        let head = take(u16::from(height >= 3));
        let notice = u16::from(has_notice && height >= 4);
        let keys = u16::from(height >= 2);
        let above = title.height + tabs.height + head.height;
        Self {
            title,
            tabs,
            head,
            list: take(height.saturating_sub(above + notice + detail + keys)),
            notice: take(notice),
            detail: take(detail),
            keys: take(keys),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_for_something_and_the_list_has_one_first() {
        for height in 0..100 {
            for has_notice in [false, true] {
                let Layout {
                    title,
                    tabs,
                    head,
                    list,
                    notice,
                    detail,
                    keys,
                } = Layout::of(Size::new(7, height), has_notice);
                let mut next = 0;
                for part in [title, tabs, head, list, notice, detail, keys] {
                    assert_eq!((part.x, part.y, part.width), (0, next, 7));
                    next = part.bottom();
                }
                assert_eq!(next, height);
                assert_eq!(list.height > 0, height > 0, "{height}");
            }
        }
        assert_eq!(Layout::of(Size::new(80, 24), false).list.height, 18);
    }
}
