//! A treap (Seidel and Aragon, *Randomized Search Trees*, 1996) over the beginnings and ends of lifetimes.
//!
//! The nodes, in order, are the events of the plan; at the same step, ends come before beginnings. Each subtree has the sum of its load
//! changes and the largest sum of a prefix, so the root has the maximum live load. A subtree also has the latest end of a lifetime that
//! begins in it, so a search for lifetimes that overlap an interval can skip all others.

/// Link that stands for no node.
const NIL: u16 = u16::MAX;

/// The number of a node: `2 * buffer` is a beginning, `2 * buffer + 1` an end.
type Link = u16;

/// An event, with the aggregates of the subtree below it.
#[derive(Clone, Copy)]
pub(super) struct Node {
    left: Link,
    right: Link,
    step: u32,
    /// The change of load: plus or minus the size (modulo 2^bits).
    change: usize,
    /// The sum of all changes (modulo 2^bits).
    sum: usize,
    /// The largest sum of a prefix, including the empty one.
    load: usize,
    /// The end of the lifetime that begins here, or 0 if this is an end.
    end: u32,
    /// The latest end of a lifetime that begins in the subtree.
    latest: u32,
    /// The end offset of the buffer whose lifetime begins here; `highest` is the largest in the subtree.
    top: usize,
    highest: usize,
}

impl Node {
    const EMPTY: Self = Self {
        left: NIL,
        right: NIL,
        step: 0,
        change: 0,
        sum: 0,
        load: 0,
        end: 0,
        latest: 0,
        top: 0,
        highest: 0,
    };
}

/// The data of a buffer in the tree.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) size: usize,
    /// Offset plus size.
    pub(super) top: usize,
}

/// The tree, with two events for each of `N` buffers.
pub(super) struct Tree<const N: usize> {
    nodes: [[Node; 2]; N],
    root: Link,
}

impl<const N: usize> Tree<N> {
    pub(super) const fn new() -> Self {
        const { assert!(N <= (NIL / 2) as usize, "more buffers than 16-bit links can tell apart") }
        Self { nodes: [[Node::EMPTY; 2]; N], root: NIL }
    }

    /// Removes all buffers. O(1).
    pub(super) fn clear(&mut self) {
        self.root = NIL;
    }

    fn node(&self, link: Link) -> &Node {
        &self.nodes[usize::from(link / 2)][usize::from(link % 2)]
    }

    fn node_mut(&mut self, link: Link) -> &mut Node {
        &mut self.nodes[usize::from(link / 2)][usize::from(link % 2)]
    }

    /// Returns the maximum live load. O(1).
    pub(super) fn load(&self) -> usize {
        if self.root == NIL { 0 } else { self.node(self.root).load }
    }

    /// Returns the highest end offset of a buffer. O(1).
    pub(super) fn highest(&self) -> usize {
        if self.root == NIL { 0 } else { self.node(self.root).highest }
    }

    /// Inserts a buffer that must not be in the tree yet. O(log n) expected.
    pub(super) fn insert(&mut self, buffer: usize, entry: Entry) {
        let Entry { start, end, size, top } = entry;
        self.nodes[buffer] = [
            Node { step: start, change: size, end, top, ..Node::EMPTY },
            Node { step: end, change: size.wrapping_neg(), ..Node::EMPTY },
        ];
        for link in [2 * buffer as Link, 2 * buffer as Link + 1] {
            self.update(link);
            let (left, right) = self.split(self.root, self.key(link));
            let left = self.merge(left, link);
            self.root = self.merge(left, right);
        }
    }

    /// Removes a buffer that must be in the tree. O(log n) expected.
    pub(super) fn remove(&mut self, buffer: usize) {
        for link in [2 * buffer as Link, 2 * buffer as Link + 1] {
            let (left, rest) = self.split(self.root, self.key(link));
            let (step, kind) = self.key(link);
            // The next larger key, which only a node with the next number could have.
            let (_, right) = self.split(rest, (step, kind + 1));
            self.root = self.merge(left, right);
        }
    }

    /// Passes the buffers whose lifetimes overlap `start..end` to `visit`, in no particular order, until `visit` returns `false`. Returns
    /// whether all were visited. O(log n) expected for each buffer.
    pub(super) fn overlapping(&self, start: u32, end: u32, visit: &mut impl FnMut(usize) -> bool) -> bool {
        self.visit(self.root, start, end, visit)
    }

    fn visit(&self, link: Link, start: u32, end: u32, visit: &mut impl FnMut(usize) -> bool) -> bool {
        if link == NIL || self.node(link).latest <= start {
            return true;
        }
        let node = self.node(link);
        if !self.visit(node.left, start, end, visit) {
            return false;
        }
        if node.step >= end {
            return true;
        }
        // The `end` of a node at the end of a lifetime is 0.
        if node.end > start && !visit(usize::from(link / 2)) {
            return false;
        }
        self.visit(node.right, start, end, visit)
    }

    /// Returns the sort key: the step, then ends before beginnings, then the node's number.
    fn key(&self, link: Link) -> (u32, u32) {
        let kind = if link % 2 == 1 { 0 } else { u32::from(NIL) };
        (self.node(link).step, kind + u32::from(link))
    }

    /// Returns a hash of the node's number, which acts as a random priority.
    fn priority(link: Link) -> u32 {
        (u32::from(link) + 1).wrapping_mul(0x9E37_79B9).rotate_left(15).wrapping_mul(0x85EB_CA6B)
    }

    /// Splits a subtree into the nodes before `key` and the rest.
    fn split(&mut self, link: Link, key: (u32, u32)) -> (Link, Link) {
        if link == NIL {
            return (NIL, NIL);
        }
        if self.key(link) < key {
            let (left, right) = self.split(self.node(link).right, key);
            self.node_mut(link).right = left;
            self.update(link);
            (link, right)
        } else {
            let (left, right) = self.split(self.node(link).left, key);
            self.node_mut(link).left = right;
            self.update(link);
            (left, link)
        }
    }

    /// Joins two subtrees; all nodes of the first come before those of the second.
    fn merge(&mut self, left: Link, right: Link) -> Link {
        if left == NIL || right == NIL {
            return if left == NIL { right } else { left };
        }
        if Self::priority(left) > Self::priority(right) {
            let joined = self.merge(self.node(left).right, right);
            self.node_mut(left).right = joined;
            self.update(left);
            left
        } else {
            let joined = self.merge(left, self.node(right).left);
            self.node_mut(right).left = joined;
            self.update(right);
            right
        }
    }

    /// Updates the aggregates of a node from its children.
    fn update(&mut self, link: Link) {
        let node = *self.node(link);
        let of = |link: Link| if link == NIL { Node::EMPTY } else { *self.node(link) };
        let (left, right) = (of(node.left), of(node.right));
        let here = left.sum.wrapping_add(node.change);
        // A sum covers all events between two steps, so it is the difference of the loads there. Neither load exceeds the capacity, so
        // the sums are right as signed numbers.
        let beyond = here.wrapping_add(right.load);
        let updated = self.node_mut(link);
        updated.sum = here.wrapping_add(right.sum);
        updated.load = larger(left.load, larger(here, beyond));
        updated.latest = node.end.max(left.latest).max(right.latest);
        updated.highest = node.top.max(left.highest).max(right.highest);
    }
}

/// Returns the larger of two sums, as signed numbers.
fn larger(a: usize, b: usize) -> usize {
    if a as isize >= b as isize { a } else { b }
}
