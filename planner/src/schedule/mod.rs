//! Schedules tell a program how to run a plan: the order of operators, repeated ones included, their chunks, the copies to another memory
//! and back, and a place for every tensor.

mod changes;
mod replay;
mod steps;
mod written;

pub use changes::{ChangeError, Changed, Changes, change};
pub use replay::{Corruption, Replayed, replay};
pub use steps::{Act, Operand, Share, Step};
pub use written::{Written, WrittenPlace, WrittenStep};

use std::collections::HashMap;

use crate::graph::{Graph, Lowering};
use crate::model::{Buffer, Instance, InstanceError};
use crate::solve::Solution;
use crate::transform::{InPlace, Inside, Names, Spilled, in_place_by};

/// The tier of the memory to which tensors are moved.
pub const SLOW: u32 = 1;

/// The buffers to place and the steps on them: the result of all transformations.
#[derive(Clone, Debug, Default)]
pub struct Lowered {
    /// The buffers to place.
    pub instance: Instance,
    /// The tensors that lie in a buffer of another name.
    pub inside: Vec<Inside>,
    /// The operators in order, if the buffers are those of a model.
    pub graph: Option<Graph>,
    /// The steps in order; empty without a graph.
    pub steps: Vec<Step>,
    /// The scope of a proof about the buffers, such as one order of the operators; empty if only buffers were given.
    pub scope: &'static str,
    /// Proven lower bound in bytes on the plans of all orders, if there is one.
    pub all_orders: Option<u64>,
}

/// The number of a place in [`Lowered::places`].
pub type PlaceId = usize;

/// A buffer, or a tensor in a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Its name: the tensor's, or made from it if the tensor lies at several places in turn.
    pub id: &'a str,
    /// Its first byte in the buffer.
    pub at: u64,
    /// Its size in bytes.
    pub size: u64,
    /// First time step at which it is live.
    pub start: i64,
    /// The time step after the last at which it is live.
    pub end: i64,
    /// The number of the buffer.
    pub number: usize,
    /// The buffer, which may be larger and live longer than a tensor in it.
    pub buffer: &'a Buffer,
    /// Whether it is a tensor that lies in a buffer of another name.
    pub inside: bool,
}

/// For each tensor, its places in turn: number, first step and the step after the last.
type Stays = Vec<Vec<(PlaceId, i64, i64)>>;

impl Lowered {
    /// Wraps buffers that belong to no model.
    pub fn of(instance: Instance) -> Self {
        Self { instance, ..Self::default() }
    }

    /// Lowers a graph with a separate buffer for each tensor.
    ///
    /// # Errors
    /// If the total size of the tensors is too large to count.
    pub fn apart(graph: Graph, lowering: Lowering) -> Result<Self, InstanceError> {
        let instance = graph.instance(lowering)?;
        Ok(Self { instance, scope: "this order", ..Self::default() }.with_names(graph))
    }

    /// Lowers a graph with shared buffers. `overwrites` gives, for each operator that can overwrite an input, the input to overwrite, by
    /// default the first. Also returns the number of views and the number of tensors that overwrite another.
    pub(crate) fn in_place(
        graph: Graph,
        lowering: Lowering,
        overwrites: &[Option<usize>],
    ) -> Result<(Self, usize, usize), InstanceError> {
        let mut choices = overwrites.iter();
        let mut choose = |_| choices.next().copied().unwrap_or(Some(0));
        let InPlace { instance, inside, views, overwrites, .. } = in_place_by(&graph, lowering, &mut choose)?;
        let lowered = Self { instance, inside, scope: "this order and sharing", ..Self::default() };
        Ok((lowered.with_names(graph), views, overwrites))
    }

    /// Lowers a graph whose tensors are moved to the memory [`SLOW`] and back, and have places there too.
    ///
    /// # Errors
    /// If the total size of the tensors is too large to count.
    pub fn moved(graph: Graph, spilled: &Spilled) -> Result<Self, InstanceError> {
        let mut buffers = spilled.instance.buffers().to_vec();
        let mut stays: Stays = vec![Vec::new(); graph.tensors.len()];
        for (n, (&tensor, buffer)) in spilled.stays.iter().zip(&buffers).enumerate() {
            stays[tensor].push((n, buffer.start, buffer.end));
        }
        let mut names = Names::of(&graph);
        buffers.iter().for_each(|buffer| {
            names.unused(buffer.id.clone());
        });
        let mut away = HashMap::new();
        for trip in spilled.trips.iter().filter(|trip| steps::is_copied_out(&graph, trip)) {
            // The lifetime includes the steps of the copies out and back.
            let id = names.unused(format!("{}@away{}", graph.tensors[trip.tensor].name, trip.leaves));
            let first = &buffers[stays[trip.tensor][0].0];
            let (start, end, align) = (trip.leaves as i64, trip.returns as i64 + 1, first.align);
            let size = first.size;
            away.insert((trip.tensor, trip.leaves), buffers.len());
            buffers.push(Buffer { align, tier: SLOW, ..Buffer::new(id, size, start, end) });
        }
        let steps = steps::steps(&graph, &stays, &|_| None, &spilled.trips, &away);
        let instance = Instance::new(buffers)?;
        Ok(Self {
            instance,
            steps,
            graph: Some(graph),
            scope: "this order and these copies",
            ..Self::default()
        })
    }

    /// Adds the steps of a graph in which each tensor lies at the place of its name.
    fn with_names(mut self, graph: Graph) -> Self {
        let places: HashMap<&str, (PlaceId, Place)> =
            self.places().enumerate().map(|(n, place)| (place.id, (n, place))).collect();
        let found = |tensor: usize| places.get(graph.tensors[tensor].name.as_str());
        let stays: Stays = (0..graph.tensors.len())
            .map(|n| found(n).map(|&(number, place)| (number, place.start, place.end)).into_iter().collect())
            .collect();
        let buffer_of = |tensor: usize| found(tensor).map(|(_, place)| place.number);
        let steps = steps::steps(&graph, &stays, &buffer_of, &[], &HashMap::new());
        self.steps = steps;
        self.graph = Some(graph);
        self
    }

    /// Returns the buffers in order, then the tensors that lie in them.
    pub fn places(&self) -> impl Iterator<Item = Place<'_>> + Clone {
        let buffers = self.instance.buffers().iter().enumerate();
        let own = buffers.map(|(number, buffer)| {
            let Buffer { id, size, start, end, .. } = buffer;
            Place { id, at: 0, size: *size, start: *start, end: *end, number, buffer, inside: false }
        });
        own.chain(self.inside.iter().map(|inside| {
            let Inside { name, buffer: number, at, size, start, end } = inside;
            let (at, size, start, end) = (*at, *size, *start, *end);
            let buffer = &self.instance.buffers()[*number];
            Place { id: name, at, size, start, end, number: *number, buffer, inside: true }
        }))
    }

    /// Returns, for each tensor of the graph, the buffer that holds it first, if it has a place.
    pub fn buffer_of(&self) -> Vec<Option<usize>> {
        let places: HashMap<&str, usize> = self.places().map(|place| (place.id, place.number)).collect();
        let tensors = self.graph.iter().flat_map(|graph| &graph.tensors);
        tensors.map(|tensor| places.get(tensor.name.as_str()).copied()).collect()
    }
}

/// A plan that a program can execute: steps, and a place for every tensor.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The buffers and the steps on them.
    pub lowered: Lowered,
    /// The offsets of the buffers, and the proof about them.
    pub solution: Solution,
}

impl Schedule {
    /// Wraps a plan of buffers that belong to no model.
    pub fn of(instance: Instance, solution: Solution) -> Self {
        Self { lowered: Lowered::of(instance), solution }
    }

    /// Describes the proof about the plan and its scope: one order of the operators, or all.
    pub fn proved(&self) -> String {
        self.proved_of(&self.solution)
    }

    /// Describes the proof about the part of the plan in one memory.
    pub fn proved_of(&self, solution: &Solution) -> String {
        let text = solution.to_string();
        let scope = match self.lowered.all_orders {
            Some(load) if load == solution.peak => "all orders",
            _ => self.lowered.scope,
        };
        match text.strip_suffix("(proved)") {
            Some(what) if !scope.is_empty() => format!("{what}for {scope} (proved)"),
            _ => text,
        }
    }

    /// Returns the places in order, each with its offset in its memory.
    pub fn placed(&self) -> impl Iterator<Item = (Place<'_>, u64)> + Clone {
        self.lowered.places().map(|place| (place, self.solution.offsets[place.number] + place.at))
    }
}
