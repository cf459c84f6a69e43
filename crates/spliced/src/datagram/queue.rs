//! Lists of sessions from the one that was used longest ago to the one that was used last.

use slab::Slab;

/// A list through slots, each of which has a place in it.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) oldest: Option<usize>,
    pub(crate) newest: Option<usize>,
    pub(crate) length: usize,
}

/// The neighbours of a slot in a list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    older: Option<usize>,
    newer: Option<usize>,
}

/// A slot in several lists, of which `KIND` is one.
pub(crate) trait Placed<const KIND: usize> {
    fn place(&mut self) -> &mut Place;
}

impl Queue {
    /// Puts a slot that is in no list of this kind at the end.
    pub(crate) fn append<const KIND: usize, T: Placed<KIND>>(
        &mut self,
        slots: &mut Slab<T>,
        number: usize,
    ) {
        let older = self.newest.replace(number);
        *slots[number].place() = Place { older, newer: None };
        match older {
            Some(older) => slots[older].place().newer = Some(number),
            None => self.oldest = Some(number),
        }
        self.length += 1;
    }

    /// Takes a slot out of this list, which it is in.
    pub(crate) fn unlink<const KIND: usize, T: Placed<KIND>>(
        &mut self,
        slots: &mut Slab<T>,
        number: usize,
    ) {
        let Place { older, newer } = *slots[number].place();
        match older {
            Some(older) => slots[older].place().newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => slots[newer].place().older = older,
            None => self.newest = older,
        }
        self.length -= 1;
    }
}
