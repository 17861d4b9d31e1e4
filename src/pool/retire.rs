//! Arenas that no stream needs any more: of streams that the program has dropped, and of graphs that were given up.

use super::state::State;
use super::{Pool, Source, Stream};
use crate::placement::Placement;
use std::vec::Vec;

impl<P: Placement, S: Source> State<P, S> {
    /// Takes an arena from its stream. Its memory goes to other arenas or back to the source as usual, and then its
    /// place to another stream.
    pub(super) fn retire(&mut self, arena: usize) {
        let id = self.arenas[arena].id;
        if self.by_stream.get(&id) == Some(&arena) {
            self.by_stream.remove(&id);
        }
        self.recent = usize::MAX;
        self.arenas[arena].open = false;
        self.retired.push(arena);
    }

    /// Frees the places of retired arenas that have no segments and no blocks left.
    fn vacate(&mut self) {
        for arena in core::mem::take(&mut self.retired) {
            let place = &mut self.arenas[arena];
            if place.records > 0 || place.bins.iter().any(|bin| !bin.members.is_empty()) {
                self.retired.push(arena);
                continue;
            }
            (place.stream, place.fence) = (None, None);
            if let Some(trace) = &mut self.trace {
                trace.forget(arena);
            }
            self.vacant.push(arena);
        }
    }
}

impl<P: Placement, S: Source> Pool<P, S> {
    /// Retires the arenas of streams that the program has dropped. O(streams), without a driver call.
    pub(super) fn sweep(&self, state: &mut State<P, S>) {
        let of = |(place, arena): (usize, &super::arena::Arena<S>)| {
            (!arena.private && arena.stream.as_ref().is_some_and(Stream::is_abandoned)).then_some(place)
        };
        let mut abandoned: Vec<usize> = state.arenas.iter().enumerate().filter_map(of).collect();
        abandoned.retain(|arena| !state.retired.contains(arena));
        for arena in abandoned {
            let kept: Vec<u32> =
                core::mem::take(&mut state.arenas[arena].cached).into_values().flatten().collect();
            for number in kept {
                state.put_back(number, || self.source.now());
            }
            state.retire(arena);
        }
        if !state.retired.is_empty() {
            state.vacate();
        }
    }
}
