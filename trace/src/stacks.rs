//! Call stacks: the functions that requested a block.
//!
//! A trace keeps each stack once, as a node of a tree: a return address and the node of its caller. The lines that build the tree are
//! comments in the text format, `#^` and a word, and notes in the binary format that begin with `^`; readers that do not know them skip
//! them.
//!
//! | line | meaning |
//! | --- | --- |
//! | `#^<node>` | the stack of the next event; nodes are numbered from 1. With a sign: counted from the last such line's |
//! | `#^m <build id or -> <path>` | the next module: a program or a library, from 1 |
//! | `#^n <caller's node> <module> <address>` | the next node: its caller (0: none; with a sign: counted back from this node) and the address of the call in the module's file (module 0: in a device's memory), in hexadecimal |
//! | `#^s <text>` | the next string, from 1 |
//! | `#^f <module> <address> <function> <file> <line> ...` | the functions at an address, the innermost first, each inlined into the next: numbers of strings (0: unknown), and a line |
//!
//! The reader also accepts this information as notes: `backtrace <address> ...` on an event and `frame <address> <name> <file>:<line>`,
//! as `TraceWriter` writes them; and, on an allocation, one line of text for each frame.

use std::collections::HashMap;
use std::sync::Arc;

/// A function in a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Its name.
    pub function: Arc<str>,
    /// The source file, if known.
    pub file: Option<Arc<str>>,
    /// The line in the file; 0 if unknown.
    pub line: u32,
}

/// A program or a library.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Module {
    /// The build id in hexadecimal, if it has one.
    pub build_id: Option<String>,
    /// The path of its file.
    pub path: String,
}

/// A place in the tree of stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// The caller's node; 0 is none.
    pub parent: u32,
    /// The module: an index in [`Stacks::modules`] plus 1, or 0 if unknown.
    pub module: u32,
    /// The address of the call in the module's file, or in memory if the module is unknown.
    pub address: u64,
}

/// The module of nodes whose frame is a line of a note; the address is the number of the line.
const TEXT: u32 = u32::MAX;

/// The stacks of the part of a trace read so far.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    modules: Vec<Module>,
    /// All nodes; node `n` is at index `n - 1`.
    nodes: Vec<Node>,
    strings: Vec<Arc<str>>,
    frames: HashMap<(u32, u64), Vec<Frame>>,
    /// The numbers of nodes from notes and devices.
    interned: HashMap<Node, u32>,
    /// For each node equal to an earlier one, the earlier node.
    again: HashMap<u32, u32>,
    texts: HashMap<Arc<str>, u64>,
    /// The stack of the next event.
    next: u32,
    /// The last number that a line had for an event.
    last: u32,
}

impl Stacks {
    /// Reads one line without its `#^`; ignores unknown lines.
    pub fn read(&mut self, line: &str) {
        if let Some(node) = number(line, self.last) {
            (self.next, self.last) = (node, node);
            return;
        }
        let Some((kind, rest)) = line.split_once(' ') else { return };
        let mut words = rest.split(' ');
        match kind {
            "m" => {
                let (id, path) = rest.split_once(' ').unwrap_or((rest, ""));
                let build_id = (id != "-").then(|| id.to_owned());
                self.modules.push(Module { build_id, path: path.into() });
            }
            "n" => {
                let own = self.nodes.len() as u32 + 1;
                let parent = words.next().and_then(|word| number(word, own)).unwrap_or(0);
                let module = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
                let address = words.next().and_then(|word| u64::from_str_radix(word, 16).ok()).unwrap_or(0);
                // A caller must come first, so that no node is its own caller.
                let parent = if parent as usize <= self.nodes.len() { parent } else { 0 };
                let node = Node { parent: self.first(parent), module, address };
                self.nodes.push(node);
                // A device forgets calls, and records them again.
                if module == 0 && *self.interned.entry(node).or_insert(own) != own {
                    self.again.insert(own, self.interned[&node]);
                }
            }
            "s" => self.strings.push(rest.into()),
            "f" => {
                let key = (
                    words.next().and_then(|word| word.parse().ok()),
                    words.next().and_then(|word| u64::from_str_radix(word, 16).ok()),
                );
                let (Some(module), Some(address)) = key else { return };
                let numbers: Vec<usize> = words.map_while(|word| word.parse().ok()).collect();
                let string = |number: usize| self.strings.get(number.checked_sub(1)?).cloned();
                let frames = numbers.chunks_exact(3).map(|numbers| Frame {
                    function: string(numbers[0]).unwrap_or_else(|| "?".into()),
                    file: string(numbers[1]),
                    line: u32::try_from(numbers[2]).unwrap_or(0),
                });
                let frames = frames.collect();
                self.frames.insert((module, address), frames);
            }
            _ => {}
        }
    }

    /// Returns the stack of the current event, and forgets it.
    pub(crate) fn take_next(&mut self) -> u32 {
        let node = std::mem::take(&mut self.next);
        if node as usize <= self.nodes.len() { self.first(node) } else { 0 }
    }

    /// Returns the first node equal to this one.
    fn first(&self, number: u32) -> u32 {
        self.again.get(&number).copied().unwrap_or(number)
    }

    /// Reads the notes on an event, or at the end. Returns the stack in them, or 0.
    pub(crate) fn notes(&mut self, lines: &[String]) -> u32 {
        let mut texts = Vec::new();
        let mut stack = 0;
        for line in lines {
            let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
            if kind == "backtrace" {
                let addresses = rest.split(' ').filter_map(|word| u64::from_str_radix(word, 16).ok());
                for address in addresses.collect::<Vec<_>>().into_iter().rev() {
                    stack = self.intern(Node { parent: stack, module: 0, address });
                }
            } else if let Some((address, frame)) = frame_of(kind, rest) {
                self.frames.entry((0, address)).or_default().push(frame);
            } else if !line.trim().is_empty() {
                texts.push(line.trim());
            }
        }
        if stack == 0 {
            for text in texts.into_iter().rev() {
                let address = self.text(text);
                stack = self.intern(Node { parent: stack, module: TEXT, address });
            }
        }
        stack
    }

    /// Returns the number of a line of text that represents a frame.
    fn text(&mut self, text: &str) -> u64 {
        if let Some(&number) = self.texts.get(text) {
            return number;
        }
        let (number, text) = (self.texts.len() as u64, Arc::from(text));
        self.frames.insert((TEXT, number), vec![frame(&text)]);
        self.texts.insert(text, number);
        number
    }

    /// Returns the number of a node of a note.
    fn intern(&mut self, node: Node) -> u32 {
        if let Some(&number) = self.interned.get(&node) {
            return number;
        }
        self.nodes.push(node);
        let number = self.nodes.len() as u32;
        self.interned.insert(node, number);
        number
    }

    /// Returns the programs and libraries.
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// Returns the number of strings in the trace.
    pub fn strings(&self) -> usize {
        self.strings.len()
    }

    /// Returns all nodes; the number of the first is 1.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns a node.
    pub fn node(&self, number: u32) -> Option<Node> {
        self.nodes.get((number as usize).checked_sub(1)?).copied()
    }

    /// Returns the functions at a node, the innermost first; none if the trace does not name them.
    pub fn frames(&self, node: Node) -> &[Frame] {
        self.frames.get(&(node.module, node.address)).map_or(&[], Vec::as_slice)
    }

    /// Names the functions at an address of a module.
    pub fn name(&mut self, module: u32, address: u64, frames: Vec<Frame>) {
        self.frames.insert((module, address), frames);
    }

    /// Returns the module of a node, if known.
    pub fn module(&self, node: Node) -> Option<&Module> {
        self.modules.get((node.module as usize).checked_sub(1)?)
    }
}

/// Reads the number of a node; one with a sign counts from `base`.
fn number(word: &str, base: u32) -> Option<u32> {
    if word.starts_with(['+', '-']) { base.checked_add_signed(word.parse().ok()?) } else { word.parse().ok() }
}

/// Reads a note with a frame's name.
fn frame_of(kind: &str, rest: &str) -> Option<(u64, Frame)> {
    let (address, name) = rest.split_once(' ').filter(|_| kind == "frame")?;
    Some((u64::from_str_radix(address, 16).ok()?, frame(name)))
}

/// Splits text into a name and, if the last word is `<file>:<line>`, a file and a line.
fn frame(text: &str) -> Frame {
    let place = text.rsplit_once(' ').and_then(|(name, place)| {
        let (file, line) = place.rsplit_once(':')?;
        Some((name, file, line.parse().ok()?))
    });
    match place {
        Some((name, file, line)) => Frame { function: name.into(), file: Some(file.into()), line },
        None => Frame { function: text.into(), file: None, line: 0 },
    }
}
