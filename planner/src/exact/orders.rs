//! All orders of live buffers in which buffers that end together lie together.
//!
//! A PQ-tree (Booth and Lueker, *Testing for the consecutive ones property*, 1976), used as in the planarity test of Lempel, Even and
//! Cederbaum (1967): the buffers that start at a border replace those that end there. For each border it remembers the order of the ended
//! buffers, and whether later turns of the tree turn that order as well.

/// Greatest depth of a tree; the search abandons deeper trees, because it walks them recursively.
const DEEPEST: usize = 400;

/// The order at a border, as part of a row: it turns with the row.
#[derive(Clone, Debug)]
struct Mark {
    border: u32,
    turned: bool,
}

/// A place in a row.
#[derive(Clone, Debug)]
struct Slot {
    node: Node,
    marks: Vec<Mark>,
}

impl From<Node> for Slot {
    fn from(node: Node) -> Self {
        Self { node, marks: Vec::new() }
    }
}

#[derive(Clone, Debug)]
enum Node {
    /// One buffer.
    Leaf(u32),
    /// Children in any order (a P-node).
    Any(Vec<Node>),
    /// Children in this order or its reverse (a Q-node).
    Row(Vec<Slot>),
}

/// Whether none, some or all of a node's buffers end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Empty,
    Partial,
    Full,
}

/// The buffers that stay, then those that end.
type Split = (Vec<Slot>, Vec<Slot>);

/// Returns a node of one or more children in any order.
fn gather(mut nodes: Vec<Node>) -> Node {
    if nodes.len() == 1 { nodes.remove(0) } else { Node::Any(nodes) }
}

fn turn(slots: &mut [Slot]) {
    slots.reverse();
    for mark in slots.iter_mut().flat_map(|slot| &mut slot.marks) {
        mark.turned = !mark.turned;
    }
}

fn join(states: impl IntoIterator<Item = State>) -> State {
    let mut states = states.into_iter();
    let first = states.next().unwrap_or(State::Empty);
    if states.all(|state| state == first) { first } else { State::Partial }
}

impl Node {
    fn state(&self, ends: &[bool]) -> State {
        match self {
            Self::Leaf(n) if ends[*n as usize] => State::Full,
            Self::Leaf(_) => State::Empty,
            Self::Any(children) => join(children.iter().map(|child| child.state(ends))),
            Self::Row(slots) => join(slots.iter().map(|slot| slot.node.state(ends))),
        }
    }

    /// Lays a node out in a row, with the ending buffers last; `None` if that is impossible.
    fn line(self, ends: &[bool]) -> Option<Split> {
        let (mut stay, mut end) = (Vec::new(), Vec::new());
        match self {
            Self::Leaf(_) => return None,
            Self::Any(children) => {
                let (mut empty, mut full, mut partial) = (Vec::new(), Vec::new(), None);
                for child in children {
                    match child.state(ends) {
                        State::Empty => empty.push(child),
                        State::Full => full.push(child),
                        State::Partial if partial.is_some() => return None,
                        State::Partial => partial = Some(child),
                    }
                }
                if !empty.is_empty() {
                    stay.push(gather(empty).into());
                }
                if let Some(child) = partial {
                    (stay, end) = extended((stay, end), child.line(ends)?);
                }
                if !full.is_empty() {
                    end.push(gather(full).into());
                }
            }
            Self::Row(mut slots) => {
                let states = |slots: &[Slot]| -> Vec<State> {
                    slots.iter().map(|slot| slot.node.state(ends)).collect()
                };
                let mut known = states(&slots);
                if known[0] == State::Full || known[known.len() - 1] == State::Empty {
                    turn(&mut slots);
                    known.reverse();
                }
                // First the children that stay, then at most one that ends in part, then those that end.
                let ascending =
                    known.windows(2).all(|pair| pair[0] == State::Empty || pair[1] == State::Full);
                if !ascending {
                    return None;
                }
                for (slot, state) in slots.into_iter().zip(known) {
                    match state {
                        State::Empty => stay.push(slot),
                        State::Full => end.push(slot),
                        State::Partial => {
                            let mut inner = slot.node.line(ends)?;
                            inner.0[0].marks.extend(slot.marks);
                            (stay, end) = extended((stay, end), inner);
                        }
                    }
                }
            }
        }
        Some((stay, end))
    }
}

fn extended(mut outer: Split, inner: Split) -> Split {
    outer.0.extend(inner.0);
    outer.1.extend(inner.1);
    outer
}

/// The event at a border.
struct Change<'a> {
    border: u32,
    ends: &'a [bool],
    starts: &'a [u32],
}

impl Change<'_> {
    fn started(&self) -> Node {
        gather(self.starts.iter().map(|&n| Node::Leaf(n)).collect())
    }
}

/// All orders of the live buffers, and the order of the buffers that ended at each border so far.
#[derive(Clone, Debug)]
pub(super) struct Orders {
    root: Node,
    /// The buffers that ended at each border.
    lists: Vec<Vec<u32>>,
    /// For each border, the later border at which its order ended, and whether it was turned there.
    ties: Vec<Option<(u32, bool)>>,
}

impl Orders {
    /// Returns all orders of `starts`, at least one buffer.
    pub(super) fn new(starts: &[u32]) -> Self {
        let root = gather(starts.iter().map(|&n| Node::Leaf(n)).collect());
        Self { root, lists: Vec::new(), ties: Vec::new() }
    }

    /// Replaces the buffers for which `ends` is true by `starts`, at least one buffer. Returns false, and leaves the orders unusable, if
    /// the ending buffers cannot lie together. O(live buffers · depth).
    pub(super) fn replace(&mut self, ends: &[bool], starts: &[u32]) -> bool {
        let border = self.lists.len() as u32;
        let root = std::mem::replace(&mut self.root, Node::Any(Vec::new()));
        let change = Change { border, ends, starts };
        match self.reduce(root, &change, 0) {
            Some(root) => self.root = root,
            None => return false,
        }
        true
    }

    /// Ends all live buffers; returns the buffers that ended at each border, in order.
    pub(super) fn finish(mut self) -> Vec<Vec<u32>> {
        let border = self.lists.len() as u32;
        let root = std::mem::replace(&mut self.root, Node::Any(Vec::new()));
        self.end(border, vec![root.into()]);
        let mut turned = vec![false; self.lists.len()];
        for border in (0..self.lists.len()).rev() {
            if let Some((later, own)) = self.ties[border] {
                turned[border] = own ^ turned[later as usize];
            }
            if turned[border] {
                self.lists[border].reverse();
            }
        }
        self.lists
    }

    /// Records the order of the buffers that end.
    fn end(&mut self, border: u32, run: Vec<Slot>) {
        let mut list = Vec::new();
        self.ties.push(None);
        let mut walk = vec![Node::Row(run)];
        while let Some(node) = walk.pop() {
            match node {
                Node::Leaf(n) => list.push(n),
                Node::Any(children) => walk.extend(children.into_iter().rev()),
                Node::Row(slots) => {
                    for slot in slots.into_iter().rev() {
                        for mark in slot.marks {
                            self.ties[mark.border as usize] = Some((border, mark.turned));
                        }
                        walk.push(slot.node);
                    }
                }
            }
        }
        self.lists.push(list);
    }

    /// Brings all ending buffers together in `node`, which holds them all, and replaces them.
    fn reduce(&mut self, node: Node, change: &Change, depth: usize) -> Option<Node> {
        if depth > DEEPEST {
            return None;
        }
        let ends = change.ends;
        match node {
            Node::Leaf(_) => {
                self.end(change.border, vec![node.into()]);
                Some(change.started())
            }
            Node::Any(mut children) => {
                let states: Vec<State> = children.iter().map(|child| child.state(ends)).collect();
                if let Some(at) = lone(&states) {
                    let child = children.swap_remove(at);
                    children.push(self.reduce(child, change, depth + 1)?);
                    return Some(Node::Any(children));
                }
                let (mut empty, mut run, mut partial) = (Vec::new(), Vec::new(), Vec::new());
                for (child, state) in children.into_iter().zip(states) {
                    match state {
                        State::Empty => empty.push(child),
                        State::Full => run.push(child.into()),
                        State::Partial => partial.push(child),
                    }
                }
                let mut partial = partial.into_iter();
                let (lower, upper) = (partial.next(), partial.next());
                if partial.next().is_some() {
                    return None;
                }
                let Some(lower) = lower else {
                    self.end(change.border, run);
                    empty.push(change.started());
                    return Some(gather(empty));
                };
                let (mut row, mut below) = lower.line(ends)?;
                below.append(&mut run);
                let mut above = Vec::new();
                if let Some(upper) = upper {
                    let (mut stay, mut end) = upper.line(ends)?;
                    turn(&mut stay);
                    turn(&mut end);
                    below.append(&mut end);
                    above = stay;
                }
                self.row(change, &mut row, below, above);
                empty.push(Node::Row(row));
                Some(gather(empty))
            }
            Node::Row(mut slots) => {
                let states: Vec<State> = slots.iter().map(|slot| slot.node.state(ends)).collect();
                if let Some(at) = lone(&states) {
                    let child = std::mem::replace(&mut slots[at].node, Node::Any(Vec::new()));
                    slots[at].node = self.reduce(child, change, depth + 1)?;
                    return Some(Node::Row(slots));
                }
                let first = states.iter().position(|&state| state != State::Empty)?;
                let last = states.iter().rposition(|&state| state != State::Empty)?;
                if states[first..=last].iter().skip(1).rev().skip(1).any(|&state| state != State::Full) {
                    return None;
                }
                let (mut row, mut run, mut above) = (Vec::new(), Vec::new(), Vec::new());
                for (at, slot) in slots.into_iter().enumerate() {
                    match states[at] {
                        State::Empty if at < first => row.push(slot),
                        State::Empty => above.push(slot),
                        State::Full => run.push(slot),
                        State::Partial => {
                            let (mut stay, mut end) = slot.node.line(ends)?;
                            if at == first {
                                stay[0].marks.extend(slot.marks);
                                row.extend(stay);
                                run.extend(end);
                            } else {
                                turn(&mut stay);
                                turn(&mut end);
                                stay[0].marks.extend(slot.marks);
                                run.extend(end);
                                above.extend(stay);
                            }
                        }
                    }
                }
                self.row(change, &mut row, run, above);
                Some(if row.len() == 1 { row.remove(0).node } else { Node::Row(row) })
            }
        }
    }

    /// Ends `run`, and puts the starting buffers in its place between `row` and `above`.
    fn row(&mut self, change: &Change, row: &mut Vec<Slot>, run: Vec<Slot>, above: Vec<Slot>) {
        self.end(change.border, run);
        row.push(Slot { node: change.started(), marks: vec![Mark { border: change.border, turned: false }] });
        row.extend(above);
    }
}

/// Returns the only child with ending buffers, if it ends only in part.
fn lone(states: &[State]) -> Option<usize> {
    let mut touched = (0..states.len()).filter(|&n| states[n] != State::Empty);
    let first = touched.next()?;
    (touched.next().is_none() && states[first] == State::Partial).then_some(first)
}
